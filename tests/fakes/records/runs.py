"""Builders: a run's raw config, and records of its topics as they lie in the log."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from broker_config.clients.reader import Record
from broker_config.topics import Topics
from schemas.identity import seal_key
from schemas.records import group as groups
from schemas.records import seal as seals
from schemas.records.group import TrajectoryGroup
from schemas.records.headers import as_mapping, of_group, of_seal
from schemas.records.json_record import JsonRecord
from schemas.records.seal import Seal, SealedSlot
from tests.fakes.records.make import UUID

RUN = "tiny-20260101-120000"


def raw_config(**changes: Any) -> dict[str, Any]:
    """A small valid run; `grpo__max_num_steps=3` changes one key, `data=None` a section."""
    raw: dict[str, Any] = {
        "run": {"name": "tiny"},
        "model": {"path": "nowhere/tiny", "build": "tiny", "dtype": "float32", "max_total_sequence_length": 64},
        "data": {"train": "environment"},
        "environment": {"name": "tiny_inc"},
        "grpo": {"num_prompts_per_step": 16, "num_generations_per_prompt": 16, "max_num_steps": 40},
        "generation": {"max_new_tokens": 5},
        "producer": {"count": 2},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            raw.setdefault(section, {})[name] = value
        else:
            raw[section] = value
    return raw


def make_seal(version: int = 12, slots: int = 2, later: Sequence[int] = ()) -> Seal:
    digest = hashlib.sha256(b"x").hexdigest()
    entries = {slot: SealedSlot(int(slot in later), 0, 0, slot, digest, digest) for slot in range(slots)}
    return Seal(UUID, 4, "c0ffee", version, entries)


def _record(topic: str, key: str | None, value: bytes, headers: Any = (), offset: int = 0) -> Record:
    return Record(topic, 0, offset, key, value, as_mapping(headers), 1_700_000_000_000)


def group_record(group: TrajectoryGroup, run_id: str = RUN, offset: int = 0) -> Record:
    value = groups.encode(group)
    topic = Topics(run_id).trajectories(group.request.version)
    return _record(topic, str(group.request), value, of_group(group, value), offset)


def seal_record(seal: Seal, run_id: str = RUN, offset: int = 0) -> Record:
    value = seals.encode(seal)
    return _record(Topics(run_id).trajectories(seal.version), seal_key(seal.version), value, of_seal(seal, value), offset)


def json_record(topic: str, record: JsonRecord, run_id: str = RUN, offset: int = 0) -> Record:
    return _record(f"{run_id}.{topic}", None, record.to_bytes(), (), offset)
