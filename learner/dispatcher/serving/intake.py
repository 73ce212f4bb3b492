"""Judging records of version topics: valid groups and the first well-formed seal become events, the rest goes to quarantine.

Invariant: a seal becomes an event only after every record that it names, so an announced batch is always available. Partitions
are read independently, so after a restart the seal in partition 0 may well be read before groups in others.
"""

from __future__ import annotations

import hashlib
import logging

from broker_config.clients.reader import Record
from broker_config.clients.writer import LogWriter
from learner.dispatcher.deciding.events import GroupRead, GroupRefused, SealRead
from learner.dispatcher.state.slots import Kind
from schemas.config.config import Config
from schemas.errors import RecordRefused
from schemas.identity import Attempt
from schemas.records import seal as seals
from schemas.records.control import DatasetFacts
from schemas.records.quarantine import Quarantined
from schemas.records.seal import Seal
from schemas.records.validity import Rules, accept

log = logging.getLogger(__name__)


def rules_of(config: Config, uuid: str, dataset: DatasetFacts, vocab_size: int) -> Rules:
    """What a valid record of this run is."""
    return Rules(
        run=uuid,
        seed=config.run.seed,
        rows=dataset.rows,
        validation_rows=dataset.validation_rows,
        prompts_per_step=config.grpo.num_prompts_per_step,
        generations_per_prompt=config.grpo.num_generations_per_prompt,
        max_age=config.grpo.max_trajectory_age_steps,
        vocab_size=vocab_size,
        max_total_length=config.model.max_total_sequence_length,
        max_record_bytes=config.kafka.max_record_mib << 20,
    )


class Intake:
    """`judge` is a pure function of the record and the rules, but for seals: the first of a version counts, once it is due."""

    def __init__(self, rules: Rules, partitions: int, quarantine_topic: str, writer: LogWriter) -> None:
        self.rules = rules
        self._partitions = partitions
        self._topic = quarantine_topic
        self._writer = writer
        self._sealed: set[int] = set()
        self._early: dict[str, SealRead] = {}
        self._judged: dict[tuple[str, int], int] = {}

    def judge(self, record: Record, kind: Kind, version: int) -> list[GroupRead | GroupRefused | SealRead]:
        """What follows from the next record of its partition."""
        self._judged[record.topic, record.partition] = record.offset
        events: list[GroupRead | GroupRefused | SealRead] = []
        if record.headers.get("kind") == b"seal" and kind == "rollout":
            self._seal(record, version)
        else:
            events.append(self._group(record, kind, version))
        early = self._early.get(record.topic)
        if early is not None and self._all_judged(record.topic, early.seal):
            events.append(self._early.pop(record.topic))
        return events

    def forget(self, topic: str) -> None:
        """The topic is not read any more."""
        self._early.pop(topic, None)
        for partition in range(self._partitions):
            self._judged.pop((topic, partition), None)

    def _all_judged(self, topic: str, seal: Seal) -> bool:
        return all(self._judged.get((topic, entry.partition), -1) >= entry.offset for entry in seal.slots.values())

    def _group(self, record: Record, kind: Kind, version: int) -> GroupRead | GroupRefused:
        try:
            group, content = accept(record.value, record.headers, version, self.rules)
            if group.kind != kind:
                raise RecordRefused("version", f"a {group.kind} group in topic {record.topic}")
            if record.partition != group.request.slot % self._partitions:
                raise RecordRefused("slot", f"slot {group.request.slot} in partition {record.partition}")
        except RecordRefused as refused:
            self._refuse(record, refused)
            return GroupRefused(kind, version, _key(record), _producer(record), refused.reason)
        return GroupRead(group, record.partition, record.offset, record.headers["sha256"].decode(), content)

    def _seal(self, record: Record, version: int) -> None:
        if record.partition != 0 or version in self._sealed:
            return
        try:
            seal = seals.decode(record.value, run=self.rules.run, version=version, prompts_per_step=self.rules.prompts_per_step)
        except RecordRefused as refused:
            self._refuse(record, refused)
            return
        self._sealed.add(version)
        self._early[record.topic] = SealRead(seal, record.offset)

    def _refuse(self, record: Record, refused: RecordRefused) -> None:
        log.warning(
            "refused topic=%s partition=%d offset=%d key=%s: %s",
            record.topic,
            record.partition,
            record.offset,
            record.key,
            refused,
        )
        quarantined = Quarantined.of(
            uuid=self.rules.run,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            sha256=hashlib.sha256(record.value).hexdigest(),
            reason=refused.reason,
            detail=refused.detail,
            value=record.value,
        )
        self._writer.post(self._topic, quarantined.to_bytes(), key=record.key)


def _key(record: Record) -> str | None:
    """The record's key if it is one of a group."""
    if record.key is None:
        return None
    try:
        return str(Attempt.parse(record.key))
    except RecordRefused:
        return None


def _producer(record: Record) -> str | None:
    value = record.headers.get("producer")
    return value.decode("ascii", "replace") if value else None
