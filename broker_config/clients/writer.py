"""Writing logs: one idempotent producer, whose every delivery report is evaluated.

Invariants: only its delivery report makes a record count as written; a failed delivery reaches the caller through the record's
future, or, if nobody waits for it, ends the process through `failed`. librdkafka never forgets a topic, so the client is renewed
after `RENEW_AFTER` topics.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from broker_config.clients.errors import broker_error, explain
from broker_config.clients.settings import make_producer
from broker_config.deadline import Deadline
from broker_config.topics import max_message_bytes
from schemas.config.kafka import KafkaConfig
from schemas.errors import BrokerError
from schemas.records.headers import Headers

RENEW_AFTER = 64  # topics
POLL_S = 0.1


class LogWriter:
    """Thread-safe. Callbacks of the futures run on the writer's own thread and must be short."""

    def __init__(self, kafka: KafkaConfig, bootstrap: str, name: str, failed: Callable[[BaseException], None]) -> None:
        self._kafka = kafka
        self._make: Callable[[], Producer] = lambda: make_producer(kafka, bootstrap, name)
        self._failed = failed
        self._lock = threading.Lock()
        self._producer = self._make()
        self._topics: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-writer", daemon=True)
        self._thread.start()

    def write(
        self, topic: str, value: bytes, *, key: str | None = None, headers: Headers | None = None, partition: int = 0
    ) -> Future[int]:
        """Queue a record. The future holds its offset (-1 if the broker already had it), or a `BrokerError`.

        Raises:
            BrokerError: the record is larger than the run allows, or the queue is full.
        """
        limit = max_message_bytes(self._kafka)
        if len(value) > limit:
            raise BrokerError(
                f"record {key} for {topic} has {len(value)} bytes, but only {limit} are allowed; raise kafka.max_record_mib "
                "(in a new run), or make groups or completions smaller"
            )
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                future.set_result(-1 if offset is None else int(offset))
                return
            failure = BrokerError(f"writing {key or 'a record'} to {topic}: {explain(error)}")
            future.set_exception(failure)

        with self._lock:
            self._renew_if_due(topic)
            try:
                self._producer.produce(topic, value=value, key=key, headers=headers, partition=partition, on_delivery=delivered)
            except BufferError:
                raise BrokerError(
                    f"the queue of unwritten records is full when writing {key} to {topic}; is the broker down?"
                ) from None
            except KafkaException as error:
                raise broker_error(f"writing {key or 'a record'} to {topic}", error) from error
        return future

    def post(self, topic: str, value: bytes, **how: Any) -> None:
        """`write` a record that nobody waits for: a failed delivery is reported to `failed`."""
        self.write(topic, value, **how).add_done_callback(self.judge)

    def judge(self, future: Future[int]) -> None:
        """The callback of a future that nobody waits for: a failed delivery is reported to `failed`."""
        error = future.exception()
        if error is not None:
            self._failed(error)

    def flush(self, deadline: Deadline) -> None:
        """Wait until every queued record is delivered or has failed.

        Raises:
            DeadlineExceeded: some records are still queued.
        """
        with self._lock:
            left = self._producer.flush(deadline.remaining())
        if left:
            raise deadline.exceeded(f"{left} records to be written; is the broker up?")

    def close(self, deadline: Deadline) -> None:
        """Flush, then end.

        Raises:
            DeadlineExceeded: as in `flush`; the writer is closed all the same.
        """
        try:
            self.flush(deadline)
        finally:
            self._stop.set()
            self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._producer.poll(POLL_S)  # returns as soon as there is a delivery report
        except KafkaException as error:
            self._failed(broker_error("writing", error))
        except Exception as error:  # noqa: BLE001 - top of a thread: whatever it is, the owner must hear of it
            self._failed(error)

    def _renew_if_due(self, topic: str) -> None:
        self._topics.add(topic)
        if len(self._topics) > RENEW_AFTER and not self._producer.flush(self._kafka.timeout_s):
            self._producer = self._make()
            self._topics = {topic}
