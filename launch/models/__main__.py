"""python -m launch.models tiny .cache/models/tiny

Makes one of the demonstration models at a path, unless there is one already.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.exit_codes import FINISHED, WRONG_INPUT
from launch.models.recipes import RECIPES, make_model
from schemas.errors import WeirError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m launch.models", description="Make one of the demonstration models.")
    parser.add_argument("recipe", choices=sorted(RECIPES), help="which model")
    parser.add_argument("path", type=Path, help="folder to make it in; nothing is done if it holds a model")
    arguments = parser.parse_args()
    try:
        make_model(arguments.recipe, arguments.path)
    except WeirError as error:
        sys.stderr.write(f"{error}\n")
        return WRONG_INPUT
    return FINISHED


if __name__ == "__main__":
    sys.exit(main())
