"""The dispatcher as it runs, on a real broker, with a rank 0 and a producer that do nothing but answer.

    .venv/bin/python -m tests.bench.dispatcher_process [--reissues 300] [--versions 10000] [--out FILE]

Two things are measured. How long a slot that becomes free stays without a request that its producer can read: from the writing of
the record that hands a request back until the next attempt is read from `requests`. And what grows over many versions of one
slot each, with a checkpoint every 50 of which 2 are kept: resident memory, topics, Metadata requests, topics known to a client.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import logging
import os
import queue
import secrets
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, TypeVar, assert_never

import psutil

from broker_config.clients import admin
from broker_config.clients import settings as clients
from broker_config.clients.reader import LogReader, Record
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.locate import ENVIRONMENT
from broker_config.topics import Topics
from learner.dispatcher.service import plan_of, serve
from learner.dispatcher.takeover.claim import Claimed
from learner.link.channel import Answers, Link
from learner.link.messages import (
    Answer,
    CheckpointSaved,
    ClaimWon,
    Done,
    EndRun,
    FinishRun,
    KeepWaiting,
    LearnerReady,
    ManifestFacts,
    ManifestQuestion,
    NextAnswer,
    NextQuestion,
    Question,
    RendezvousOpen,
    RunFinished,
    StartRefit,
    TrainVersion,
    VersionTrained,
    WeightsSent,
)
from schemas.config.config import Config
from schemas.config.file import load_for_process
from schemas.records import control, headers
from schemas.records.control import DatasetFacts, State
from schemas.records.group import encode
from schemas.records.json_record import JsonRecord
from schemas.records.requests import Request
from schemas.records.status import Ack, Failed, FailureKind, Heartbeat, InHand, ProducerState, Report
from schemas.weights.transports.protocol import Rendezvous
from tests.bench.figures import tell
from tests.fakes.records.groups import make_group, make_trajectory
from tests.pipeline import SCRIPTED

A = TypeVar("A", bound=Answer)

ROWS = 1 << 20
SAVE_PERIOD, KEEP = 50, 2
STATS_MS = 2000


class ClientStats:
    """What librdkafka tells of every client of this process, by name and number; a renewed client is a new one."""

    def __init__(self) -> None:
        self.metadata: dict[str, int] = {}
        self.topics: dict[str, int] = {}
        plain = clients._common

        def counted(kafka: Any, bootstrap: str, client_id: str) -> dict[str, Any]:
            return {**plain(kafka, bootstrap, client_id), "statistics.interval.ms": STATS_MS, "stats_cb": self.take}

        clients._common = counted

    def take(self, text: str) -> None:
        stats = json.loads(text)
        name = stats["name"]
        self.metadata[name] = sum(broker.get("req", {}).get("Metadata", 0) for broker in stats["brokers"].values())
        self.topics[name] = len(stats["topics"])


class Stand:
    """One dispatcher with its two others. `run` serves rank 0's side until `versions` are trained or `until` says so."""

    def __init__(self, folder: Path, bootstrap: str, *, slots: int, versions: int) -> None:
        run_id = f"bench-{secrets.token_hex(4)}"
        changes = [f"run.id={run_id}", f"run.dir={folder}", *SCRIPTED, f"grpo.num_prompts_per_step={slots}"]
        changes += ["grpo.num_generations_per_prompt=1", f"grpo.max_num_steps={versions}", "producer.count=1"]
        changes += ["dispatch.max_lost=1000000"]
        self.config: Config = load_for_process("launch/configs/tiny.yaml", changes)
        self.config.folder.mkdir()
        self.topics = Topics(run_id)
        self.bootstrap = bootstrap
        ours, theirs = socket.socketpair()
        self.link, self.failed = Link(ours, 60), queue.SimpleQueue[BaseException]()
        self._theirs = Link(theirs)
        self._unused, saves = socket.socketpair()
        self._saves = Link(saves)
        self._dispatcher = threading.Thread(target=self._serve, daemon=True)
        self._dispatcher.start()
        self.claimed = self.link.answer(ClaimWon)
        self.inbox: queue.SimpleQueue[Record | BaseException] = queue.SimpleQueue()
        self.writer = LogWriter(self.config.kafka, bootstrap, f"{run_id}.producer", self.inbox.put)
        self.reader = LogReader(self.config.kafka, bootstrap, f"{run_id}.producer", f"{run_id}.producer", self.inbox.put)
        self.reader.assign([((self.topics.control, 0), 0), ((self.topics.requests, 0), 0)])
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.held = -1
        self.round_seen = (-1, "")
        self.version = 0
        self.over = threading.Event()
        self._report()
        threading.Thread(target=self._produce, daemon=True).start()
        threading.Thread(target=self._heartbeats, daemon=True).start()

    def _serve(self) -> None:
        try:
            serve(self.config, Answers(self._theirs, owing=True), Answers(self._saves), None, accept_loss=False)
        except BaseException as error:
            self.failed.put(error)
            raise

    # --- the producer -------------------------------------------------------------------------------------------------------

    def _say(self, record: JsonRecord) -> None:
        self.writer.post(self.topics.status, record.to_bytes(), key="bench")

    def _report(self) -> None:
        claimed = Claimed(self.claimed.uuid, self.claimed.incarnation, None, 0)
        plan = plan_of(self.config, claimed)
        self._say(
            Report(
                uuid=claimed.uuid,
                producer="bench",
                host="bench",
                pid=1,
                engine_world_size=1,
                state=ProducerState.JOINING,
                capacity=8,
                plan_digest=plan.plan_digest,
                dataset=DatasetFacts(rows=ROWS, digest="bench"),
                agreed=dict(plan.agreed),
                digests={**plan.digests, "environment": "bench"},
            )
        )

    def _heartbeats(self) -> None:
        while not self.over.wait(1.0):
            state = ProducerState.SERVING
            self._say(
                Heartbeat(uuid=self.claimed.uuid, producer="bench", state=state, held=self.held, engine_tokens=0, capacity=8)
            )

    def _produce(self) -> None:
        while not self.over.is_set():
            try:
                item = self.inbox.get(timeout=1.0)
            except queue.Empty:
                continue
            if isinstance(item, BaseException):
                self.failed.put(item)
                return
            if item.topic == self.topics.control:
                record = control.decode(item.value)
                if isinstance(record, State) and record.round is not None:
                    self._take_part(record.round, record.incarnation)
            else:
                self.requests.put(Request.from_bytes(item.value))

    def _take_part(self, round_: control.Round, incarnation: int) -> None:
        seen = (round_.number, round_.phase)
        if seen == self.round_seen:
            return
        self.round_seen = seen
        transfer = round_.phase == "transfer"
        if transfer:
            self.held = round_.version
        self._say(
            Ack(
                uuid=self.claimed.uuid,
                producer="bench",
                incarnation=incarnation,
                round=round_.number,
                phase="loaded" if transfer else "pause",
                version=round_.version,
                digest=f"w{round_.version}" if transfer else None,
            )
        )

    def publish(self, request: Request) -> None:
        trajectory = make_trajectory(self.held, tokens=(3, 4, 5))
        assert request.sampling is not None
        group = make_group(
            run=request.uuid,
            request=request.key,
            row=request.row,
            incarnation=request.incarnation,
            min_version=request.min_version,
            producer="bench",
            sampling=request.sampling.model_dump(exclude_none=True),
            trajectories=(trajectory,),
        )
        value = encode(group)
        topic = self.topics.trajectories(request.target)
        self.writer.post(topic, value, key=str(request.key), headers=headers.of_group(group, value))

    # --- rank 0 -------------------------------------------------------------------------------------------------------------

    def ask(self, question: Question, expected: type[A]) -> A:
        if not self.failed.empty():
            raise self.failed.get()
        return self.link.ask(question, expected)

    def rank0_turn(self) -> bool:
        """One question of rank 0 and what follows from it. False when all is trained."""
        match work := self.ask(NextQuestion(), NextAnswer).work:
            case StartRefit():
                self.ask(RendezvousOpen([Rendezvous("127.0.0.1", 1, "bench") for _ in work.groups]), Done)
                self.ask(WeightsSent(f"w{work.version}", {}), Done)
            case TrainVersion():
                self.version = work.version + 1
                self.ask(VersionTrained(work.version, waited=True), Done)
            case FinishRun():
                self.ask(RunFinished(), Done)
            case EndRun():
                return False
            case KeepWaiting():
                pass
            case _:
                assert_never(work)
        return True

    def close(self) -> None:
        self.over.set()
        self.link.close()
        self._dispatcher.join(60)
        self.reader.close()
        self.writer.close(Deadline(30))


def reissue_latency_ms(folder: Path, bootstrap: str, count: int) -> dict[str, float]:
    """Hand every request back as soon as it is read, `count` times."""
    stand = Stand(folder, bootstrap, slots=1, versions=1)
    stand.ask(LearnerReady(0, plan_digest(stand), "w0"), Done)
    turns = threading.Thread(target=_turn_until, args=(stand,), daemon=True)
    turns.start()
    latencies = []
    request = stand.requests.get(timeout=60)
    for _ in range(count):
        item = InHand(kind="rollout", target=request.target, slot=request.slot, draw=request.draw, attempt=request.attempt)
        began = time.monotonic()
        stand._say(Failed(uuid=request.uuid, producer="bench", request=item, failure=FailureKind.LOST, reason="handed back"))
        following = stand.requests.get(timeout=60)
        latencies.append(1000 * (time.monotonic() - began))
        assert (following.target, following.slot, following.attempt) == (request.target, request.slot, request.attempt + 1)
        request = following
    stand.over.set()
    turns.join(30)
    stand.close()
    ordered = sorted(latencies[count // 10 :])
    return {
        "slot free -> next request readable p50, ms": statistics.median(ordered),
        "slot free -> next request readable p99, ms": ordered[int(0.99 * (len(ordered) - 1))],
    }


def _turn_until(stand: Stand) -> None:
    while not stand.over.is_set() and stand.rank0_turn():
        pass


def plan_digest(stand: Stand) -> str:
    return plan_of(stand.config, Claimed(stand.claimed.uuid, stand.claimed.incarnation, None, 0)).plan_digest


def growth(folder: Path, bootstrap: str, versions: int) -> dict[str, float]:
    stats = ClientStats()
    stand = Stand(folder, bootstrap, slots=1, versions=versions)
    stand.ask(LearnerReady(0, plan_digest(stand), "w0"), Done)
    client = clients.make_admin(stand.config.kafka, bootstrap, "bench")
    kept: collections.deque[tuple[int, ManifestFacts]] = collections.deque(maxlen=KEEP)
    process, marks, saved = psutil.Process(), {}, 0
    publisher = threading.Thread(target=_publish_all, args=(stand,), daemon=True)
    publisher.start()
    began = time.monotonic()
    while stand.rank0_turn():
        if stand.version % SAVE_PERIOD == 0 and stand.version > saved:
            saved = stand.version
            kept.append((saved, stand.ask(ManifestQuestion(), ManifestFacts)))
            oldest, facts = kept[0]
            offsets = {"control": facts.control, "status": facts.status}
            stand.ask(CheckpointSaved(oldest, offsets, facts.requests), Done)
        if stand.version in (versions // 10, versions) and stand.version not in marks:
            gc.collect()
            marks[stand.version] = {
                "RSS, MiB": process.memory_info().rss / 2**20,
                "topics of the run": float(len(admin.topics_of_run(client, stand.config.run_id, Deadline(30)))),
                "Metadata requests": float(sum(stats.metadata.values())),
                "topics known to one client, at most": float(max(stats.topics.values(), default=0)),
                "seconds": time.monotonic() - began,
            }
    stand.close()
    first, last = marks[versions // 10], marks[versions]
    figures = {f"after {at} versions: {name}": value for at, mark in sorted(marks.items()) for name, value in mark.items()}
    figures["Metadata requests a version, last 90 % / first 10 %"] = (
        (last["Metadata requests"] - first["Metadata requests"]) / 9 / first["Metadata requests"]
    )
    return figures


def _publish_all(stand: Stand) -> None:
    while not stand.over.is_set():
        try:
            request = stand.requests.get(timeout=1.0)
        except queue.Empty:
            continue
        if request.kind == "rollout":
            stand.publish(request)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dispatcher_process", description=__doc__)
    parser.add_argument("--reissues", type=int, default=300)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    logging.basicConfig(level="ERROR")
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        folder = Path(name)
        broker = LocalBroker(folder / "broker")
        try:
            bootstrap = broker.start(Deadline(90))
            os.environ[ENVIRONMENT] = bootstrap
            figures = reissue_latency_ms(folder, bootstrap, args.reissues)
            if args.versions:
                figures |= growth(folder, bootstrap, args.versions)
        finally:
            broker.stop(Deadline(60))
    tell(figures, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
