"""The dispatcher's shell: turns records and rank 0's questions into the core's events, and carries out its commands.

One thread runs the core (`run`); a reader thread feeds it records, two link threads rank 0's questions, a worker thread makes
topics and commits offsets. All of them hand over through one inbox, so the core never runs twice at once.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, assert_never

from confluent_kafka.admin import AdminClient

from broker_config.clients.reader import LogReader, Record
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from broker_config.topics import parse as parse_topic
from broker_config.watchdog import Watchdog
from learner.dispatcher.deciding import commands as cmd
from learner.dispatcher.deciding import events as ev
from learner.dispatcher.deciding.commands import Command
from learner.dispatcher.deciding.dispatcher import Dispatcher
from learner.dispatcher.deciding.events import Event
from learner.dispatcher.deciding.reporting import make_beat, waits_for
from learner.dispatcher.serving.accepted_records import AcceptedRecords
from learner.dispatcher.serving.beats import Beats
from learner.dispatcher.serving.intake import Intake, rules_of
from learner.dispatcher.serving.rank0 import PendingQuestion, Rank0
from learner.dispatcher.serving.rank_watch import RankWatch
from learner.dispatcher.serving.retention import Retention
from learner.dispatcher.serving.state_log import StateLog
from learner.dispatcher.serving.step_records import commit_offsets, validation_figures, write_metrics
from learner.dispatcher.serving.version_topics import PastBeat, VersionTopics
from learner.dispatcher.state.slots import Kind
from learner.dispatcher.takeover.claim import Claimed, ControlLog
from learner.dispatcher.takeover.log_positions import manifest_facts
from learner.link import messages
from learner.link.channel import LinkClosed
from learner.link.messages import Done, ManifestFacts, StepOutcome, TrainVersion
from schemas.config.config import Config
from schemas.errors import BrokerError, ProtocolError, RecordRefused
from schemas.failpoints import reach
from schemas.identity import seal_key
from schemas.records import headers as headers_of
from schemas.records import seal as seals
from schemas.records import status
from schemas.records.metrics import StepMetrics
from schemas.records.status import Beat

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 1.0
CLOSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Happened:
    """Work of another thread is done; the loop continues with `then`."""

    then: Callable[[], None]


Item = Record | PendingQuestion | Happened | BaseException


@dataclass(frozen=True, slots=True)
class Collaborators:
    """What the shell works with; all of it belongs to the shell, which closes it."""

    writer: LogWriter
    reader: LogReader
    control: ControlLog
    versions: VersionTopics
    client: AdminClient
    rank0: Rank0
    states: StateLog
    retention: Retention
    beats: Beats
    rank_watch: RankWatch
    watchdog: Watchdog


class Shell:
    """Serves one run until it is over. `recorded`: what was recorded of the steps that are trained again, by step."""

    def __init__(
        self,
        config: Config,
        bootstrap: str,
        claimed: Claimed,
        core: Dispatcher,
        inbox: queue.SimpleQueue[Item],
        collaborators: Collaborators,
        *,
        vocab_size: int,
        recorded: Mapping[int, StepMetrics],
    ) -> None:
        self._config = config
        self._bootstrap = bootstrap
        self._claimed = claimed
        self._core = core
        self._inbox = inbox
        self._vocab_size = vocab_size
        self._recorded = recorded
        self._topics = Topics(config.run_id)
        c = collaborators
        self._writer, self._reader, self._control, self._versions = c.writer, c.reader, c.control, c.versions
        self._client, self._rank0, self._states, self._retention = c.client, c.rank0, c.states, c.retention
        self._beats, self._rank_watch, self._watchdog = c.beats, c.rank_watch, c.watchdog
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dispatcher-worker")
        self._accepted = AcceptedRecords()
        self._intake: Intake | None = None
        self._past = PastBeat()
        self._over = False

    def run(self) -> None:
        """Serve until the run is over.

        Raises:
            RunStopped: another learner took the run over.
            BrokerError: the broker cannot be used any more.
        """
        self._reader.assign([((self._topics.status, 0), self._claimed.status_offset)])
        self._rank0.listen(self._inbox.put)
        self._adopt_topics()
        self._do(self._core.begin())
        while not self._over:
            self._watchdog.kick()
            self._beat_if_due()
            self._keep_rank0_waiting_if_due()
            self._judge_read_past()
            self._states.turn(self._inbox.empty())
            try:
                item = self._inbox.get(timeout=self._rank0.patience(self._beats.patience(LONGEST_WAIT_S)))
            except queue.Empty:
                continue
            self._take(item)

    def close(self) -> None:
        """Write what is not written yet, and end every thread."""
        self._states.write()
        self._watchdog.stop()
        self._rank_watch.stop()
        self._reader.close()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._retention.close()
        self._control.close()
        self._writer.close(Deadline(CLOSE_S))

    # --- inbox --------------------------------------------------------------------------------------------------------------

    def _take(self, item: Item) -> None:
        match item:
            case Record(topic=self._topics.status):
                self._on_status(item)
            case Record():
                self._on_version_record(item)
            case PendingQuestion():
                self._on_question(item)
            case Happened(then):
                then()
            case LinkClosed():
                log.info("rank 0 has gone")
                self._over = True
            case BaseException():
                raise item
            case _:
                assert_never(item)

    def _beat_if_due(self) -> None:
        if self._beats.due():
            beat = make_beat(self._core.state, self._beats.number)
            self._writer.post(self._topics.status, beat.to_bytes(), key="beat")

    # --- records ------------------------------------------------------------------------------------------------------------

    def _on_status(self, record: Record) -> None:
        counters = self._core.state.counters
        try:
            decoded = status.decode(record.value)
        except RecordRefused as refused:
            log.warning("status offset=%d ignored: %s", record.offset, refused)
            counters.ignored_status += 1
            return
        if decoded.uuid != self._claimed.uuid:
            counters.ignored_status += 1
            return
        if isinstance(decoded, Beat):
            if decoded.incarnation == self._claimed.incarnation:
                self._beats.read_back()
                self._fence()
                self._on(ev.BeatRead(decoded.number))
            return
        self._on(ev.StatusRead(decoded))

    def _on_version_record(self, record: Record) -> None:
        name = parse_topic(record.topic)
        if name is None or name.version is None:
            raise BrokerError(f"a record of topic {record.topic}, which is none of a run's version topics")
        kind: Kind = "rollout" if name.kind == "trajectories" else "validation"
        assert self._intake is not None
        for event in self._intake.judge(record, kind, name.version):
            if isinstance(event, ev.GroupRead):
                self._accepted.keep(record.topic, record.partition, record.offset, record.value)
            self._on(event)

    def _fence(self) -> None:
        if self._control.fence(self._claimed.incarnation):
            log.warning("a lower incarnation wrote to control; the state is appended again")
            self._states.write_again()

    # --- rank 0 -------------------------------------------------------------------------------------------------------------

    def _on_question(self, pending: PendingQuestion) -> None:
        answer: messages.Answer = Done()
        match question := pending.question:
            case messages.NextQuestion():
                self._rank0.asked_next()
                self._on(question)
                return
            case messages.StepOutcome():
                self._fence()
                self._commit(question, pending.answer)
                return
            case messages.LearnerReady() | messages.RendezvousOpen() | messages.WeightsSent() | messages.VersionTrained():
                self._on(question)
            case messages.StopRequest() | messages.RunFinished():
                self._on(question)
                self._states.write()
                self._writer.flush(Deadline(self._config.kafka.timeout_s))
            case messages.ManifestQuestion():
                answer = self._manifest_facts()
            case messages.FenceQuestion():
                self._fence()
            case messages.CheckpointSaved(oldest, offsets, requests):
                self._fence()
                self._retention.retire(oldest, offsets, requests, self._control.state_offset)
            case (
                messages.ClaimWon()
                | messages.RunRefused()
                | messages.Done()
                | messages.NextAnswer()
                | messages.ManifestFacts()
                | messages.Alive()
            ):
                raise ProtocolError(f"rank 0 sent {type(question).__name__}, which is no question")
            case _:
                assert_never(question)
        pending.answer(answer)

    def _commit(self, outcome: StepOutcome, answer: Callable[[messages.Answer], None]) -> None:
        """Answered when the broker has the step's record: a line in rank 0's file always stands for a record here."""
        self._worker.submit(commit_offsets, self._config, self._bootstrap, outcome.step, outcome.offsets)
        if outcome.step in self._recorded:  # by an earlier incarnation, which may not have come to its own line
            answer(Done())
            return

        def written(record: Future[int]) -> None:
            error = record.exception()
            self._inbox.put(error if error is not None else Happened(lambda: answer(Done())))

        write_metrics(self._writer, self._config, self._claimed, outcome).add_done_callback(written)

    def _keep_rank0_waiting_if_due(self) -> None:
        if self._rank0.overdue():
            self._core.state.learner.asked = False
            self._rank0.reply(messages.KeepWaiting(waits_for(self._core.state)))

    def _manifest_facts(self) -> ManifestFacts:
        status_at = self._reader.positions().get((self._topics.status, 0), self._claimed.status_offset)
        ids = {
            self._topics.trajectories(version): topic_id
            for (kind, version), topic_id in self._core.state.topics.ids.items()
            if kind == "rollout"
        }
        return manifest_facts(self._config, self._claimed, self._client, self._control.position, status_at, ids)

    # --- commands -----------------------------------------------------------------------------------------------------------

    def _on(self, event: Event) -> None:
        self._do(self._core.on(event))

    def _do(self, commands: list[Command]) -> None:
        if any(isinstance(command, cmd.SendRequest | cmd.MakeTopic) for command in commands):
            self._states.write()  # a topic comes after the data set that it is judged by, requests after what opens their version
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case cmd.SendRequest(request, partition):
                self._writer.post(self._topics.requests, request.to_bytes(), key=str(request.key), partition=partition)
            case cmd.MakeTopic(kind, version):
                self._in_worker(lambda: self._versions.make(kind, version), lambda made: self._topic_made(kind, version, made))
            case cmd.CloseTopic(kind, version):
                self._versions.leave(kind, version)
                self._forget(self._versions.name(kind, version))
            case cmd.WriteSeal(seal):
                self._fence()
                reach("dispatcher.before_seal")
                value = seals.encode(seal)
                topic = self._topics.trajectories(seal.version)
                self._writer.post(topic, value, key=seal_key(seal.version), headers=headers_of.of_seal(seal, value))
            case cmd.ReadPast(beat):
                self._in_worker(self._versions.ends, lambda ends: self._past.ask(beat, ends))
            case messages.StartRefit():
                self._fence()
                self._rank0.reply(command)
            case cmd.HandOverBatch():
                reach("dispatcher.after_seal")
                self._hand_over(command)
            case messages.FinishRun() | messages.EndRun():
                self._rank0.reply(command)
            case cmd.ValidationDone():
                self._rank0.add_validation(validation_figures(command))
            case cmd.Note(text, level):
                log.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
            case _:
                assert_never(command)

    def _hand_over(self, batch: cmd.HandOverBatch) -> None:
        topic = self._topics.trajectories(batch.version)
        recorded = self._recorded.get(batch.version)
        state = self._core.state
        work = TrainVersion(
            version=batch.version,
            records=self._accepted.of_seal(topic, batch.seal),
            seal_offset=batch.seal_offset,
            catch_up=batch.catch_up,
            offsets={partition: at for (name, partition), at in self._reader.positions().items() if name == topic},
            counters={**state.counters.as_metrics(), "dispatch/lead": float(state.lead.value)},
            recorded_state=recorded.state_digest if recorded is not None else None,
        )
        self._rank0.reply(work)

    # --- topics -------------------------------------------------------------------------------------------------------------

    def _in_worker(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def done(future: Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            self._inbox.put(error if error is not None else Happened(lambda: then(future.result())))

        self._worker.submit(work).add_done_callback(done)

    def _topic_made(self, kind: Kind, version: int, topic_id: str) -> None:
        if self._intake is None:
            dataset = self._core.state.dataset
            assert dataset is not None  # no version is opened before the data set is known
            rules = rules_of(self._config, self._claimed.uuid, dataset, self._vocab_size)
            self._intake = Intake(rules, self._config.kafka.partitions, self._topics.quarantine, self._writer)
        self._versions.read(kind, version)
        self._on(ev.TopicReady(kind, version, topic_id))

    def _forget(self, topic: str) -> None:
        self._accepted.drop(topic)
        if self._intake is not None:
            self._intake.forget(topic)

    def _adopt_topics(self) -> None:
        """Read the version topics that earlier incarnations left, from the version on that is trained next."""
        for version in self._versions.left_by_others(self._core.state.version):
            self._core.state.topics.making.add(("rollout", version))
            self._topic_made("rollout", version, self._versions.make("rollout", version))

    # --- reading past a beat --------------------------------------------------------------------------------------------------

    def _judge_read_past(self) -> None:
        beat = self._past.reached(self._reader.positions())
        if beat is not None:
            # Behind all records that were handed over, of which some may still lie in the inbox.
            self._inbox.put(Happened(lambda: self._on(ev.CaughtUp(beat))))
