"""python -m launch.models tiny .cache/models/tiny

Make one of the demonstration models at a path. Does nothing when it is there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.models.recipes import RECIPES, build
from schemas.errors import WeirError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m launch.models", description="Make a demonstration model.")
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    try:
        build(arguments.recipe, arguments.path)
    except WeirError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
