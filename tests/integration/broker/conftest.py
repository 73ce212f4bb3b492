"""An admin client that deletes the topics of its test, and a consumer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from broker_config.clients import admin as topics_admin
from broker_config.clients import settings as clients
from broker_config.deadline import Deadline
from tests.brokers import Broker
from tests.integration.broker.log_access import SECONDS


@pytest.fixture
def admin(broker: Broker, run_id: str) -> Iterator[AdminClient]:
    made = clients.make_admin(broker.kafka, broker.bootstrap, "test.admin")
    yield made
    topics_admin.delete_topics(made, topics_admin.topics_of_run(made, run_id, Deadline(SECONDS)), Deadline(SECONDS))


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Consumer]:
    made = clients.make_consumer(broker.kafka, broker.bootstrap, "test.consumer", "test.reader")
    yield made
    made.close()
