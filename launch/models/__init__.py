"""Models that this machine can make for itself, so that the demonstration runs need no hub and no account."""

from launch.models.recipes import RECIPES, build

__all__ = ["RECIPES", "build"]
