"""Claiming a run, and resuming one: what the broker still has, what is lost, what follows from accepted losses.

Runs to its end before the dispatcher starts to serve; imports nothing of `serving/`.
"""
