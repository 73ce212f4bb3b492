"""Reading topics for `weir show`: from their first records to their ends, or on and on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from broker_config.clients.consuming import assign
from broker_config.clients.errors import data_of
from broker_config.clients.reader import Record
from broker_config.clients.settings import make_consumer
from broker_config.clients.stored import POLL_S, of_message, read_to_end
from broker_config.deadline import Deadline
from launch.cli.session import bounds_of
from schemas.config.kafka import KafkaConfig


def records(
    kafka: KafkaConfig, bootstrap: str, admin: AdminClient, names: Sequence[str], *, follow: bool, deadline: Deadline
) -> Iterator[Record]:
    """Records, topic by topic; with `follow`, of all topics as they come, without end.

    Raises:
        DeadlineExceeded: the broker sends nothing for a while though there is more.
        BrokerError: a topic cannot be read.
    """
    bounds = bounds_of(admin, names, deadline)
    consumer = make_consumer(kafka, bootstrap, "weir.show", "weir.show")
    try:
        if follow:
            yield from _following(consumer, {where: start for where, (start, _) in bounds.items()}, deadline)
        else:
            for name in names:
                mine = {where: found for where, found in bounds.items() if where[0] == name}
                for stored in read_to_end(consumer, mine, deadline):
                    yield stored.decoded()
    finally:
        consumer.close()


def _following(consumer: Consumer, starts: dict[tuple[str, int], int], deadline: Deadline) -> Iterator[Record]:
    assign(consumer, starts, deadline)
    while True:  # until whoever reads this iterator ends it, or Ctrl-C
        message = data_of(consumer.poll(POLL_S))
        if message is not None:
            yield of_message(message).decoded()
