"""The sending end of a refit: one gather of the weights, sent to every transfer group of the round at once.

    sending.py    buckets, digest, and a group over gloo
    nccl.py       a group over NCCL

The receiving end is `producer/refit/`. What both must agree on, the plan of the buckets and the wire, is in `schemas/weights/`.
docs/refit.md has the round around it.
"""
