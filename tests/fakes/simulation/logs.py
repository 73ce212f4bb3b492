"""Simulated logs: lists that each reader reads at its own pace; order is kept within a partition and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.records.group import TrajectoryGroup

Topic = tuple[str, int]
Partition = tuple[Topic, int]
CONTROL, STATUS, REQUESTS = ("control", -1), ("status", -1), ("requests", -1)


@dataclass(frozen=True)
class Published:
    """A group in the log. `versions`: of its tokens, in order; `corrupt`: it is refused by whoever reads it."""

    group: TrajectoryGroup
    versions: tuple[int, ...]
    corrupt: bool = False


@dataclass(frozen=True)
class Settings:
    """What a world is made with."""

    max_age: int = 1
    mode: str = "keep"
    producers: int = 2
    steps: int = 5
    slots: int = 3
    val_period: int = 0
    partitions: int = 2
    save_period: int = 2
    group_size: int | None = None
    dynamic_sampling: bool = False
    """Whether groups of equal rewards are left out; every third draw is one."""
    same_weights_again: bool = True
    """Whether training a version again gives the same weights."""


class Logs:
    """Every topic, each a list of records a partition."""

    def __init__(self) -> None:
        self.partitions: dict[Partition, list[Any]] = {}
        self.topics: dict[Topic, int] = {}

    def make(self, topic: Topic, partitions: int) -> None:
        if topic not in self.topics:
            self.topics[topic] = partitions
            for p in range(partitions):
                self.partitions[topic, p] = []

    def append(self, topic: Topic, record: Any, partition: int = 0) -> int:
        log = self.partitions[topic, partition]
        log.append(record)
        return len(log) - 1


class Reader:
    """One process's positions."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.positions: dict[Partition, int] = {}

    def waiting(self) -> list[Partition]:
        return [p for p, at in self.positions.items() if at < len(self.logs.partitions[p])]

    def next(self, partition: Partition) -> tuple[int, Any]:
        at = self.positions[partition]
        self.positions[partition] = at + 1
        return at, self.logs.partitions[partition][at]
