"""The receiving end of a refit, inside the engine.

* `staging`: all weights of a version received and checked before any is loaded
* `transfer_engine`: vLLM's weight-transfer engine, the worker's side, over any of `schemas/weights/transports/`

`transfer_engine` imports vLLM and torch, and runs in vLLM's workers. `staging` imports torch when it receives, and never vLLM:
the scripted engine uses it too. Nothing here knows of Kafka.
"""
