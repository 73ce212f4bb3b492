"""Models that this machine can make for itself, so that the demonstration runs need no hub and no account.

    recipes.py    the recipes by name; making a model once
    tiny.py       a Qwen3 of 100 thousand parameters, half trained on operations on digits
    smollm2.py    SmolLM2-135M-Instruct, from a package of the Python package index

Recipes import torch and transformers, inside their functions: the names of the recipes are wanted where neither is imported.
"""

from launch.models.recipes import RECIPES, make_model

__all__ = ["RECIPES", "make_model"]
