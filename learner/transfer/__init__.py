"""The sending end of a refit: one gather of the weights, sent to every transfer group of the round at once.

    sending.py    buckets, digest, and one broadcast to all groups

The receiving end is `producer/refit/`. What both must agree on, the plan of the buckets and the transports, is in
`schemas/weights/`.
docs/refit.md has the round around it.
"""
