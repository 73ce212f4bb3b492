"""The dispatcher: decides who rolls out what, when weights move, and what rank 0 does next. No I/O, no clock but beats.

| loop | consumes | produces | waits for | unblocked by | deadline |
|---|---|---|---|---|---|
| fill a version | status, groups | requests, seals | a group a slot | any healthy producer | leases, `no_progress_timeout_s` |
| refit round | acks, rank 0 | control states | acks of a phase | acks, or the loss of who owes one | `phase_timeout_s` |
| rank 0 | its questions | answers | a sealed batch, a round | the two above | `rank_timeout_s` at the ranks |

Invariants: **a short target >= v can always be filled** (nothing but a seal closes a version, and every free slot goes to any
producer whose acknowledged weights are young enough); no request for a target goes to a producer that acknowledged less than
target - A; versions are sealed in order; the frontier never falls.
"""

from __future__ import annotations

from typing import assert_never

from learner.dispatcher.deciding import events as ev
from learner.dispatcher.deciding.account import beat_of, facts_of, slot_table, state_of
from learner.dispatcher.deciding.events import Command, Event
from learner.dispatcher.deciding.issuing import Issuing
from learner.dispatcher.deciding.plan import Plan
from learner.dispatcher.deciding.roster import Producer, disagreements
from learner.dispatcher.deciding.rounds import Phase, Round
from learner.dispatcher.deciding.verdicts import run_verdict, waits_for
from schemas.errors import ProtocolError
from schemas.records.control import State, Stop
from schemas.records.status import Ack, Beat, Failed, FailureKind, Heartbeat, Left, Operator, ProducerState, Report

TELL_TABLE = 4  # after this part of the time that a run may go without a group, the slots are told
NEWCOMER_BEATS = 2  # newcomers within so many beats share a round


class Dispatcher(Issuing):
    """`on(event)` returns the commands that follow from it, in the order in which they must be carried out."""

    def __init__(self, plan: Plan, version: int, inherited: State | None = None) -> None:
        super().__init__(plan, version, inherited)
        self.weights_digest = inherited.weights_digest if inherited else None
        self.digests = dict(plan.digests)
        self.round: Round | None = None
        self.rounds = 0
        self.ready_beat = 0
        self.producer_beat = 0
        self.awaited = set(inherited.members) if inherited else set()
        self.settled = not self.awaited
        self.asked = False
        self.finishing = False
        self.stop: Stop | None = None
        self._told: tuple[object, ...] = ()
        self._needing_of: tuple[object, list[Producer]] = (None, [])

    # --- events -------------------------------------------------------------------------------------------------------------

    def on(self, event: Event) -> list[Command]:
        self.out = []
        match event:
            case ev.LearnerReady():
                self._on_learner_ready(event)
            case ev.StatusRead(record):
                self._on_status(record)
            case ev.BeatRead(number):
                self._on_beat(number)
            case ev.CaughtUp(number):
                self._on_caught_up(number)
            case ev.TopicReady(kind, version, topic_id):
                self._on_topic(kind, version, topic_id)
            case ev.GroupRead():
                self._on_group(event)
            case ev.GroupRefused():
                self._on_refused(event)
            case ev.SealRead(seal, offset):
                self._on_seal(seal, offset)
            case ev.NextAsked():
                self.asked = True
            case ev.Offered(rendezvous):
                if self.round is not None:
                    self.round.transfer(rendezvous, self.beat)
            case ev.Sent(digest, failed_groups):
                if self.round is not None:
                    self.round.sent(digest, failed_groups)
            case ev.Trained():
                self._on_trained(event.version, event.waited)
                self._compare(self.version, event.weights_digest)
            case ev.StopAsked(reason, ordered):
                self._stop(reason, resumable=True, ordered=ordered)
            case ev.Finished():
                self.stop = Stop(reason="all steps trained", version=self.version, resumable=False, finished=True)
            case _:
                assert_never(event)
        self._advance()
        return self.out

    def begin(self) -> list[Command]:
        """The first commands: the state as this incarnation sees it."""
        self.out = []
        self._advance()
        return self.out

    def _on_learner_ready(self, event: ev.LearnerReady) -> None:
        if event.plan_digest != self.plan.plan_digest:
            raise ProtocolError(f"rank 0 sends by plan {event.plan_digest}, its own dispatcher made {self.plan.plan_digest}")
        self.learner_ready = True
        self.ready_beat = self.progress_beat = self.producer_beat = self.beat
        self._compare(event.version, event.weights_digest)

    def _compare(self, version: int, digest: str | None) -> None:
        """Rank 0 has made or loaded `version` again: at F, are its weights those that the producers were given?"""
        if version == self.frontier and digest is not None and self.weights_digest not in (None, digest):
            self._note(f"weights of version {self.frontier} differ from those announced; everybody is refit", "warning")
            self.weights_digest = digest

    def _on_status(self, record: Report | Heartbeat | Ack | Failed | Left | Operator) -> None:
        match record:
            case Report():
                self._on_report(record)
            case Heartbeat():
                if self.roster.heartbeat(record, self.beat) is None:
                    self.counters.ignored_status += 1
            case Ack():
                if self.round is None or not self.round.on_ack(record):
                    self.counters.ignored_status += 1
            case Failed():
                item = record.request
                self._release(item.kind, item.key, record.producer, record.failure, record.reason)
            case Left():
                self.awaited.discard(record.producer)
                for item in record.unfinished:
                    self._release(item.kind, item.key, record.producer, FailureKind.LOST, "handed back")
                self.roster.draining.discard(record.producer)
                self._remove(record.producer, f"left: {record.reason}")
            case Operator():
                self._on_operator(record)
            case _:
                assert_never(record)

    def _on_report(self, report: Report) -> None:
        if report.incarnation not in (None, self.plan.incarnation):
            return  # the answer to an earlier claim; the one to this claim follows
        self.awaited.discard(report.producer)
        problems = disagreements(report, self.plan.agreed, self.digests)
        if report.plan_digest != self.plan.plan_digest:
            problems.append("model: the two sides would send and receive different tensors; use the same checkpoint")
        if self.dataset is None:
            if not problems:
                self.dataset = report.dataset
                self._learn_last()
        elif self.dataset != report.dataset:
            problems.append(f"data: learner knows {self.dataset}, producer has {report.dataset}; use the same data set")
        if problems:
            self.roster.refuse(report.producer, problems)
            self._note(f"producer {report.producer} refused: {'; '.join(problems)}", "warning")
            return
        for name, value in report.digests.items():
            self.digests.setdefault(name, value)  # what the learner cannot compute (of environments), the first report sets
        if report.incarnation is None and report.producer in self.roster.producers:
            return
        producer = self.roster.join(report, self.beat)
        self._note(f"producer {report.producer} joined: capacity={report.capacity} held={report.held}")
        self._take_stock(producer, report.in_hand)

    def _on_operator(self, record: Operator) -> None:
        if record.action == "stop":
            self._stop(f"stopped by {record.by}", resumable=True, ordered=True)
        elif record.producer is not None and self.roster.drain(record.producer):
            self._note(f"producer {record.producer} drains, asked by {record.by}")

    def _on_beat(self, number: int) -> None:
        self.beat = number
        if self.round is not None:
            self.round.on_beat(number)
        if self.roster.lapsed(number, self.plan.dispatch.lease_beats):
            self.out.append(ev.ReadPast(number))
        stall = self.plan.beats(self.plan.dispatch.stall_timeout_s)
        for producer in list(self.roster.producers.values()):
            for kind, key in producer.stalled(number, stall):
                producer.suspect = True
                self._release(kind, key, producer.name, FailureKind.ROLLOUT, f"no progress for {stall} beats")
                self._cancel(producer, kind, key)
        if self.roster.producers:
            self.producer_beat = number
        if number > self.plan.dispatch.lease_beats:
            self.awaited.clear()
        if not self.settled and not self.awaited:
            self.out.append(ev.ReadPast(number))
        if self.asked and self.stop is None:
            self._hedge()
            patience = self.plan.beats(self.plan.dispatch.no_progress_timeout_s) // TELL_TABLE
            if self.window and patience and number - self.progress_beat == patience:
                self._note("\n  ".join([f"no group for {patience} beats:", *slot_table(self)]), "warning")

    def _on_caught_up(self, number: int) -> None:
        self.settled = self.settled or not self.awaited
        for producer in self.roster.lapsed(number, self.plan.dispatch.lease_beats):
            self._remove(producer.name, f"lost: nothing heard for {self.plan.dispatch.lease_beats} beats")

    # --- what follows -------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        if self.stop is None:
            verdict = run_verdict(self)
            if verdict is not None:
                self._note("\n  ".join(["the slots at the end:", *slot_table(self)]), "warning")
                self._stop(verdict.reason, resumable=verdict.resumable)
        if self.stop is None:
            self._end_round()
            self._validate_version()
            self._open()
            self._seal()
            self._assign()
        self._answer()

    def _end_round(self) -> None:
        if self.round is None:
            return
        if self.round.phase is Phase.PAUSE and self.asked and not self.round.waiting_for():
            groups, worlds = self.round.offer(self.beat)
            self.out.append(ev.AnswerRefit(self.round.number, self.round.version, groups, worlds))
            self.asked = False
            return
        outcome = self.round.outcome()
        if outcome is None:
            return
        digest, version, gaps = self.round.digest, self.round.version, self.round.gaps
        for name in outcome.loaded:
            self.roster.loaded(name, version, digest)
        for name, why in outcome.failed.items():
            self._note(f"refit round {self.round.number} version {version} failed at {name}: {why}", "warning")
            producer = self.roster.producers.get(name)
            if producer is not None:
                producer.failed_rounds += 1
                if producer.failed_rounds >= self.plan.refit.max_tries:
                    self._expel(name, f"refit failed {producer.failed_rounds} times, the last: {why}")
        self.frontier = version if self.frontier is None else max(self.frontier, version)
        self.weights_digest = digest
        gap = f" probe_gap={max(gaps.values()):.1e}" if gaps else ""
        self._note(f"version {version} announced: loaded={len(outcome.loaded)} failed={len(outcome.failed)}{gap}")
        self.round = None
        self.progress_beat = self.beat
        self.validation.due(version, self.last, self.dataset)

    def _validate_version(self) -> None:
        validation, version = self.validation, self.validation.version
        if version is None:
            return
        self._make_topic("validation", version)
        if ("validation", version) in self.topics and self.table.get("validation", version) is None:
            self.table.open("validation", version, validation.count)
        self._assign_version("validation", version)
        done = validation.judge(self.table.get("validation", version), self.beat)
        if done is None:
            return
        slots = self.table.get("validation", done.version)
        if slots is not None:
            self._cancel_all(self.table.close("validation", done.version).slots)
        self.out += [done, ev.CloseTopic("validation", done.version)]
        self.topics.pop(("validation", done.version), None)

    # --- rank 0 -------------------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        if not self.asked or not self.learner_ready:
            return
        if self.stop is not None:
            self._reply(ev.AnswerStop(self.stop.reason, self.stop.finished, self.stop.ordered))
            return
        if self.round is None and self._refit_due():
            self._start_round(self.version)
            return
        busy = self.round is not None and self.round.phase in (Phase.PAUSE, Phase.OFFER)
        if self.version == self.last:
            if self.round is None and self.validation.version is None and not self.finishing:
                self.finishing = True
                self._reply(ev.AnswerFinish())
        elif self.version in self.seals and not busy:
            seal, offset = self.seals[self.version]
            self._reply(
                ev.AnswerBatch(self.version, seal, offset, catch_up=self.frontier is not None and self.version < self.frontier)
            )

    def _reply(self, answer: ev.AnswerStop | ev.AnswerFinish | ev.AnswerBatch) -> None:
        self.asked = False
        self.out.append(answer)

    def _refit_due(self) -> bool:
        """Whether a round should start now that rank 0 is free."""
        if self.awaited or self.last is None or (self.frontier is not None and self.version < self.frontier):
            return False
        needing = self._needing()
        if self.frontier is None:
            # A first round waits for the producers that were ordered; an empty one would leave all of them newcomers.
            enough = len(self.roster.producers) >= self.plan.producer_count
            late = self.beat - self.ready_beat > self.plan.beats(self.plan.dispatch.start_timeout_s)
            return bool(needing) and (enough or late)
        if self.version > self.frontier:
            if self.version == self.last and not self.plan.validates(self.version, self.last):
                return False
            return self.validation.version is None
        if not needing or self.version in self.seals or self.version == self.last:
            return False
        serving = any(p.holds(self.frontier, self.weights_digest) for p in self.roster.producers.values())
        return not serving or max(self.beat - p.joined_beat for p in needing) >= NEWCOMER_BEATS

    def _needing(self) -> list[Producer]:
        """Who does not hold the weights of v. Asked after every event, so it is found anew only when something changed."""
        digest = self.weights_digest if self.version == self.frontier else None
        known = (self.roster.revision, self.version, digest)
        if known != self._needing_of[0]:
            producers = self.roster.producers.values()
            self._needing_of = known, [p for p in producers if not p.draining and not (digest and p.holds(self.version, digest))]
        return [p for p in self._needing_of[1] if p.state is not ProducerState.LEAVING]

    def _start_round(self, version: int) -> None:
        self.rounds += 1
        if self.validation.wanted(version, self.last, self.dataset):
            self._make_topic("validation", version)  # so that its requests go out first, at once when it is announced
        plan = self.plan
        self.round = Round(
            number=self.rounds,
            incarnation=plan.incarnation,
            version=version,
            mode=plan.refit.mode,
            members={p.name: p.world_size for p in self._needing()},
            group_size=plan.refit.group_size,
            deadline_beats=plan.beats(plan.refit.phase_timeout_s),
            drain_beats=plan.beats(plan.dispatch.stall_timeout_s),
            opened_beat=self.beat,
            tries={p.name: p.failed_rounds for p in self._needing()},
        )
        self._end_round()

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def waits_for(self) -> str:
        """What rank 0 waits for, for a person."""
        return waits_for(self)

    def state_changed(self) -> bool:
        """Whether something of the state has changed since `take_state`. Asked after every event, so it is cheap."""
        return facts_of(self) != self._told

    def take_state(self) -> State:
        """All that holds, to be published."""
        self._told = facts_of(self)
        return state_of(self)

    def tell_again(self) -> None:
        """Somebody wrote over what was published last."""
        self._told = ()

    def moving_weights(self) -> bool:
        return self.round is not None

    def beat_record(self, number: int) -> Beat:
        """The next beat, with where everything stands, for people."""
        return beat_of(self, number)

    def _remove(self, name: str, why: str) -> None:
        super()._remove(name, why)
        if self.round is not None:
            self.round.on_lost(name)

    def _stop(self, reason: str, *, resumable: bool, ordered: bool = False) -> None:
        if self.stop is None:
            self.stop = Stop(reason=reason, version=self.version, resumable=resumable, ordered=ordered)
            self._note(f"stop: {reason}", "info" if ordered else "error")

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        self.table.validate()
        self.roster.validate()
        age = self.plan.grpo.max_trajectory_age_steps
        for version in self.window:
            assert self.frontier is not None and self.frontier <= version <= self.frontier + age, (version, self.frontier)
            assert version > self.sealed_through
        held = {
            (name, slot.kind, key)
            for slots in self.table.open_versions.values()
            for slot in slots.slots
            for name, key in slot.holders.items()
        }
        assigned = {(p.name, *item) for p in self.roster.producers.values() for item in p.assigned}
        assert held == assigned, (held - assigned, assigned - held)
