"""Kafka's errors in words: which of them concern the caller, what they mean, what to check.

A `KafkaError`'s text can be a kilobyte of request dump, so a message is made of the error's name and the start of its first line.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

from schemas.errors import BrokerAway, BrokerError, OffsetGone

log = logging.getLogger(__name__)

REPEAT_S = 30.0  # librdkafka reports a lost broker several times a second; a person needs it once

_ADVICE = {
    "TOPIC_AUTHORIZATION_FAILED": "the user lacks a right on the topic: check its ACLs (READ, WRITE, CREATE, DELETE, ...)",
    "CLUSTER_AUTHORIZATION_FAILED": "the user lacks a right on the cluster: check its ACLs",
    "GROUP_AUTHORIZATION_FAILED": "the user lacks a right on the consumer group: check its ACLs (DESCRIBE, READ)",
    "MSG_SIZE_TOO_LARGE": "the record is larger than the topic's max.message.bytes: raise kafka.max_record_mib for a new run",
    "UNKNOWN_TOPIC_OR_PART": "the topic does not exist, was deleted, or is hidden by ACLs",
    "INVALID_REPLICATION_FACTOR": "fewer brokers than kafka.replication_factor",
    "INVALID_CONFIG": "the broker refuses a topic setting",
    "POLICY_VIOLATION": "a policy of the broker forbids it",
    "NOT_ENOUGH_REPLICAS": "fewer replicas in sync than kafka.min_insync_replicas: a broker is down",
    "KAFKA_STORAGE_ERROR": "a disk of the broker is full or broken; its log says which: make room there",
    "OFFSET_OUT_OF_RANGE": "the offset is outside the log",
    "_AUTO_OFFSET_RESET": "the offset is outside the log: records were deleted, or the topic is another one of the same name",
    "_AUTHENTICATION": "the broker refuses the login: check kafka.security",
    "_SSL": "the TLS handshake fails: check kafka.security.ca_location and the host name",
}

# Faults from which librdkafka recovers by itself; a consumer that meets one keeps polling.
PASSING = frozenset({"_PARTITION_EOF", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_WAIT_COORD", "_RESOLVE"})

# Answers of a broker around its restart, when it was fenced, or when its disk is full, which ends it; a little later the same
# call works.
MOMENTARY = PASSING | {
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_CONTROLLER",
    "REQUEST_TIMED_OUT",
    "BROKER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "KAFKA_STORAGE_ERROR",
    "_NOENT",
    # The client's own, while it knows of no broker that leads the partition: a broker that stood still for longer than its
    # session is fenced, and absent from the metadata until it has reported again.
    "_UNKNOWN_PARTITION",
    "_DESTROY_BROKER",
}


def kafka_error(exception: KafkaException) -> KafkaError:
    """The error inside an exception of confluent-kafka."""
    error = exception.args[0]
    if not isinstance(error, KafkaError):
        raise TypeError(f"not a Kafka error: {error!r}") from exception
    return error


def explain(error: KafkaError) -> str:
    """`NAME (text): advice` on one line."""
    text = error.str().splitlines()[0][:200] if error.str() else ""
    words = f"{error.name()} ({text})" if text else error.name()
    advice = _ADVICE.get(error.name())
    return f"{words}: {advice}" if advice else words


def broker_error(doing: str, exception: KafkaException) -> BrokerError:
    """The error to raise when Kafka refused while `doing`; `BrokerAway` if the same call may succeed later."""
    error = kafka_error(exception)
    kind = BrokerAway if error.name() in MOMENTARY else BrokerError
    return kind(f"{doing}: {explain(error)}")


def data_of(message: Message | None) -> Message | None:
    """The record that `Consumer.poll` returned; None for nothing, an end of partition or a passing fault.

    Raises:
        OffsetGone: the offset is outside the log.
        BrokerError: the partition can no longer be read for another reason (rights, unreadable batch, unknown code).
    """
    if message is None:
        return None
    error = message.error()
    if error is None:
        return message
    if error.name() in PASSING and not error.fatal():
        return None
    what = f"reading {message.topic()}[{message.partition()}] at offset {message.offset()}: {explain(error)}"
    raise OffsetGone(what) if error.name() == "_AUTO_OFFSET_RESET" else BrokerError(what)


class ErrorLog:
    """An `error_cb` that writes to Python's logging: a new fault at once, a repeated one at most every 30 s, with its count.

    Never raises: an exception in a callback would surface in an unrelated call of the client.
    """

    def __init__(self, client_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client_id = client_id
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_at: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def __call__(self, error: KafkaError) -> None:
        name = error.name()
        now = self._clock()
        with self._lock:
            logged_at = self._logged_at.get(name)
            if logged_at is not None and now - logged_at < REPEAT_S:
                self._suppressed[name] = self._suppressed.get(name, 0) + 1
                return
            self._logged_at[name] = now
            suppressed = self._suppressed.pop(name, 0)
        again = f", {suppressed} more since the last line" if suppressed else ""
        log.warning("Kafka client reports %s%s client=%s", explain(error), again, self._client_id)
