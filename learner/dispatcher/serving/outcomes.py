"""What a trained step leaves in Kafka: a record of `metrics`, and the offsets of the group `<run>.learner`.

The offsets only show people and Kafka's own tools how far training is; a failed commit is a warning and training goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.errors import broker_error
from broker_config.clients.settings import make_consumer
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from learner.dispatcher.takeover.claim import Claimed
from schemas.config.config import Config
from schemas.records.metrics import StepMetrics

log = logging.getLogger(__name__)


def write_metrics(writer: LogWriter, config: Config, claimed: Claimed, outcome: Mapping[str, Any]) -> Future[int]:
    """`outcome`: rank 0's account of the step. The future is done when the broker has it."""
    step = outcome["step"]
    record = StepMetrics(
        uuid=claimed.uuid,
        incarnation=claimed.incarnation,
        step=step,
        seal_offset=outcome["seal_offset"],
        config_digest=config.digest,
        state_digest=outcome["state_digest"],
        weights_digest=outcome["weights_digest"],
        metrics=outcome["metrics"],
    )
    return writer.write(Topics(config.run_id).metrics, record.to_bytes(), key=f"v{step:08d}")


def commit_offsets(config: Config, bootstrap: str, step: int, offsets: Mapping[int, int]) -> None:
    """Commit the next offset of each partition of the step's topic; blocks for up to a few seconds."""
    topic = Topics(config.run_id).trajectories(step)
    consumer = make_consumer(config.kafka, bootstrap, f"{config.run_id}.commit", f"{config.run_id}.learner")
    try:
        consumer.commit(offsets=[TopicPartition(topic, p, offset) for p, offset in offsets.items()], asynchronous=False)
    except KafkaException as error:
        log.warning("offsets of %s are not committed, training goes on: %s", topic, broker_error("committing", error))
    finally:
        consumer.close()


def manifest_facts(config: Config, claimed: Claimed, client: AdminClient, control: int, status: int) -> dict[str, Any]:
    """Who this learner is, and where one that goes on from here reads on: next offsets of control, status, requests, metrics."""
    topics = Topics(config.run_id)
    requests = [(topics.requests, partition) for partition in range(config.kafka.request_partitions)]
    ends = admin.log_ends(client, [*requests, (topics.metrics, 0)], Deadline(config.kafka.outage_timeout_s))
    return {
        "uuid": claimed.uuid,
        "incarnation": claimed.incarnation,
        "control": control,
        "status": status,
        "requests": {partition: ends[topic, partition] for topic, partition in requests},
        "metrics": ends[topics.metrics, 0],
    }


def validation_metrics(rewards: Mapping[int, float], lengths: Mapping[int, int], missing: int) -> dict[str, float]:
    """Figures of one validation. A reward of 1 or more counts as right."""
    n = max(1, len(rewards))
    return {
        "validation/accuracy": sum(reward >= 1.0 for reward in rewards.values()) / n,
        "validation/reward": sum(rewards.values()) / n,
        "validation/avg_length": sum(lengths.values()) / n,
        "validation/samples": float(len(rewards)),
        "validation/missing": float(missing),
    }
