"""Small whole checkpoints, and the ways in which one can be damaged."""

from __future__ import annotations

import json
from pathlib import Path

from learner.checkpoint.manifest import Manifest, Offsets
from tests.fakes.learner import saved
from tests.fakes.learner.facts import FACTS

DAMAGES = ("no manifest", "half a manifest", "no data", "short data", "another step's")


def manifest(version: int, *, state: str = "s", incarnation: int = 3) -> Manifest:
    return Manifest(
        run="uuid",
        version=version,
        incarnation=incarnation,
        topic_ids={"r.control": "a"},
        next_offsets=Offsets(control=4, status=9, requests={0: 2, 1: 0}),
        state_digest=state,
        weights_digest="w",
        config_digest="c",
        determinism=FACTS,
    )


def write(folder: Path) -> None:
    (folder / "megatron").mkdir()
    (folder / "megatron" / "__0_0.distcp").write_bytes(b"weights")


def save(root: Path, version: int, **keys: object) -> Path:
    return saved.save(root, manifest(version, **keys), write)  # type: ignore[arg-type]


def damage(folder: Path, how: str) -> None:
    data = folder / "megatron" / "__0_0.distcp"
    match how:
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "half a manifest":
            (folder / "manifest.json").write_text((folder / "manifest.json").read_text()[:40])
        case "no data":
            data.unlink()
        case "short data":
            data.write_bytes(b"wei")
        case "another step's":
            record = json.loads((folder / "manifest.json").read_text())
            (folder / "manifest.json").write_text(json.dumps(record | {"version": 1}))
