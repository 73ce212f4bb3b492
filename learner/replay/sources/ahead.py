"""Reading ahead: the next version's batch is fetched while the present one is trained."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from learner.replay.sources.sealed import SealedBatch, Source
from schemas.records.metrics import StepMetrics


class ReadAhead:
    """A source that one thread reads, up to version `last`. What cannot be read raises when it is asked for."""

    def __init__(self, source: Source, last: int) -> None:
        self.where = source.where
        self._source = source
        self._last = last
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._batches: dict[int, Future[SealedBatch]] = {}

    def step_metrics(self) -> Mapping[int, StepMetrics]:
        return self._worker.submit(self._source.step_metrics).result()

    def batch(self, version: int) -> SealedBatch:
        wanted = (version, version + 1) if version < self._last else (version,)
        self._batches = {v: self._batches.get(v) or self._worker.submit(self._source.batch, v) for v in wanted}
        return self._batches[version].result()

    def close(self) -> None:
        self._worker.shutdown(cancel_futures=True)
        self._source.close()
