"""The topic of one version as it lies in the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.errors import RecordRefused
from schemas.records import seal as seals
from schemas.records.group import TrajectoryGroup, decode
from schemas.records.headers import as_mapping
from schemas.records.seal import Seal


@dataclass(frozen=True, slots=True)
class Version:
    """Well-formed groups by offset with the time of each, and the first seal."""

    number: int
    groups: dict[int, TrajectoryGroup]
    times: dict[int, float]
    seal: Seal

    @classmethod
    def of(cls, number: int, records: Sequence[Any], uuid: str, prompts_per_step: int) -> Version:
        groups, times, sealed = {}, {}, []
        for record in records:
            if as_mapping(record.headers()).get("kind") == b"seal":
                sealed.append(seals.decode(record.value(), run=uuid, version=number, prompts_per_step=prompts_per_step))
                continue
            try:
                groups[record.offset()] = decode(record.value())
            except RecordRefused:
                continue  # written by a test
            times[record.offset()] = record.timestamp()[1] / 1000
        assert sealed, f"version {number} was trained without a seal"
        return cls(number, groups, times, sealed[0])

    def trained(self) -> dict[int, TrajectoryGroup]:
        """The batch, by slot."""
        return {slot: self.groups[entry.offset] for slot, entry in self.seal.slots.items()}
