"""The `weir` command: a thin door to the packages."""

from launch.cli.app import main

__all__ = ["main"]
