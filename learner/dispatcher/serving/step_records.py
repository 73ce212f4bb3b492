"""What a trained step or a validation leaves for people: a record of `metrics`, committed offsets of `<run>.learner`, figures.

The offsets only show people and Kafka's own tools how far training is; a failed commit is a warning and training continues.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future

from confluent_kafka import KafkaException, TopicPartition

from broker_config.clients.errors import broker_error
from broker_config.clients.settings import make_consumer
from broker_config.clients.writer import LogWriter
from broker_config.topics import Topics
from learner.dispatcher.deciding.commands import ValidationDone
from learner.dispatcher.takeover.claim import Claimed
from learner.link.messages import StepOutcome, ValidationFigures
from schemas.config.config import Config
from schemas.records.metrics import StepMetrics

log = logging.getLogger(__name__)


def write_metrics(writer: LogWriter, config: Config, claimed: Claimed, outcome: StepOutcome) -> Future[int]:
    """Rank 0's account of the step, to `metrics`. The future is done when the broker has it."""
    record = StepMetrics(
        uuid=claimed.uuid,
        incarnation=claimed.incarnation,
        step=outcome.step,
        seal_offset=outcome.seal_offset,
        config_digest=config.digest,
        state_digest=outcome.state_digest,
        weights_digest=outcome.weights_digest,
        metrics=dict(outcome.metrics),
    )
    return writer.write(Topics(config.run_id).metrics, record.to_bytes(), key=f"v{outcome.step:08d}")


def commit_offsets(config: Config, bootstrap: str, step: int, offsets: Mapping[int, int]) -> None:
    """Commit the next offset of each partition of the step's topic; blocks for up to a few seconds."""
    topic = Topics(config.run_id).trajectories(step)
    consumer = make_consumer(config.kafka, bootstrap, f"{config.run_id}.commit", f"{config.run_id}.learner")
    try:
        consumer.commit(offsets=[TopicPartition(topic, p, offset) for p, offset in offsets.items()], asynchronous=False)
    except KafkaException as error:
        log.warning("offsets of %s are not committed, training continues: %s", topic, broker_error("committing", error))
    finally:
        consumer.close()


def validation_figures(done: ValidationDone) -> ValidationFigures:
    """Metrics of one validation. A reward of 1 or more counts as right."""
    n = max(1, len(done.rewards))
    metrics = {
        "validation/accuracy": sum(reward >= 1.0 for reward in done.rewards.values()) / n,
        "validation/reward": sum(done.rewards.values()) / n,
        "validation/avg_length": sum(done.lengths.values()) / n,
        "validation/samples": float(len(done.rewards)),
        "validation/missing": float(done.missing),
    }
    return ValidationFigures(done.version, metrics)
