"""How a benchmark tells its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def tell(figures: Mapping[str, float], out: Path | None) -> None:
    """A line each, and all of them as JSON in the file `out`."""
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:>12.4g}")
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n")
