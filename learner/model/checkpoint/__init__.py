"""Hugging Face checkpoints: read into this rank's parameters, and written from them, bit for bit.

The learner's own checkpoints are `learner/checkpoint/`; families of models are `learner/model/families/`.
"""
