"""What samples tokens.

* `protocol`: what the producer needs of an engine
* `vllm_engine`: vLLM in this process
* `vllm_arguments`: what a config means to vLLM
* `thread`: the one thread that may touch an engine
* `scripted_engine`: no model, scripted delays and faults, real transfers

Only `vllm_engine` imports vLLM, and only when an engine is made. Nothing here knows of Kafka, data or environments.
"""
