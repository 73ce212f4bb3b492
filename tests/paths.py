"""Where the repository lies: the only module that knows how deep the tests are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
