"""The dispatcher process: turns records and rank 0's questions into the core's events, and carries out its commands.

One thread runs the core (`run`); a reader thread feeds it records, two link threads rank 0's questions, a worker thread makes
topics and commits offsets. All of them hand over through one inbox, so the core never runs twice at once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, assert_never

from broker_config.clients.reader import LogReader, Record
from broker_config.clients.settings import make_admin
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from broker_config.topics import parse as parse_topic
from broker_config.watchdog import Watchdog
from learner.dispatcher.deciding import events as ev
from learner.dispatcher.deciding.core import Dispatcher
from learner.dispatcher.deciding.events import Command, Event, Kind
from learner.dispatcher.serving.beats import Beats
from learner.dispatcher.serving.bodies import Bodies
from learner.dispatcher.serving.intake import Intake, rules_of
from learner.dispatcher.serving.outcomes import commit_offsets, validation_metrics, write_metrics
from learner.dispatcher.serving.parent import Parent, ParentWatch
from learner.dispatcher.serving.state_log import StateLog
from learner.dispatcher.serving.upkeep import Upkeep
from learner.dispatcher.serving.version_topics import PastBeat, VersionTopics
from learner.dispatcher.takeover.claim import Claimed, ControlLog
from learner.link.channel import ANSWER_S, Answers, LinkClosed, Message
from schemas.config.config import Config
from schemas.errors import BrokerError, RecordRefused
from schemas.failpoints import reach
from schemas.identity import seal_key
from schemas.model_files import model_config, model_folder
from schemas.records import headers as headers_of
from schemas.records import seal as seals
from schemas.records import status
from schemas.records.metrics import StepMetrics
from schemas.records.status import Beat

log = logging.getLogger(__name__)

STANDSTILL_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of rank 0, and how it is answered."""

    message: Message
    answer: Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class Happened:
    """Work of another thread came to an end; `then` runs on the core's thread."""

    then: Callable[[], None]


Item = Record | BaseException | Asked | Happened


class Shell:
    """Owns every Kafka client of the learner. `run` returns when the run is over or rank 0 has gone."""

    def __init__(
        self,
        config: Config,
        rank0: Answers,
        rank0_saves: Answers,
        bootstrap: str,
        held: tuple[Claimed, ControlLog],
        writer: LogWriter,
    ) -> None:
        claimed, control = held
        self.config = config
        self.rank0 = rank0
        self.rank0_saves = rank0_saves
        self.bootstrap = bootstrap
        self.claimed = claimed
        self.control = control
        self.writer = writer
        self.vocab_size = int(model_config(model_folder(config.model.path))["vocab_size"])
        self.topics = Topics(config.run_id)
        self.inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.client = make_admin(config.kafka, bootstrap, f"{config.run_id}.dispatcher-admin")
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="dispatcher-worker")
        self.upkeep = Upkeep(config, claimed, control, self.client, self.inbox.put)
        self.reader = LogReader(
            config.kafka, bootstrap, f"{config.run_id}.dispatcher", f"{config.run_id}.learner", self.inbox.put
        )
        self.versions = VersionTopics(config, self.client, self.reader, claimed.state)
        self.bodies = Bodies()
        self.recorded: Mapping[int, StepMetrics] = {}
        """Outcomes of steps that are trained again."""
        self.intake: Intake | None = None
        self.core: Dispatcher
        self.states: StateLog
        self.news: list[dict[str, Any]] = []
        self.question_since: float | None = None
        self.beats = Beats(config.dispatch.beat_s, config.kafka.outage_timeout_s)
        self.past = PastBeat()
        self.over = False
        self.parent = ParentWatch(Parent(config.learner.rank_timeout_s), self.inbox.put)
        self.watchdog = Watchdog(STANDSTILL_S)

    def run(self, core: Dispatcher) -> None:
        """Serve until the run is over.

        Raises:
            RunStopped: another learner took the run over.
            BrokerError: the broker cannot be used any more.
        """
        self.core = core
        self.states = StateLog(self.writer, self.topics.control, core)
        self.reader.assign([((self.topics.status, 0), self.claimed.status_offset)])
        for name, answers in (("link", self.rank0), ("save-link", self.rank0_saves)):
            threading.Thread(target=self._listen, args=(answers,), name=name, daemon=True).start()
        self._adopt_topics()
        self._do(core.begin())
        while not self.over:
            self.watchdog.kick()
            self._beat_if_due()
            self._answer_wait_if_due()
            self._judge_read_past()
            self.states.turn(self.inbox.empty())
            try:
                item = self.inbox.get(timeout=self._patience())
            except queue.Empty:
                continue
            self._take(item)

    def close(self) -> None:
        self.states.write()
        self.watchdog.stop()
        self.parent.stop()
        self.reader.close()
        self.worker.shutdown(wait=True, cancel_futures=True)
        self.upkeep.close()
        self.control.close()
        self.writer.close(Deadline(30))

    # --- inbox --------------------------------------------------------------------------------------------------------------

    def _take(self, item: Item) -> None:
        match item:
            case Record(topic=self.topics.status):
                self._on_status(item)
            case Record():
                self._on_version_record(item)
            case Asked():
                self._on_question(item)
            case Happened(then):
                then()
            case LinkClosed():
                log.info("rank 0 has gone")
                self.over = True
            case BaseException():
                raise item
            case _:
                assert_never(item)

    def _listen(self, answers: Answers) -> None:
        try:
            while True:
                self.inbox.put(Asked(answers.question(), answers.answer))
        except LinkClosed as closed:
            self.inbox.put(closed)

    def _patience(self) -> float:
        patience = self.beats.patience(1.0)
        if self.question_since is not None:
            patience = min(patience, max(0.0, self.question_since + ANSWER_S - time.monotonic()))
        return patience

    def _beat_if_due(self) -> None:
        if self.beats.due():
            self.writer.post(self.topics.status, self.core.beat_record(self.beats.number).to_bytes(), key="beat")

    # --- records ------------------------------------------------------------------------------------------------------------

    def _on_status(self, record: Record) -> None:
        try:
            decoded = status.decode(record.value)
        except RecordRefused as refused:
            log.warning("status offset=%d ignored: %s", record.offset, refused)
            self.core.counters.ignored_status += 1
            return
        if decoded.uuid != self.claimed.uuid:
            self.core.counters.ignored_status += 1
            return
        if isinstance(decoded, Beat):
            if decoded.incarnation == self.claimed.incarnation:
                self.beats.read_back()
                self._fence()
                self._do_event(ev.BeatRead(decoded.number))
            return
        self._do_event(ev.StatusRead(decoded))

    def _on_version_record(self, record: Record) -> None:
        name = parse_topic(record.topic)
        if name is None or name.version is None:
            raise BrokerError(f"a record of topic {record.topic}, which is none of a run's version topics")
        kind: Kind = "rollout" if name.kind == "trajectories" else "validation"
        assert self.intake is not None
        for event in self.intake.judge(record, kind, name.version):
            if isinstance(event, ev.GroupRead):
                self.bodies.keep(record.topic, record.partition, record.offset, record.value)
            self._do_event(event)

    def _fence(self) -> None:
        if self.control.fence(self.claimed.incarnation):
            log.warning("a lower incarnation wrote to control; the state is appended again")
            self.core.tell_again()

    # --- rank 0 -------------------------------------------------------------------------------------------------------------

    def _on_question(self, asked: Asked) -> None:
        message, answer = asked.message, Message()
        match op := message["op"]:
            case "next":
                self.question_since = time.monotonic()
                self._do_event(ev.NextAsked())
                return
            case "ready":
                self._do_event(ev.LearnerReady(message["version"], message["plan_digest"], message["weights_digest"]))
            case "offer":
                self._do_event(ev.Offered([tuple(r) for r in message["rendezvous"]]))
            case "sent":
                self._do_event(ev.Sent(message["digest"], message["failed"]))
            case "trained":
                self._do_event(ev.Trained(message["version"], message["waited"], message["weights_digest"]))
            case "commit":
                self._fence()
                self._commit(message)
                return
            case "manifest":
                answer = self._facts()
            case "fence":
                self._fence()
            case "saved":
                self._fence()
                self.upkeep.retire(message["oldest"], message["offsets"], message["requests"])
            case "stop":
                self._do_event(ev.StopAsked(message["reason"], message["ordered"]))
                self._write_out()
            case "finished":
                self._do_event(ev.Finished())
                self._write_out()
            case _:
                raise ValueError(f"unknown question {op!r} of rank 0")
        asked.answer(answer)

    def _write_out(self) -> None:
        self.states.write()
        self.writer.flush(Deadline(self.config.kafka.timeout_s))

    def _commit(self, outcome: Message) -> None:
        """Answered when the broker has the step's record: a line in rank 0's file stands for a record here, whoever dies."""
        self.worker.submit(commit_offsets, self.config, self.bootstrap, outcome["step"], outcome["offsets"])
        if outcome["step"] in self.recorded:  # by an earlier incarnation, which may not have come to its own line
            self.rank0.answer({})
            return

        def written(record: Future[int]) -> None:
            error = record.exception()
            self.inbox.put(error if error is not None else Happened(lambda: self.rank0.answer({})))

        write_metrics(self.writer, self.config, self.claimed, outcome).add_done_callback(written)

    def _reply(self, answer: Message) -> None:
        self.question_since = None
        self.rank0.answer({**answer, "news": self.news})
        self.news = []

    def _answer_wait_if_due(self) -> None:
        if self.question_since is not None and time.monotonic() - self.question_since >= ANSWER_S:
            self.core.asked = False
            self._reply({"do": "wait", "what": self.core.waits_for()})

    def _facts(self) -> Message:
        status_at = self.reader.positions().get((self.topics.status, 0), self.claimed.status_offset)
        ids = {self.topics.trajectories(v): i for (k, v), i in self.core.topics.items() if k == "rollout"}
        return self.upkeep.facts(status_at, ids)

    # --- commands -----------------------------------------------------------------------------------------------------------

    def _do_event(self, event: Event) -> None:
        self._do(self.core.on(event))

    def _do(self, commands: list[Command]) -> None:
        if any(isinstance(command, ev.SendRequest | ev.MakeTopic) for command in commands):
            self.states.write()  # a topic comes after the data set that it is judged by, requests after what opens their version
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case ev.SendRequest(request, partition):
                self.writer.post(self.topics.requests, request.to_bytes(), key=str(request.key), partition=partition)
            case ev.MakeTopic(kind, version):
                self._in_worker(lambda: self.versions.make(kind, version), lambda made: self._topic_made(kind, version, made))
            case ev.CloseTopic(kind, version):
                self.versions.leave(kind, version)
                self._forget(self.versions.name(kind, version))
            case ev.WriteSeal(seal):
                self._fence()
                reach("dispatcher.before_seal")
                value = seals.encode(seal)
                topic = self.topics.trajectories(seal.version)
                self.writer.post(topic, value, key=seal_key(seal.version), headers=headers_of.of_seal(seal, value))
            case ev.ReadPast(beat):
                self._in_worker(self.versions.ends, lambda ends: self.past.ask(beat, ends))
            case ev.AnswerRefit(number, version, groups, worlds):
                self._fence()
                where = {"groups": [dict(g) for g in groups], "worlds": list(worlds)}
                self._reply({"do": "refit", "number": number, "version": version, **where})
            case ev.AnswerBatch():
                reach("dispatcher.after_seal")
                self._answer_batch(command)
            case ev.AnswerFinish():
                self._reply({"do": "finish"})
            case ev.AnswerStop(reason, finished, ordered):
                self._reply({"do": "stop", "reason": reason, "finished": finished, "ordered": ordered})
            case ev.ValidationDone():
                figures = validation_metrics(command.rewards, command.lengths, command.missing)
                self.news.append({"version": command.version, "metrics": figures})
            case ev.Note(text, level):
                log.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
            case _:
                assert_never(command)

    def _answer_batch(self, answer: ev.AnswerBatch) -> None:
        topic = self.topics.trajectories(answer.version)
        positions = self.reader.positions()
        recorded = self.recorded.get(answer.version)
        self._reply(
            {
                "do": "batch",
                "version": answer.version,
                "seal_offset": answer.seal_offset,
                "catch_up": answer.catch_up,
                "records": self.bodies.of_seal(topic, answer.seal),
                "offsets": {p: o for (t, p), o in positions.items() if t == topic},
                "counters": {**self.core.counters.as_metrics(), "dispatch/lead": float(self.core.lead)},
                "recorded_state": recorded.state_digest if recorded is not None else None,
            }
        )

    # --- topics -------------------------------------------------------------------------------------------------------------

    def _in_worker(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def done(future: Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            self.inbox.put(error if error is not None else Happened(lambda: then(future.result())))

        self.worker.submit(work).add_done_callback(done)

    def _topic_made(self, kind: Kind, version: int, topic_id: str) -> None:
        if self.intake is None:
            assert self.core.dataset is not None  # no version is opened before the data set is known
            rules = rules_of(self.config, self.claimed.uuid, self.core.dataset, self.vocab_size)
            self.intake = Intake(rules, self.config.kafka.partitions, self.topics.quarantine, self.writer)
        self.versions.read(kind, version)
        self._do_event(ev.TopicReady(kind, version, topic_id))

    def _forget(self, topic: str) -> None:
        self.bodies.drop(topic)
        if self.intake is not None:
            self.intake.forget(topic)

    def _adopt_topics(self) -> None:
        """Read the version topics that earlier incarnations left, from the version on that is trained next."""
        for version in self.versions.left_by_others(self.core.version):
            self.core.topics_asked.add(("rollout", version))
            self._topic_made("rollout", version, self.versions.make("rollout", version))

    # --- reading past a beat --------------------------------------------------------------------------------------------------

    def _judge_read_past(self) -> None:
        beat = self.past.reached(self.reader.positions())
        if beat is not None:
            # Behind all records that were handed over, of which some may still lie in the inbox.
            self.inbox.put(Happened(lambda: self._do_event(ev.CaughtUp(beat))))
