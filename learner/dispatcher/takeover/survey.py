"""What a run has on its broker before it is resumed. Reads only.

Seals are found by the offsets in the metrics topic, so that the groups of long versions need not be read twice. A version without
such a record is read from its start.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.settings import make_consumer
from broker_config.clients.stored import read_to_end
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from learner.checkpoint.manifest import Manifest
from learner.dispatcher.takeover.continuity import Holdings, known_topics, sealed_versions
from schemas.config.config import Config
from schemas.errors import RecordRefused
from schemas.records import seal as seals
from schemas.records.control import State
from schemas.records.metrics import StepMetrics
from schemas.records.seal import Seal

log = logging.getLogger(__name__)

Place = tuple[str, int, int]


class Survey:
    """Reads the topics of the run whose checkpoint is `manifest` and whose last control state is `state`.

    Raises:
        BrokerError, DeadlineExceeded: (all methods) the broker refuses, or does not answer in time.
    """

    def __init__(self, config: Config, bootstrap: str, client: AdminClient, manifest: Manifest, state: State | None) -> None:
        self._config = config
        self._client = client
        self._manifest = manifest
        self._state = state
        self._topics = Topics(config.run_id)
        self._consumer: Consumer = make_consumer(config.kafka, bootstrap, f"{config.run_id}.survey", f"{config.run_id}.learner")

    def close(self) -> None:
        self._consumer.close()

    def recorded(self) -> dict[int, StepMetrics]:
        """What was recorded of the steps that will be trained again, by step; of several records of a step, the last."""
        versions = sealed_versions(self._manifest, self._state)
        where = (self._topics.metrics, 0)
        if not versions or where[0] not in admin.describe(self._client, [where[0]], self._deadline()):
            return {}
        bounds = admin.log_bounds(self._client, [where], self._deadline())[where]
        start = min(max(bounds.start, self._manifest.next_offsets.metrics), bounds.end)
        found = {}
        for record in read_to_end(self._consumer, {where: (start, bounds.end)}, self._deadline()):
            try:
                metrics = StepMetrics.from_bytes(record.value or b"")
            except RecordRefused as refused:
                log.warning("%s ignored: %s", record.where, refused)
                continue
            if metrics.uuid == self._manifest.run and metrics.step in versions:
                found[metrics.step] = metrics
        return found

    def holdings(self, recorded: Mapping[int, StepMetrics], *, read_all: bool = False) -> Holdings:
        """What the broker has of all that is needed. `recorded`: what `recorded()` returned; `read_all`: hash sealed records."""
        names = known_topics(self._topics, self._manifest, self._state)
        topics = admin.describe(self._client, names, self._deadline())
        sealed = {v: self._topics.trajectories(v) for v in sealed_versions(self._manifest, self._state)}
        single = [(name, 0) for name in (self._topics.control, self._topics.status) if name in topics]
        versioned = [(name, p) for name in sealed.values() if name in topics for p in range(topics[name].partitions)]
        bounds = admin.log_bounds(self._client, [*single, *versioned], self._deadline())
        found = {}
        for version, name in sealed.items():
            if name in topics:
                end = bounds[name, 0].end
                step = recorded.get(version)
                at = step.seal_offset if step is not None else None
                found[version] = self._seal_of(version, name, bounds[name, 0].start, end, at)
        return Holdings(topics, bounds, found, self._digests(found, bounds) if read_all else None)

    def _digests(self, found: Mapping[int, Seal | None], bounds: Mapping[admin.Partition, admin.LogBounds]) -> dict[Place, str]:
        digests = {}
        for version, seal in found.items():
            topic = self._topics.trajectories(version)
            sealed = {(entry.partition, entry.offset) for entry in seal.slots.values()} if seal is not None else set()
            ranges = {where: (b.start, b.end) for where, b in bounds.items() if where[0] == topic and sealed}
            for record in read_to_end(self._consumer, ranges, self._deadline()):
                if (record.partition, record.offset) in sealed:
                    digests[topic, record.partition, record.offset] = hashlib.sha256(record.value or b"").hexdigest()
        return digests

    def _seal_of(self, version: int, topic: str, start: int, end: int, at: int | None) -> Seal | None:
        """The first well-formed seal. If there is one at the offset `at`, nothing else is read."""
        tried = [(at, at + 1)] if at is not None and start <= at < end else []
        for first, last in [*tried, (start, end)]:
            for record in read_to_end(self._consumer, {(topic, 0): (first, last)}, self._deadline()):
                if record.header("kind") != b"seal":
                    continue
                try:
                    return seals.decode(
                        record.value or b"",
                        run=self._manifest.run,
                        version=version,
                        prompts_per_step=self._config.grpo.num_prompts_per_step,
                    )
                except RecordRefused as refused:
                    log.warning("%s is no seal: %s", record.where, refused)
        return None

    def _deadline(self) -> Deadline:
        return Deadline(self._config.kafka.timeout_s)
