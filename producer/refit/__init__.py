"""The receiving end of a refit, inside the engine.

* `staging`: all weights of a version received and checked before any is loaded
* `gloo_engine`: vLLM's weight-transfer engine over gloo, the worker's side, and the registration of both engines
* `nccl_engine`: the same over NCCL

`gloo_engine` and `nccl_engine` import vLLM and torch, and run in vLLM's workers. `staging` imports torch when it receives, and
never vLLM: the scripted engine uses it too. Nothing here knows of Kafka.
"""
