"""Reads a run's control, status and metrics topics into a `RunView`, in its own thread.

Only reads: joins no group, commits nothing. Topics that are not there yet are looked for once a second. A broker that is away is
waited for, and the view continues when it is back; how long that may take is up to the supervisor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from broker_config.clients.errors import data_of
from broker_config.clients.settings import make_consumer
from broker_config.topics import Topics
from launch.folders import RunFolder, last_validation
from launch.observe.run_view import RunSnapshot, RunView
from schemas.config.kafka import KafkaConfig
from schemas.errors import BrokerError, DeadlineExceeded, RecordRefused
from schemas.records import control, status
from schemas.records.metrics import StepMetrics

log = logging.getLogger(__name__)

LOOK_S = 1.0
POLL_S = 0.2
METADATA_S = 5.0
CLOSE_S = 10.0
BEAT_KEY = b"beat"
BEFORE_SINCE = 64
"""Records of `status` before `since` that are searched for the last beat, which shows how a run stood when it ended."""


def feed(view: RunView, topics: Topics, topic: str, value: bytes, at: float, offset: int) -> None:
    """Put one record into the view.

    Raises:
        RecordRefused: it is no record of its topic. Its readers in the run deal with that.
    """
    if topic == topics.control:
        view.control(control.decode(value), at, offset)
    elif topic == topics.status:
        view.status(status.decode(value), at)
    elif topic == topics.metrics:
        view.metrics(StepMetrics.from_bytes(value), at)


class RunWatch:
    """A view that follows a run.

    Args:
        started: when the run began; None takes the time of its first record.
        resuming: what is on control already belongs to an earlier part of the run and is left out.
        folder: the run's, if it is on this machine: results of validations are read there.
        since: `status` is read from this time on (seconds since the epoch), and of what came before only the last beats;
            control and metrics are read whole.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        bootstrap: str,
        run_id: str,
        *,
        started: float | None = None,
        resuming: bool = False,
        folder: RunFolder | None = None,
        since: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kafka, self._bootstrap = kafka, bootstrap
        self._topics = Topics(run_id)
        self._since = since
        self._resuming = resuming
        self._folder = folder
        self._clock = clock
        self._next: dict[str, int] = {}
        self._recent = 0  # first offset of `status` that is not before `since`
        self._view = RunView(run_id, started)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._caught_up = threading.Event()
        self._from_control = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def snapshot(self) -> RunSnapshot:
        with self._lock:
            return self._view.snapshot(self._clock())

    def topics(self) -> list[str]:
        """The topics that the run uses at present, as far as the view knows."""
        with self._lock:
            window = self._view.open_versions()
        names = self._topics
        return [names.control, names.status, names.requests, names.metrics, *map(names.trajectories, window)]

    def process(self, name: str, doing: str) -> None:
        with self._lock:
            self._view.process(name, doing)

    def broker(self, doing: str) -> None:
        with self._lock:
            self._view.broker(doing)

    @property
    def caught_up(self) -> threading.Event:
        """Set once all three topics were read to their ends."""
        return self._caught_up

    def wait_for_control(self, timeout_s: float) -> None:
        """Wait until it is settled from which record on control is read, so that no claim of a learner started later is missed.

        Raises:
            DeadlineExceeded: the run has no control topic on this broker, or the broker does not answer.
        """
        if not self._from_control.wait(timeout_s):
            what = f"topic {self._topics.control} to be found at {self._bootstrap}"
            raise DeadlineExceeded(f"waited {timeout_s:g} s for {what}; is it the broker of this run?")

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                consumer = make_consumer(
                    self._kafka, self._bootstrap, "weir.watch", f"{self._topics.run_id}.watch", partition_eof=True
                )
                try:
                    self._follow(consumer)
                finally:
                    consumer.close()
            except (BrokerError, KafkaException) as error:
                log.warning("the view lost the run's topics; looking for them again: %s", error)
                self._ending.wait(LOOK_S)

    def _follow(self, consumer: Consumer) -> None:
        wanted = {self._topics.control, self._topics.status, self._topics.metrics}
        assigned: dict[str, TopicPartition] = {}
        behind = set(wanted)
        looked = -LOOK_S
        while not self._ending.is_set():
            if time.monotonic() - looked >= LOOK_S:
                looked = time.monotonic()
                self._read_validation()
                for name in self._visible(consumer, wanted - assigned.keys()):
                    assigned[name] = self._start_of(consumer, name)
                    consumer.incremental_assign([assigned[name]])
                if self._topics.control in assigned:
                    self._from_control.set()
            if not assigned:
                self._ending.wait(POLL_S)
                continue
            polled = consumer.poll(POLL_S)
            if polled is not None and polled.error() is not None:
                behind.discard(polled.topic() or "")
            message = data_of(polled)
            if message is not None:
                self._take(message)
            elif not behind:
                self._caught_up.set()

    def _read_validation(self) -> None:
        found = last_validation(self._folder.validation) if self._folder is not None else None
        if found is not None:
            with self._lock:
                self._view.validation(found)

    def _visible(self, consumer: Consumer, names: set[str]) -> set[str]:
        if not names:
            return set()
        try:
            known = consumer.list_topics(timeout=METADATA_S).topics
            return {name for name in names if name in known}
        except KafkaException:
            return set()  # the broker is away; looked for again

    def _start_of(self, consumer: Consumer, topic: str) -> TopicPartition:
        if topic in self._next:
            return TopicPartition(topic, 0, self._next[topic])  # a new consumer continues where the last one ended
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=METADATA_S)
        start = high if topic == self._topics.control and self._resuming else low
        if topic == self._topics.status and self._since is not None:
            asked = TopicPartition(topic, 0, int(self._since * 1000))
            (found,) = consumer.offsets_for_times([asked], timeout=METADATA_S)
            self._recent = found.offset if found.offset >= 0 else high
            start = self._recent if self._resuming else max(low, self._recent - BEFORE_SINCE)
        return TopicPartition(topic, 0, start)

    def _take(self, message: Message) -> None:
        topic, value = message.topic(), message.value()
        if topic is None or value is None:
            return
        at, offset = message.timestamp()[1] / 1000, message.offset() or 0
        self._next[topic] = offset + 1
        if topic == self._topics.status and offset < self._recent and message.key() != BEAT_KEY:
            return
        try:
            with self._lock:
                feed(self._view, self._topics, topic, bytes(value), at, offset)
        except RecordRefused as refused:
            log.warning("unreadable record topic=%s offset=%d: %s", topic, offset, refused)
