"""The shell around the dispatcher's core: records and questions in, requests, seals, states and answers out.

All Kafka clients of a learner live here. `deciding/` and `state/` must not import it.
"""
