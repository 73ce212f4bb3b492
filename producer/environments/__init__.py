"""What scores a trajectory: the interface (`base`), single-turn scoring (`single_turn`), names (`registry`), the built-in ones.

An environment is one object a producer. It keeps nothing of an episode between calls: all state of an episode is local to its
`rollout`, which runs many times at once on the producer's event loop. It may keep what is costly to make (a worker process, a
parsed table) until `close`.
"""
