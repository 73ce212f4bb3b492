"""Every setting of every Kafka client, by role. Each one that differs from librdkafka's default has its reason beside it.

Rules that the settings keep: nothing is created by accident, nothing is skipped silently, no client joins a consumer group
(`assign()` with explicit offsets only), and a client that has lost its broker says so once, not twenty times a second.
A `Consumer` belongs to one thread: its calls wait for each other, so polls are short (at most 0.5 s).
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from broker_config.clients.errors import ErrorLog
from broker_config.clients.security import security_settings
from broker_config.topics import MIB, max_message_bytes
from schemas.config.kafka import KafkaConfig

Settings = dict[str, Any]

LIBRDKAFKA_RECEIVE_DEFAULT = 100_000_000


def _common(kafka: KafkaConfig, bootstrap: str, client_id: str) -> Settings:
    return {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        # librdkafka's own lines go to stderr, about 19 a second while a broker is away; error_cb reports the same, rate-limited.
        "log_level": 0,
        # Steady retries: back within half a second of the broker's return, without a tight loop before it.
        "reconnect.backoff.ms": 500,
        "reconnect.backoff.max.ms": 500,
        # A dead peer behind a silent network is noticed by the kernel too.
        "socket.keepalive.enable": True,
        **security_settings(kafka.security),
    }


def producer_settings(kafka: KafkaConfig, bootstrap: str, client_id: str) -> Settings:
    """Settings of a producer: idempotent, every record acknowledged by all in-sync replicas."""
    cap = max_message_bytes(kafka)
    return {
        **_common(kafka, bootstrap, client_id),
        # Retries of one session are stored once and in order. Implies acks=all, at most 5 requests in flight.
        "enable.idempotence": True,
        "acks": "all",
        # One group is one record, and somebody waits for it: no lingering for more. A backlog still travels in batches.
        "linger.ms": 0,
        "compression.type": kafka.compression,
        # The limit is checked before compression, so it is the size of the plain record.
        "message.max.bytes": cap,
        # A record larger than the whole queue would be refused for ever; four of the largest fit.
        "queue.buffering.max.kbytes": max(4 * cap, 256 * MIB) // 1024,
        # A late producer must not recreate a retired version's topic with wrong settings.
        "allow.auto.create.topics": False,
    }


def consumer_settings(
    kafka: KafkaConfig, bootstrap: str, client_id: str, group_id: str, *, partition_eof: bool = False
) -> Settings:
    """Settings of a consumer that gets its partitions and offsets assigned and joins no group.

    librdkafka demands a `group_id`; it names the offsets that are committed for Kafka's own tools to show.
    """
    cap = max_message_bytes(kafka)
    return {
        **_common(kafka, bootstrap, client_id),
        "group.id": group_id,
        # The position that counts is in the manifest; a commit is for display only.
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # An offset outside the log is an error, never a silent jump over lost records or into another log.
        "auto.offset.reset": "error",
        "enable.partition.eof": partition_eof,
        # Data damaged on disk or in transit is an error (off by default).
        "check.crcs": True,
        # The largest record fits into one fetch.
        "fetch.message.max.bytes": cap,
        "fetch.max.bytes": cap,
        # zstd batches are inflated into a guessed size, which is tripled up to this limit: with less than three times the largest
        # record, a valid one can be unreadable for ever. Set for every codec, since the writer chooses the codec, not the reader.
        "receive.message.max.bytes": max(LIBRDKAFKA_RECEIVE_DEFAULT, 3 * cap + MIB),
        # Read ahead by two of the largest records, not by 64 MiB per partition.
        "queued.max.messages.kbytes": max(2 * cap, 16 * MIB) // 1024,
        # A full read-ahead queue is checked again soon (1 s by default).
        "fetch.queue.backoff.ms": 20,
        # A fetch returns as soon as there is a record. An idle one is held this long; a newly assigned partition waits for it.
        "fetch.wait.max.ms": 50,
        # A topic that is deleted under an assigned consumer shows as silence; with this the error callback reports it in seconds.
        "topic.metadata.refresh.interval.ms": 2000,
        "topic.metadata.propagation.max.ms": 2000,
    }


def admin_settings(kafka: KafkaConfig, bootstrap: str, client_id: str) -> Settings:
    """Settings of an admin client."""
    return {
        **_common(kafka, bootstrap, client_id),
        "allow.auto.create.topics": False,
    }


def make_producer(kafka: KafkaConfig, bootstrap: str, client_id: str) -> Producer:
    """A producer. Its first record takes half a second, in which it asks for its id; an early call of `list_topics` hides that.

    Raises:
        ConfigError: unreadable secrets or certificates.
    """
    return Producer({**producer_settings(kafka, bootstrap, client_id), "error_cb": ErrorLog(client_id)})


def make_consumer(kafka: KafkaConfig, bootstrap: str, client_id: str, group_id: str, *, partition_eof: bool = False) -> Consumer:
    """A consumer, for assigned partitions only (`consuming.assign`). Pass what it polls to `errors.data_of`.

    Raises:
        ConfigError: unreadable secrets or certificates.
    """
    settings = consumer_settings(kafka, bootstrap, client_id, group_id, partition_eof=partition_eof)
    return Consumer({**settings, "error_cb": ErrorLog(client_id)})


def make_admin(kafka: KafkaConfig, bootstrap: str, client_id: str) -> AdminClient:
    """An admin client. Keep a reference to it while its futures run: a collected client cancels them.

    Raises:
        ConfigError: unreadable secrets or certificates.
    """
    return AdminClient({**admin_settings(kafka, bootstrap, client_id), "error_cb": ErrorLog(client_id)})
