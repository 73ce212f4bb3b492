"""Where a replay's records come from: the run's topics (`log`), or a dump (`dump`); `sealed` and `ahead` work on either.

Needs neither torch nor the rest of the replay.
"""
