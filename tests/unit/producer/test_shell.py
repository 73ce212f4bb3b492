"""The producer's shell over fake clients and a fake engine: records in, records out, from joining to leaving."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from broker_config.clients.admin import LogBounds
from broker_config.topics import Topics
from producer.data import open_dataset
from producer.engine.protocol import EngineDead, Loaded
from producer.environments.tiny_inc import TinyInc
from producer.resources import Resources
from producer.shell import Shell
from schemas.config.file import build
from schemas.errors import BrokerError, OffsetGone
from schemas.records import group, status
from schemas.records.control import Round, Stop, TransferGroup
from schemas.records.headers import as_mapping
from schemas.records.json_record import JsonRecord
from schemas.records.status import Ack, Failed, FailureKind, Heartbeat, Left, ProducerState, Report
from tests.fakes.producer.clients import FakeClients, Written
from tests.fakes.producer.reply_engine import Reply, ReplyEngine
from tests.fakes.producer.word_tokenizer import word_tokenizer
from tests.fakes.records.make import key, make_request, make_sampling, make_state
from tests.fakes.records.runs import RUN, raw_config

NAME = "p0"
TOPICS = Topics(RUN)
STATIC = {TOPICS.control, TOPICS.requests, TOPICS.status}
WAIT_S = 20.0
FINISHED = Stop(reason="all steps trained", version=3, resumable=False, finished=True)
R = TypeVar("R")


class Engine(ReplyEngine):
    """Takes every transfer."""

    async def pause(self, *, drop_caches: bool) -> None:
        pass

    async def resume(self) -> None:
        pass

    async def receive(self, offer: Any) -> Loaded:
        return Loaded(offer.version, "weights", 0.25)


class Producing:
    """A shell that serves, and its clients."""

    def __init__(self, reply: Reply, clients: FakeClients, **config: Any) -> None:
        self.config = build(raw_config(**config)).with_id(RUN)
        self.clients = clients
        tokenizer, environment = word_tokenizer(), TinyInc()
        self.engine = Engine(tokenizer, reply)
        resources = Resources(
            engine=self.engine,
            plan_digest="plan",
            tokenizer=tokenizer,
            environment=environment,
            train=open_dataset(self.config.data, environment, tokenizer, split="train", max_prompt_tokens=63),
            validation=None,
            dataset_digest="rows",
        )
        self.shell = Shell(self.config, NAME, resources, clients)
        self.serving = asyncio.create_task(self.shell.serve())

    async def read(self) -> None:
        """Until it reads `control`."""
        assert await asyncio.to_thread(self.clients.reading.wait, WAIT_S)

    async def written(self) -> Written:
        """The next record."""
        return await asyncio.to_thread(self.clients.written.get, True, WAIT_S)

    async def said(self, kind: type[R]) -> R:
        """The next record is one of `status`, of this kind; heartbeats come at any time."""
        while True:
            record = await self.written()
            assert (record.topic, record.key) == (TOPICS.status, NAME)
            said = status.decode(record.value)
            if isinstance(said, kind):
                return said
            assert isinstance(said, Heartbeat), said

    def state(self, *, member: bool = True, **changes: Any) -> None:
        self.clients.deliver(TOPICS.control, make_state(*([NAME] if member else []), **changes))

    def request(self, **changes: Any) -> None:
        sampling = make_sampling(n=2)
        self.clients.deliver(TOPICS.requests, make_request(NAME, **{"sampling": sampling, **changes}))

    async def join(self) -> None:
        """Up to being a member that serves version 0."""
        await self.read()
        self.state(member=False)
        await self.said(Report)
        round_ = Round(number=1, version=0, mode="keep", phase="pause", members=[NAME])
        self.state(round=round_)
        assert (await self.said(Ack)).phase == "pause"
        transfer = TransferGroup(host="h", port=5, prefix="x", world=2, members={NAME: 1})
        self.state(round=round_.model_copy(update={"phase": "transfer", "groups": [transfer]}))
        loaded = await self.said(Ack)
        assert (loaded.phase, loaded.ok, loaded.digest) == ("loaded", True, "weights")
        self.state(frontier=0)

    async def end(self) -> int:
        return await asyncio.wait_for(self.serving, WAIT_S)


def drive(
    scenario: Callable[[Producing], Coroutine[Any, Any, None]],
    reply: Reply = lambda call: "4205",
    clients: FakeClients | None = None,
    **config: Any,
) -> FakeClients:
    """Run a scenario to its end; whatever it leaves is cancelled."""
    clients = clients or FakeClients(topics=set(STATIC))

    async def run() -> None:
        producing = Producing(reply, clients, **config)
        try:
            await scenario(producing)
        finally:
            producing.serving.cancel()
            await asyncio.gather(producing.serving, return_exceptions=True)

    asyncio.run(run())
    return clients


def test_a_producer_joins_serves_and_leaves_with_the_run() -> None:
    async def scenario(producing: Producing) -> None:
        await producing.read()
        assert producing.clients.assigned == {(TOPICS.control, 0): 4}
        producing.state(member=False)
        report = await producing.said(Report)
        assert (report.producer, report.pid, report.state) == (NAME, os.getpid(), ProducerState.JOINING)
        assert (report.plan_digest, report.dataset.digest, report.agreed) == ("plan", "rows", producing.config.agreed)
        producing.state()
        producing.state(stop=FINISHED)
        assert await producing.end() == 0

    ends = {(TOPICS.control, 0): LogBounds(2, 5), (TOPICS.requests, 0): LogBounds(0, 9)}
    clients = drive(scenario, clients=FakeClients(topics=set(STATIC), ends=ends))
    assert clients.assigned == {(TOPICS.control, 0): 4, (TOPICS.requests, 0): 9}
    assert clients.closed == ["reader", "writer"]


def test_a_request_becomes_a_group_in_the_topic_of_its_version() -> None:
    async def scenario(producing: Producing) -> None:
        await producing.join()
        producing.request(at=key(0, 3))
        record = await producing.written()
        while record.topic == TOPICS.status:  # a heartbeat
            record = await producing.written()
        assert (record.topic, record.key) == (TOPICS.trajectories(0), str(key(0, 3)))
        assert record.partition == 3 % producing.config.kafka.partitions
        made = group.decode(record.value)
        assert (made.producer, made.kind, made.request) == (NAME, "rollout", key(0, 3))
        assert len(made.trajectories) == 2
        assert as_mapping(record.headers)["producer"] == NAME.encode()
        producing.state(stop=FINISHED)
        assert await producing.end() == 0

    drive(scenario)


@pytest.mark.parametrize(
    ("reply", "changes", "failure"),
    [
        (RuntimeError("broken"), {}, FailureKind.ROLLOUT),
        (ValueError("does not fit"), {}, FailureKind.PROMPT),
        ("4205", {"kind": "validation", "min_version": 0}, FailureKind.PROMPT),
    ],
)
def test_a_request_without_a_group_is_reported_with_its_kind_of_failure(
    reply: Any, changes: dict[str, Any], failure: FailureKind
) -> None:
    async def scenario(producing: Producing) -> None:
        await producing.join()
        producing.request(**changes)
        failed = await producing.said(Failed)
        assert failed.failure is failure

    drive(scenario, lambda call: reply, producer__max_trajectory_retries=0)


def test_a_group_that_cannot_be_written_is_reported_as_lost() -> None:
    async def scenario(producing: Producing) -> None:
        await producing.join()
        write = producing.shell.writer.write

        def refused(topic: str, value: bytes, **how: Any) -> Any:
            if topic != TOPICS.status:
                raise BrokerError("that topic is gone")
            return write(topic, value, **how)

        producing.shell.writer.write = refused  # type: ignore[method-assign]
        producing.request()
        failed = await producing.said(Failed)
        assert (failed.failure, failed.reason) == (FailureKind.LOST, "that topic is gone")

    drive(scenario)


def test_a_signal_hands_back_what_is_in_hand_and_ends_the_process_well() -> None:
    async def scenario(producing: Producing) -> None:
        await producing.join()
        producing.request(at=key(0, 3))
        await asyncio.wait_for(producing.engine.started.wait(), WAIT_S)
        os.kill(os.getpid(), signal.SIGTERM)
        left = await producing.said(Left)
        assert [item.key for item in left.unfinished] == [key(0, 3)]
        assert await producing.end() == 0
        assert producing.shell.signalled
        assert len(producing.engine.aborted) == 2

    drive(scenario, lambda call: asyncio.Event())


def test_a_signal_ends_a_producer_that_waits_for_the_topics() -> None:
    async def scenario(producing: Producing) -> None:
        assert await asyncio.to_thread(producing.clients.asked.wait, WAIT_S)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await producing.end() == 0

    clients = drive(scenario, clients=FakeClients())
    assert clients.closed == ["writer"]


def test_an_engine_that_dies_ends_the_process_with_a_failure() -> None:
    async def scenario(producing: Producing) -> None:
        await producing.join()
        producing.request(at=key(0, 3))
        assert (await producing.said(Left)).reason == "the engine died: out of memory"
        assert await producing.end() == 1

    drive(scenario, lambda call: EngineDead("out of memory"))


def test_a_failed_delivery_of_a_status_record_ends_the_process() -> None:
    async def scenario(producing: Producing) -> None:
        await producing.read()
        producing.clients.refuses = BrokerError("not authorized")
        producing.state(member=False)
        with pytest.raises(BrokerError, match="not authorized"):
            await producing.end()

    drive(scenario)


def test_records_that_are_gone_are_handed_back_before_the_process_joins_anew() -> None:
    async def scenario(producing: Producing) -> None:
        await producing.join()
        assert producing.clients.sink is not None
        producing.clients.sink(OffsetGone("offset 7 is gone"))
        with pytest.raises(OffsetGone):
            await producing.end()
        assert not producing.shell.signalled
        assert (await producing.said(Left)).reason == "records that it had not read are gone"

    drive(scenario)


def test_a_record_that_cannot_be_read_is_ignored() -> None:
    async def scenario(producing: Producing) -> None:
        await producing.join()
        producing.clients.deliver(TOPICS.control, Unreadable())
        producing.state(stop=FINISHED)
        assert await producing.end() == 0

    drive(scenario)


class Unreadable(JsonRecord):
    def to_bytes(self) -> bytes:
        return b"{"


def test_heartbeats_report_the_state_and_what_is_in_hand() -> None:
    async def scenario(producing: Producing) -> None:
        await producing.join()
        producing.request(at=key(0, 3))
        await asyncio.wait_for(producing.engine.started.wait(), WAIT_S)
        await producing.said(Heartbeat)  # this one may be older than the request
        beat = await producing.said(Heartbeat)
        assert (beat.state, beat.held) == (ProducerState.SERVING, 0)
        assert [item.key for item in beat.in_hand] == [key(0, 3)]

    drive(scenario, lambda call: asyncio.Event(), dispatch__heartbeat_s=0.05)
