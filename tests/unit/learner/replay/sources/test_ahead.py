"""Batches come one ahead, in order, each read once."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import cast

import pytest

from learner.replay.sources.ahead import ReadAhead
from learner.replay.sources.sealed import SealedBatch, Source
from schemas.errors import WeirError
from schemas.records.metrics import StepMetrics

WITHIN_S = 10.0
RECORDED = cast(Mapping[int, StepMetrics], {0: "recorded"})


def batch_of(version: int) -> SealedBatch:
    return cast(SealedBatch, f"batch {version}")


class Recording:
    """Records what is read; version 3 is damaged."""

    where = "a test"

    def __init__(self) -> None:
        self.read: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.closed = False

    def step_metrics(self) -> Mapping[int, StepMetrics]:
        return RECORDED

    def batch(self, version: int) -> SealedBatch:
        self.read.put(version)
        if version == 3:
            raise WeirError("version 3 is damaged")
        return batch_of(version)

    def close(self) -> None:
        self.closed = True


def test_the_next_batch_is_read_while_the_present_one_is_used_and_each_once() -> None:
    inner = Recording()
    source = ReadAhead(cast(Source, inner), last=2)
    assert source.step_metrics() == RECORDED
    assert source.batch(0) == batch_of(0)
    assert [inner.read.get(timeout=WITHIN_S) for _ in range(2)] == [0, 1]  # 1 was not asked for yet
    assert [source.batch(version) for version in (0, 1)] == [batch_of(0), batch_of(1)]
    assert inner.read.get(timeout=WITHIN_S) == 2
    assert source.batch(2) == batch_of(2)
    source.close()
    assert inner.closed and inner.read.empty()


def test_what_cannot_be_read_is_reported_when_it_is_asked_for() -> None:
    source = ReadAhead(cast(Source, Recording()), last=3)
    assert source.batch(2) == batch_of(2)
    with pytest.raises(WeirError, match="version 3 is damaged"):
        source.batch(3)
    source.close()


def test_a_version_past_the_last_one_is_read_when_asked_for() -> None:
    source = ReadAhead(cast(Source, Recording()), last=0)
    assert source.batch(5) == batch_of(5)
    source.close()
