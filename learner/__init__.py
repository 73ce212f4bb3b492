"""The learner: ranks that train, and the dispatcher process beside rank 0 that talks to Kafka.

* `dispatcher/`: gives work to producers, collects groups, answers rank 0; `link/`: how the two talk
* `loop` (rank 0), `worker` (every rank), `commands` and `ranks` (from rank 0 to the others), `session` (one rank's life)
* `grpo/` and `model/`: the mathematics, and the policy on Megatron-core
* `transfer/`: sending weights; `checkpoint/`: saving and resuming; `replay/`: training steps again

Imports neither `producer` nor `launch`.
"""
