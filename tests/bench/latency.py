"""Publish latency: from handing a record to the writer until a reader in the same process has it."""

from __future__ import annotations

import queue
import secrets
import statistics
import time
from collections.abc import Sequence

from broker_config.clients import admin
from broker_config.clients.reader import LogReader, Record
from broker_config.clients.settings import make_admin
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.topics import version_spec
from schemas.config.kafka import KafkaConfig
from tests.bench.run_log import Raw

RECORDS = 500
WARM_UP = 20  # the first records pay for the producer's id and the reader's first fetch


def publish_latency_ms(bootstrap: str, groups: Sequence[Raw]) -> dict[str, float]:
    """The run's own records, one after the other, through the project's writer and reader."""
    kafka = KafkaConfig()
    spec = version_spec(f"bench-{secrets.token_hex(4)}", "trajectories", 0, kafka)
    client = make_admin(kafka, bootstrap, "bench")
    admin.create_topics(client, [spec], Deadline(60))
    inbox: queue.SimpleQueue[Record | BaseException] = queue.SimpleQueue()
    writer = LogWriter(kafka, bootstrap, "bench", inbox.put)
    reader = LogReader(kafka, bootstrap, "bench", "bench", inbox.put)
    reader.assign([((spec.name, 0), 0)])
    latencies = []
    try:
        for number in range(RECORDS + WARM_UP):
            raw = groups[number % len(groups)]
            began = time.monotonic()
            writer.post(spec.name, raw.value, key=raw.key.decode(), headers=raw.headers)
            got = inbox.get(timeout=30)
            if isinstance(got, BaseException):
                raise got
            latencies.append(1000 * (time.monotonic() - began))
    finally:
        reader.close()
        writer.close(Deadline(30))
        admin.delete_topics(client, [spec.name], Deadline(60))
    measured = sorted(latencies[WARM_UP:])
    return {
        "publish latency p50, ms": statistics.median(measured),
        "publish latency p99, ms": measured[int(0.99 * len(measured))],
    }
