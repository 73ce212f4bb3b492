"""What a finished run's topics tell: group sizes, and how long producers stood still for each refit."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from confluent_kafka import TopicPartition

from broker_config.clients import admin
from broker_config.clients.errors import data_of
from broker_config.clients.settings import make_admin, make_consumer
from broker_config.deadline import Deadline
from broker_config.topics import Topics, parse
from schemas.config.kafka import KafkaConfig
from schemas.records import control, status
from schemas.records.group import TrajectoryGroup, decode
from schemas.records.status import Ack

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Raw:
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    timestamp_ms: int

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value) + sum(len(name) + len(value) for name, value in self.headers)


class RunLog:
    """Everything of one run that lies in its version, control and status topics."""

    def __init__(self, bootstrap: str, run_id: str) -> None:
        self._bootstrap = bootstrap
        client = make_admin(KafkaConfig(), bootstrap, "bench")
        names = admin.topics_of_run(client, run_id, Deadline(PATIENCE_S))
        versions = [name for name in names if (parsed := parse(name)) and parsed.kind == "trajectories"]
        ends = admin.log_bounds(client, [(name, 0) for name in names], Deadline(PATIENCE_S))
        self._ends = {name: bounds.end for (name, _), bounds in ends.items()}
        topics = Topics(run_id)
        self.groups = [raw for raw in self._read(versions) if (b"seal" not in raw.key)]
        self._control = self._read([topics.control])
        self._status = self._read([topics.status])

    def decoded(self) -> list[TrajectoryGroup]:
        return [decode(raw.value) for raw in self.groups]

    def figures(self) -> dict[str, float]:
        return {
            "bytes a group (key, headers, value)": statistics.mean(raw.size for raw in self.groups),
            "of it numbers of tokens and log-probabilities": statistics.mean(_payload(g) for g in self.decoded()),
            "refit pause p50, ms": statistics.median(self._pauses_ms()),
            "refit pause p99, ms": _percentile(self._pauses_ms(), 0.99),
            "producer's load p50, ms": statistics.median(self._loads_ms()),
        }

    def _pauses_ms(self) -> list[float]:
        """From the state that asks members to pause to the state that lets them go on, by the broker's clock."""
        pauses, since = [], None
        for raw in self._control:
            record = control.decode(raw.value)
            if not isinstance(record, control.State):
                continue
            if record.round is not None and since is None:
                since = raw.timestamp_ms
            elif record.round is None and since is not None:
                pauses.append(float(raw.timestamp_ms - since))
                since = None
        return pauses

    def _loads_ms(self) -> list[float]:
        acks = [r for r in (status.decode(raw.value) for raw in self._status) if isinstance(r, Ack) and r.phase == "loaded"]
        return [1000 * ack.seconds for ack in acks]

    def _read(self, names: list[str]) -> list[Raw]:
        consumer = make_consumer(KafkaConfig(), self._bootstrap, "bench", "bench")
        consumer.assign([TopicPartition(name, 0, 0) for name in names])
        left = {name: self._ends[name] for name in names if self._ends[name]}
        found, deadline = [], Deadline(PATIENCE_S)
        while left:
            message = data_of(consumer.poll(0.5))
            if message is None:
                deadline.check(f"the records of {', '.join(left)}")
                continue
            found.append(Raw(message.key() or b"", message.value() or b"", list(message.headers() or []), message.timestamp()[1]))
            if message.offset() + 1 >= left[message.topic()]:
                del left[message.topic()]
        consumer.close()
        return found


def _payload(group: TrajectoryGroup) -> int:
    return group.prompt.nbytes + sum(t.tokens.nbytes + t.mask.nbytes + t.logprobs.nbytes for t in group.trajectories)


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
