"""The policy: a Megatron model with its optimizer, made from a Hugging Face checkpoint and written back as one.

`policy.py` is the door: nothing outside this folder imports another module of it, except for `families`. What differs from one
kind of model to the next is in `families/`, a file each; every other module here works for all of them.

This file imports nothing. The config check reads `families` and must stay free of torch; megatron-core comes in through
`megatron.py` alone.
"""
