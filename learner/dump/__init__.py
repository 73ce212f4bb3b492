"""A dump as files: part of a run as one folder that needs no broker.

* `index`: what the folder holds and the digest of every file; reading, checking and sealing it
* `records`: the file of a topic

`launch/archive` makes dumps and loads them into a broker; `learner/replay/sources` reads batches from them.
"""
