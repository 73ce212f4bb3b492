"""The producer process: Kafka records and finished work in, the core's commands carried out.

One asyncio loop runs the core; a reader thread feeds it `control` and `requests`, a writer thread reports deliveries, a heartbeat
thread reports that the process is alive, and the engine has its own thread. Everything enters the loop through `_post`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine
from typing import Any, assert_never

from broker_config.clients.reader import Record
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from broker_config.watchdog import KICK_S, Watchdog
from producer import events as ev
from producer.clients import Admin, Clients, Reader
from producer.core import Freeze, ProducerCore
from producer.data.dataset import Dataset
from producer.engine.protocol import EngineDead, Sampling, TransferOffer
from producer.events import Command, Event, Key
from producer.heartbeat import HeartbeatThread
from producer.resources import Resources
from producer.rollout import Limits, PromptFailed, RolloutFailed, roll_out
from schemas.config.config import Config
from schemas.errors import OffsetGone, RecordRefused, TransferError, WeirError
from schemas.failpoints import reach
from schemas.records import control
from schemas.records import headers as headers_of
from schemas.records.control import DatasetFacts
from schemas.records.group import TrajectoryGroup, encode
from schemas.records.requests import Request
from schemas.records.status import FailureKind, Report

log = logging.getLogger(__name__)

TOPIC_POLL_S = 0.2  # how often a producer that came first looks for the run's topics
CLOSE_S = 30.0
STANDSTILL_S = 60.0


class Shell:
    """Runs one producer from joining to leaving. Made inside the event loop that it serves on."""

    def __init__(self, config: Config, name: str, resources: Resources, clients: Clients) -> None:
        self.config = config
        self.name = name
        self.resources = resources
        self.clients = clients
        self.engine = resources.engine
        self.topics = Topics(config.run_id)
        self.core = ProducerCore(name, config.producer.max_groups_in_flight, config.refit)
        self.loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[BaseException] = self.loop.create_future()
        self.exit: asyncio.Future[ev.Exit] = self.loop.create_future()
        self.rollouts: dict[Key, asyncio.Task[None]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.requests_end: dict[int, int] = {}
        self.writer = clients.writer(self._failed)
        self.reader: Reader | None = None
        self.heartbeat: HeartbeatThread | None = None
        self.watchdog = Watchdog(STANDSTILL_S)
        self.next_kick: asyncio.TimerHandle | None = None
        self.signalled = False
        """A signal asked the process to end."""

    async def serve(self) -> int:
        """Join, and work until the run ends or this process has to leave. Returns the exit code.

        Raises:
            DeadlineExceeded: no learner made the run's topics within `dispatch.start_timeout_s`; BrokerError.
            OffsetGone: records were retired before this producer read them, as it stood still for too long. The process may join
                again under a new name.
        """
        for signum in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(signum, self._on_signal, signum)
        try:
            await self._join()
            ends: list[asyncio.Future[Any]] = [self.exit, self.failure]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self.failure.done():
                error = self.failure.result()
                if isinstance(error, OffsetGone):  # the process joins again under a new name: what this one had is free
                    self._post(ev.Leave("records that it had not read are gone", 0))
                raise error
            return self.exit.result().code
        finally:
            await self._close()

    async def _close(self) -> None:
        if self.next_kick is not None:
            self.next_kick.cancel()
        self.watchdog.stop()
        for task in self.rollouts.values():
            task.cancel()
        await asyncio.gather(*self.rollouts.values(), *self.tasks, return_exceptions=True)
        if self.heartbeat is not None:
            self.heartbeat.stop()
        if self.reader is not None:
            self.reader.close()
        await asyncio.to_thread(self.writer.close, Deadline(CLOSE_S))

    # --- joining ------------------------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Note the ends of `control` and `requests`, then read `control` from its last record on."""
        admin = self.clients.admin()
        await self._topics_there(admin)
        if self.exit.done():
            return
        control_end, self.requests_end = await asyncio.to_thread(self._ends, admin)
        self.reader = self.clients.reader(self._on_item)
        self.reader.assign([((self.topics.control, 0), control_end)])
        self.heartbeat = HeartbeatThread(
            self.writer,
            self.topics.status,
            self.name,
            self.core.capacity,
            self.config.dispatch.heartbeat_s,
            lambda: self.core.snapshot,
            self.engine.progress,
            self._failed,
        )
        self.loop.call_later(self.config.dispatch.start_timeout_s, self._judge_start)
        self._kick()

    def _kick(self) -> None:
        self.watchdog.kick()
        self.next_kick = self.loop.call_later(KICK_S, self._kick)

    def _judge_start(self) -> None:
        self._post(ev.StartOver(f"{self.config.dispatch.start_timeout_s:g} s (dispatch.start_timeout_s)"))

    async def _topics_there(self, admin: Admin) -> None:
        deadline = Deadline(self.config.dispatch.start_timeout_s)
        wanted = {self.topics.control, self.topics.requests, self.topics.status}
        while not await asyncio.to_thread(admin.ready, wanted):
            if self.exit.done():
                return
            deadline.check(
                f"the learner of run {self.config.run_id} to make its topics (dispatch.start_timeout_s); is it running?"
            )
            await asyncio.sleep(TOPIC_POLL_S)

    def _ends(self, admin: Admin) -> tuple[int, dict[int, int]]:
        partitions = [(self.topics.requests, p) for p in range(self.config.kafka.request_partitions)]
        bounds = admin.bounds([(self.topics.control, 0), *partitions])
        last = bounds[self.topics.control, 0]
        return max(last.start, last.end - 1), {p: bounds[topic, p].end for topic, p in partitions}

    def _report(self, incarnation: int | None) -> None:
        snapshot, resources = self.core.snapshot, self.resources
        assert self.core.uuid is not None
        report = Report(
            uuid=self.core.uuid,
            producer=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            incarnation=incarnation,
            requests_partition=self.core.partition,
            engine_world_size=self.engine.world_size,
            held=self.core.held,
            digest=self.core.digest,
            state=snapshot.state,
            in_hand=list(snapshot.in_hand) if incarnation is not None else [],
            capacity=self.core.capacity,
            plan_digest=resources.plan_digest,
            dataset=DatasetFacts(
                rows=resources.train.rows,
                digest=resources.dataset_digest,
                validation_rows=resources.validation.rows if resources.validation else None,
            ),
            agreed=self.config.agreed,
            digests=resources.digests,
        )
        self.writer.post(self.topics.status, report.to_bytes(), key=self.name)

    # --- into the loop ------------------------------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        """Give the core an event; on the loop's thread."""
        for command in self.core.on(event):
            self._carry_out(command)

    def _failed(self, error: BaseException) -> None:
        """A client has failed, or a task; called on any thread."""

        def note() -> None:
            if not self.failure.done():
                self.failure.set_result(error)

        self.loop.call_soon_threadsafe(note)

    def _on_item(self, item: Record | BaseException) -> None:
        """From the reader's thread."""
        if isinstance(item, BaseException):
            self._failed(item)
            return
        event = self._decode(item)
        if event is not None:
            self.loop.call_soon_threadsafe(self._post, event)

    def _decode(self, record: Record) -> Event | None:
        try:
            if record.topic == self.topics.control:
                return ev.ControlRead(control.decode(record.value), record.offset)
            return ev.RequestRead(Request.from_bytes(record.value))
        except RecordRefused as refused:
            log.warning("ignored topic=%s offset=%d: %s", record.topic, record.offset, refused)
            return None

    def _on_signal(self, signum: int) -> None:
        log.info("leaving: %s", signal.Signals(signum).name)
        self.signalled = True
        self._post(ev.Leave(signal.Signals(signum).name, 0))

    # --- commands -----------------------------------------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        match command:
            case ev.Say(record):
                self.writer.post(self.topics.status, record.to_bytes(), key=self.name)
            case ev.SendReport(incarnation):
                self._report(incarnation)
            case ev.ReadRequests(partition):
                assert self.reader is not None
                self.reader.assign([((self.topics.requests, partition), self.requests_end[partition])])
            case ev.Start(request):
                key: Key = ("validation" if request.kind == "validation" else "rollout", request.key)
                self.rollouts[key] = self._task(self._work(key, request))
            case ev.Abort(key):
                rollout = self.rollouts.get(key)
                if rollout is not None:  # else a dead engine has ended it, which is why the core leaves
                    # Not at once: a task that is cancelled before its first step would end without an event.
                    self.loop.call_soon(rollout.cancel)
            case ev.Pause(number, drop_caches):
                self._task(self._pause(number, drop_caches))
            case ev.Receive(number, offer):
                self._task(self._receive(number, offer))
            case ev.Resume():
                self._task(self.engine.resume())
            case ev.Exit():
                if not self.exit.done():
                    self.exit.set_result(command)
            case ev.Note(text, level):
                log.log({"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}[level], "%s", text)
            case _:
                assert_never(command)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, EngineDead):
            self._post(ev.Leave(f"the engine died: {error}", 1))
        elif error is not None:
            self._failed(error)

    # --- rounds -------------------------------------------------------------------------------------------------------------

    async def _pause(self, number: int, drop_caches: bool) -> None:
        await self.engine.pause(drop_caches=drop_caches)
        reach("producer.pause")
        self._post(ev.Paused(number))

    async def _receive(self, number: int, offer: TransferOffer) -> None:
        began = time.monotonic()
        loaded, error = None, None
        reach("producer.receive")
        try:
            loaded = await self.engine.receive(offer)
            reach("producer.loaded")
        except TransferError as failure:
            error = str(failure)
        seconds = time.monotonic() - began
        if loaded is not None:
            log.info("loaded version=%d probe_gap=%.1e seconds=%.2f", loaded.version, loaded.probe_gap, seconds)
        else:
            log.warning("round %d failed here: %s", number, error)
        self._post(ev.Received(number, loaded, error, seconds))

    # --- rollouts -----------------------------------------------------------------------------------------------------------

    async def _work(self, key: Key, request: Request) -> None:
        try:
            event = await self._roll_out_and_publish(key, request)
        except asyncio.CancelledError:
            event = ev.RolloutEnded(key, None, "cancelled")
        finally:
            self.rollouts.pop(key, None)
        self._post(event)

    async def _roll_out_and_publish(self, key: Key, request: Request) -> Event:
        began = time.monotonic()
        try:
            group = await self._group(key, request, began)
        except PromptFailed as failed:
            return ev.RolloutEnded(key, FailureKind.PROMPT, str(failed))
        except RolloutFailed as failed:
            return ev.RolloutEnded(key, FailureKind.ROLLOUT, str(failed))
        value = encode(group)
        topic = self._topic(key)
        partition = request.slot % self.config.kafka.partitions
        try:
            future = self.writer.write(
                topic, value, key=str(request.key), headers=headers_of.of_group(group, value), partition=partition
            )
            reach("producer.publish")
            await asyncio.wrap_future(future)
            reach("producer.published")
        except WeirError as error:
            # The topic of a version that is trained may be gone already; the learner knows what it still wants.
            return ev.RolloutEnded(key, FailureKind.LOST, str(error))
        return ev.Published(key)

    async def _group(self, key: Key, request: Request, began: float) -> TrajectoryGroup:
        resources, config = self.resources, self.config
        dataset: Dataset | None = resources.validation if request.kind == "validation" else resources.train
        if dataset is None or request.sampling is None:
            raise PromptFailed(f"request {request.key} asks for {request.kind}, which this producer has no data for")
        prompt = resources.prompt(dataset, request.row)
        sampling = Sampling(
            max_new_tokens=request.sampling.max_new_tokens,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            top_k=request.sampling.top_k,
            stop=tuple(request.sampling.stop or ()),
            stop_token_ids=tuple(request.sampling.stop_token_ids or ()),
        )
        trajectories = await roll_out(
            key=f"{key[0]}/{request.key}",
            kind=key[0],
            prompt=prompt,
            count=request.sampling.n,
            environment=resources.environment,
            engine=self.engine,
            sampling=sampling,
            tokenizer=resources.tokenizer,
            limits=Limits(
                config.model.max_total_sequence_length, config.producer.max_trajectory_retries, config.producer.rollout_timeout_s
            ),
            priority=-1 if key[0] == "validation" else request.target,
            frozen=lambda: self.core.freeze is not Freeze.NONE,
        )
        return TrajectoryGroup(
            run=request.uuid,
            kind=key[0],
            request=request.key,
            row=request.row,
            incarnation=request.incarnation,
            min_version=request.min_version,
            producer=self.name,
            prompt=prompt.ids,
            sampling=request.sampling.model_dump(exclude_none=True),
            trajectories=trajectories,
            seconds=time.monotonic() - began,
        )

    def _topic(self, key: Key) -> str:
        version = key[1].version
        return self.topics.validation(version) if key[0] == "validation" else self.topics.trajectories(version)
