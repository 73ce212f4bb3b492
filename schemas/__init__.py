"""What every process of a run must agree on: records, config, weights on their way, identities and errors.

* `records/`: what lies in the topics, one module a record
* `config/`: the run's config, one module a section or two
* `weights/`: the plan of a refit's buckets, checksums, transports
* here: names and keys (`identity`), which row a slot gets (`draws`), errors, failpoints of tests, files of models

The lowest layer: imports nothing of the other packages, and torch only where a tensor is handled.
"""
