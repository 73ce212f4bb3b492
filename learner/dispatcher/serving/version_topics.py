"""The topics of target versions as the learner has them: made or adopted, read from their start, left when trained.

Invariants: a topic is read only after the broker confirmed its settings; one that an earlier incarnation announced must still
have the id that was announced; a new run adopts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.admin import TopicExists
from broker_config.clients.reader import LogReader, Partition
from broker_config.deadline import Deadline
from broker_config.topics import Topics, version_spec
from broker_config.topics import parse as parse_topic
from learner.dispatcher.state.slots import Kind
from schemas.config.config import Config
from schemas.errors import BrokerError
from schemas.records.control import State


class VersionTopics:
    """`make`, `left_by_others` and `ends` ask the broker and may take a while; `read` and `leave` only change what the reader
    follows."""

    def __init__(self, config: Config, client: AdminClient, reader: LogReader, inherited: State | None) -> None:
        self._config = config
        self._client = client
        self._reader = reader
        self._inherited = inherited
        self._names = Topics(config.run_id)

    def name(self, kind: Kind, version: int) -> str:
        return self._names.trajectories(version) if kind == "rollout" else self._names.validation(version)

    def make(self, kind: Kind, version: int) -> str:
        """The id of the version's topic, made now or by an earlier incarnation.

        Raises:
            TopicExists: it exists and this run is new; BrokerError: it is another one than was announced; DeadlineExceeded.
        """
        spec = version_spec(
            self._config.run_id, "trajectories" if kind == "rollout" else "validation", version, self._config.kafka
        )
        try:
            return admin.create_topics(self._client, [spec], self._deadline())[spec.name]
        except TopicExists:
            if self._inherited is None:
                raise
        topic_id = admin.create_topics(self._client, [spec], self._deadline(), adopt_existing=True)[spec.name]
        announced = self._inherited.window.get(version) if kind == "rollout" else None
        if announced is not None and announced != topic_id:
            raise BrokerError(
                f"topic {spec.name} was deleted and made again: its id is {topic_id}, announced was {announced}; what the "
                "run had published there is lost"
            )
        return topic_id

    def left_by_others(self, first: int) -> list[int]:
        """Versions from `first` on whose trajectory topics earlier incarnations made, lowest first."""
        if self._inherited is None:
            return []
        parsed = map(parse_topic, admin.topics_of_run(self._client, self._config.run_id, self._deadline()))
        return sorted(
            n.version for n in parsed if n and n.kind == "trajectories" and n.version is not None and n.version >= first
        )

    def read(self, kind: Kind, version: int) -> None:
        self._reader.assign([(partition, 0) for partition in self._partitions(kind, version)])

    def leave(self, kind: Kind, version: int) -> None:
        self._reader.unassign(self._partitions(kind, version))

    def ends(self) -> dict[Partition, int]:
        """Where the version topics that are read now end at this moment."""
        partitions = [p for p in self._reader.positions() if p[0] != self._names.status]
        return {p: found.end for p, found in admin.log_bounds(self._client, partitions, self._deadline()).items()}

    def _partitions(self, kind: Kind, version: int) -> list[Partition]:
        return [(self.name(kind, version), p) for p in range(self._config.kafka.partitions)]

    def _deadline(self) -> Deadline:
        return Deadline(self._config.kafka.outage_timeout_s)  # an outage is waited for, here as elsewhere


class PastBeat:
    """Finds out when everything has been read that was there at a beat. Of several that are asked for, the last one counts."""

    def __init__(self) -> None:
        self._wanted: tuple[int, Mapping[Partition, int]] | None = None

    def ask(self, beat: int, ends: Mapping[Partition, int]) -> None:
        self._wanted = (beat, ends)

    def reached(self, positions: Mapping[Partition, int]) -> int | None:
        """The beat, once, when `positions` (next offset of each partition that is read) are past all ends."""
        if self._wanted is None:
            return None
        beat, ends = self._wanted
        if any(positions.get(partition, end) < end for partition, end in ends.items()):
            return None
        self._wanted = None
        return beat
