"""Claiming a run and resuming one: what the broker still has, what is lost, what follows from accepted losses.

* `claim`: the topics, the claim on `control`, and the fence against later claims
* `survey`: reads what the broker has; `continuity`: finds what is missing
* `resumption`: the order of these, and what accepted losses change
* `log_positions`: where the logs stand, for the manifest of a checkpoint

Apart from the fence and `log_positions`, all of it is over before the dispatcher starts to serve. Imports nothing of `serving/`.
"""
