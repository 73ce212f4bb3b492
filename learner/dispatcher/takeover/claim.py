"""Taking a run over: make or find its topics, append a claim to `control`, find the last state of earlier incarnations.

Invariants: the incarnation is the claim's offset, so the highest claim wins by the log's own order; making `<run>.control` is the
lock of a new run, and if two learners make it at once, the first claim names the run; a record of another run, or of an
incarnation below an earlier claim's offset, is ignored.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.admin import TopicExists
from broker_config.clients.errors import MOMENTARY, broker_error, data_of, explain, kafka_error
from broker_config.clients.patience import NotYet, ask_patiently
from broker_config.clients.settings import make_consumer
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.topics import Topics, specs_for_run
from schemas.config.kafka import KafkaConfig
from schemas.errors import ConfigError, Problem, RecordRefused, RunStopped
from schemas.identity import new_uuid
from schemas.records import control
from schemas.records.control import Claim, State

log = logging.getLogger(__name__)

ASK_S = 10.0  # one question to the broker; asked again while an outage lasts
RETRY_S = 1.0
MAKER_S = 5.0  # how long an empty control topic is left to the learner that made it and is about to claim the run


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that this learner has claimed. `state`: the last one before the claim; `status_offset`: where to read `status`."""

    uuid: str
    incarnation: int
    state: State | None
    status_offset: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By name, of the topics that are not of a version."""


class ControlLog:
    """Reads `control` to its present end and keeps the last claim and state. `start`: the first offset to read."""

    def __init__(self, kafka: KafkaConfig, bootstrap: str, topics: Topics, start: int) -> None:
        self._kafka = kafka
        self._at = TopicPartition(topics.control, 0, start)
        self._consumer: Consumer = make_consumer(kafka, bootstrap, f"{topics.run_id}.control-log", f"{topics.run_id}.learner")
        self._consumer.assign([self._at])
        self.position = start
        self.claim_offset = -1
        self.claim: Claim | None = None
        self.state: State | None = None
        self.state_offset = -1
        self.uuid: str | None = None
        self.lower_wrote = False

    def read_to_end(self) -> None:
        """Read all records up to the present end.

        Raises:
            DeadlineExceeded: the broker did not answer in `kafka.outage_timeout_s`.
            BrokerError: it refuses.
        """
        deadline = Deadline(self._kafka.outage_timeout_s)
        end = self._end(deadline)
        while self.position < end:
            message = data_of(self._consumer.poll(min(0.5, deadline.remaining())))
            if message is None:
                deadline.check(f"control to be read from offset {self.position} to {end}")
                continue
            self.position = int(message.offset() or 0) + 1
            self._fold(int(message.offset() or 0), message.value() or b"")

    def _end(self, deadline: Deadline) -> int:
        """Where `control` ends now; an outage of the broker is waited out."""

        def ask() -> int:
            try:
                _, end = self._consumer.get_watermark_offsets(self._at, timeout=min(ASK_S, max(0.1, deadline.remaining())))
                return int(end)
            except KafkaException as error:
                if kafka_error(error).name() not in MOMENTARY:
                    raise broker_error("asking where control ends", error) from error
                log.warning("asking where control ends: %s", explain(kafka_error(error)))
                what = f"the broker to say where control ends (kafka.outage_timeout_s): {broker_error('asking', error)}"
                raise NotYet(what, RETRY_S) from error

        return ask_patiently(ask, deadline)

    def _fold(self, offset: int, value: bytes) -> None:
        try:
            record = control.decode(value)
        except RecordRefused as refused:
            log.warning("control offset=%d ignored: %s", offset, refused)
            return
        self.uuid = self.uuid or record.uuid
        if record.uuid != self.uuid:
            log.warning("control offset=%d ignored: it is of run %s, this is %s", offset, record.uuid, self.uuid)
            return
        if isinstance(record, Claim):
            self.claim_offset, self.claim = offset, record
        elif record.incarnation >= self.claim_offset:
            self.state, self.state_offset = record, offset
        else:
            self.lower_wrote = True

    def fence(self, incarnation: int) -> bool:
        """Read to the end; returns whether a lower incarnation wrote since the last call.

        Raises:
            RunStopped: another learner has claimed the run since.
            DeadlineExceeded, BrokerError: as `read_to_end`.
        """
        self.lower_wrote = False
        self.read_to_end()
        if self.claim_offset > incarnation and self.claim is not None:
            raise RunStopped(
                f"another learner took the run over: host={self.claim.host} pid={self.claim.pid} "
                f"incarnation={self.claim_offset}; this one was {incarnation}"
            )
        return self.lower_wrote

    def close(self) -> None:
        self._consumer.close()


def claim(
    kafka: KafkaConfig,
    bootstrap: str,
    client: AdminClient,
    writer: LogWriter,
    run_id: str,
    config_digest: str,
    uuid: str | None,
    reader: ControlLog | None = None,
) -> tuple[Claimed, ControlLog]:
    """Make or find the run's topics and append a claim.

    Args:
        uuid: None for a new run, the manifest's for a resumed one.
        reader: of the control topic, if it is open already.

    Raises:
        ConfigError: the run id belongs to another run.
        BrokerError, DeadlineExceeded: the broker refuses, or does not answer in time.
    """
    topics = Topics(run_id)
    specs = specs_for_run(run_id, kafka)
    deadline = Deadline(kafka.timeout_s)
    made = True
    try:
        admin.create_topics(client, [specs["control"]], deadline)
    except TopicExists:
        made = False
        log.info("control exists; run=%s", run_id)
    if reader is None:
        start = admin.log_bounds(client, [(topics.control, 0)], deadline)[topics.control, 0].start
        reader = ControlLog(kafka, bootstrap, topics, start)
    reader.read_to_end()
    if not made and uuid is None:
        _leave_to_maker(reader)
    own = uuid or new_uuid()
    _check_uuid(reader, run_id, own, new=uuid is None)
    others = [specs["status"], specs["requests"], specs["quarantine"], specs["metrics"]]
    ids = admin.create_topics(client, [specs["control"], *others], deadline, adopt_existing=True)
    status_offset = admin.log_bounds(client, [(topics.status, 0)], deadline)[topics.status, 0].end
    record = Claim(uuid=own, host=socket.gethostname(), pid=os.getpid(), config_digest=config_digest)
    incarnation = writer.write(topics.control, record.to_bytes(), key="claim").result(kafka.timeout_s)
    reader.fence(incarnation)
    _check_uuid(reader, run_id, own, new=uuid is None)
    log.info("claimed run=%s uuid=%s incarnation=%d", run_id, own, incarnation)
    # What an earlier learner wrote up to the claim counts; what it writes after the claim does not.
    return Claimed(own, incarnation, reader.state, status_offset, ids), reader


def _leave_to_maker(reader: ControlLog) -> None:
    deadline = Deadline(MAKER_S)
    while reader.uuid is None and not deadline.expired:
        time.sleep(min(0.1, deadline.remaining()))
        reader.read_to_end()


def _check_uuid(reader: ControlLog, run_id: str, own: str, *, new: bool) -> None:
    """The run on `control` must be this one.

    Raises:
        ConfigError: the first record of control names another run.
    """
    if reader.uuid is None or reader.uuid == own:
        return
    reader.close()
    why = "this run id is in use already" if new else "this run id belongs to another run"
    fix = "give another run.id, or resume the run with --resume"
    raise ConfigError([Problem("run.id", run_id, f"{why} (uuid {reader.uuid})", fix)])
