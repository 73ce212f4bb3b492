"""How weights travel: one file a transport, both of its ends in it, found by its name (`find.py`).

Each file has one `TRANSPORT` that keeps the protocol of `protocol.py`. Importing a file loads neither torch nor vLLM.
"""
