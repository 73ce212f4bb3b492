"""A run's records from its broker. Reads only: no claim, no commit, no record is ever written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker_config.clients.admin import TopicInfo, describe, log_bounds
from broker_config.clients.settings import make_admin, make_consumer
from broker_config.clients.stored import StoredRecord, read_to_end
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from learner.replay.sources.sealed import SealedBatch, follow, last_step_metrics
from schemas.config.kafka import KafkaConfig
from schemas.errors import WeirError
from schemas.records.metrics import StepMetrics


class LogSource:
    """`uuid`: the run's; `topic_ids`: by name, as far as the run's checkpoints know them."""

    def __init__(
        self, kafka: KafkaConfig, bootstrap: str, run_id: str, uuid: str, prompts_per_step: int, topic_ids: Mapping[str, str]
    ) -> None:
        self.where = f"the topics of {run_id} at {bootstrap}"
        self.topics = Topics(run_id)
        self._uuid, self._prompts_per_step, self._known = uuid, prompts_per_step, topic_ids
        self._timeout_s = kafka.timeout_s
        self._admin = make_admin(kafka, bootstrap, f"{run_id}.replay-admin")
        self._consumer = make_consumer(kafka, bootstrap, f"{run_id}.replay", f"{run_id}.replay")

    def step_metrics(self) -> dict[int, StepMetrics]:
        return last_step_metrics(self.records(self.topics.metrics), self._uuid)

    def batch(self, version: int) -> SealedBatch:
        name = self.topics.trajectories(version)
        records = self.records(name)
        return follow(records, name, run=self._uuid, version=version, prompts_per_step=self._prompts_per_step)

    def records(self, topic: str) -> Iterator[StoredRecord]:
        """All records of a topic.

        Raises:
            WeirError: the topic is gone, or is not the one that the run made.
            BrokerError, DeadlineExceeded: the broker does not deliver them.
        """
        partitions = range(self.topic(topic).partitions)
        deadline = Deadline(self._timeout_s)
        bounds = log_bounds(self._admin, [(topic, index) for index in partitions], deadline)
        return read_to_end(self._consumer, {where: (b.start, b.end) for where, b in bounds.items()}, deadline)

    def topic(self, topic: str) -> TopicInfo:
        """The broker's description of a topic of the run; raises as `records`."""
        found = describe(self._admin, [topic], Deadline(self._timeout_s)).get(topic)
        if found is None:
            raise WeirError(
                f"the broker has no topic {topic}: it was deleted, the run never came there, or it is another broker "
                "(kafka.bootstrap_servers, KAFKA_BOOTSTRAP_SERVERS); weir topics lists what there is, --from replays from a dump"
            )
        known = self._known.get(topic)
        if known is not None and known != found.topic_id:
            raise WeirError(
                f"topic {topic} is another one than the run's: its id is {found.topic_id}, the checkpoint says {known}; "
                "it was deleted and made again, or this is another broker; replay from a dump made before (--from)"
            )
        return found

    def close(self) -> None:
        self._consumer.close()
