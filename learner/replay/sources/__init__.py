"""Where the sealed batches of a replay come from.

* `sealed`: the batch of a version, as its seal names it; the `Source` protocol
* `log`, `dump`: the run's topics on its broker, or a dump's files
* `ahead`: reads the next batch while the present one is trained

Imports neither torch nor anything else of `learner.replay`.
"""
