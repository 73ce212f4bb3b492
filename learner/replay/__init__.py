"""Training steps of a run again: to compare with what was recorded, to look into a group, or to try another loss.

* `plan`, `changes`: what a replay does, and which config keys it may change
* `sources/`: where the sealed batches come from
* `replayer` (rank 0), `worker` and `session` (every rank): the replay itself
* `compare`, `tokens`, `report`: what comes out of it

Writes nothing to a run. Only `worker` and `session` import torch. No module imports `learner.dispatcher`.
"""
