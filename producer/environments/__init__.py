"""What scores a trajectory.

* `base`: the interface, and the builder of trajectories
* `single_turn`: environments that sample once and score a text; the one-function form
* `registry`: from a name in the config to an environment, and its digest
* `worker_pool`: processes that can be killed, for scoring that may hang
* `exact_match`, `math_verify`, `reasoning_gym`, `addition`, `tiny_inc`: the built-in ones

An environment is one object per producer. It keeps nothing of an episode between calls: all state of an episode is local to its
`rollout`, which runs many times at once on the producer's event loop. It may keep what is costly to make (worker processes, a
parsed table) until `close`.

Nothing here imports torch, transformers, vLLM or Kafka clients; a scoring library is imported by its own environment, when that
is made or, better, in its worker.
"""
