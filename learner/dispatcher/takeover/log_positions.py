"""Where the run's logs stand now, for the manifest of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from learner.dispatcher.takeover.claim import Claimed
from learner.link.messages import ManifestFacts
from schemas.config.config import Config


def manifest_facts(
    config: Config, claimed: Claimed, client: AdminClient, control: int, status: int, topic_ids: Mapping[str, str] | None = None
) -> ManifestFacts:
    """Who this learner is, and where one that resumes from here continues to read.

    Args:
        control, status: next offsets of these topics.
        topic_ids: of the open version topics, by name.

    Raises:
        BrokerError, DeadlineExceeded: the broker refuses, or does not answer in time.
    """
    topics = Topics(config.run_id)
    requests = [(topics.requests, partition) for partition in range(config.kafka.request_partitions)]
    ends = admin.log_ends(client, [*requests, (topics.metrics, 0)], Deadline(config.kafka.outage_timeout_s))
    return ManifestFacts(
        uuid=claimed.uuid,
        incarnation=claimed.incarnation,
        control=control,
        status=status,
        requests={partition: ends[topic, partition] for topic, partition in requests},
        metrics=ends[topics.metrics, 0],
        topic_ids={**claimed.topic_ids, **(topic_ids or {})},
    )
