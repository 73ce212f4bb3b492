"""The weights of one version on their way from the learner to the producers: what both ends must agree on.

`plan` (order and buckets), `checksum`, `probe` and `last_word` say what travels; `transports/` how. torch is imported where
tensors are handled, never when a module is loaded. Knows nothing of Kafka, of vLLM's engines or of Megatron.
"""
