"""The dispatcher: decides who rolls out what, when weights move, and what rank 0 does next. No I/O, no clock but beats.

| loop | consumes | produces | waits for | unblocked by | deadline |
|---|---|---|---|---|---|
| fill a version | status, groups | requests, seals | a group a slot | any healthy producer | leases, `no_progress_timeout_s` |
| refit round | acks, rank 0 | control states | acks of a phase | acks, or the loss of who owes one | `phase_timeout_s` |
| rank 0 | its questions | answers | a sealed batch, a round | the two above | `rank_timeout_s` at the ranks |

Invariants: **a short target >= v can always be filled** (nothing but a seal closes a version, and every free slot goes to any
producer whose acknowledged weights are young enough); no request for T goes to a producer that acknowledged less than T - A;
versions are sealed in order; F never falls.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import assert_never

from learner.dispatcher import events as ev
from learner.dispatcher.events import Command, Counters, Event, Filled, Kind, Note
from learner.dispatcher.plan import Plan
from learner.dispatcher.roster import Producer, Roster, disagreements
from learner.dispatcher.rounds import Phase, Round
from learner.dispatcher.slots import Limits, Slot, SlotTable
from learner.dispatcher.validation import Validation
from schemas.control import DatasetFacts, State, Stop
from schemas.draws import last_version, row_of
from schemas.errors import ProtocolError
from schemas.identity import Attempt
from schemas.requests import Request
from schemas.seal import Seal, SealedSlot
from schemas.status import Ack, Failed, FailureKind, Heartbeat, InHand, Left, Operator, ProducerState, Report

NEWCOMER_BEATS = 2  # newcomers within so many beats share a round
CALM_STEPS = 20  # steps without a wait after which `lead` falls by one


class Dispatcher:
    """`on(event)` returns the commands that follow from it, in the order in which they must be carried out."""

    def __init__(self, plan: Plan, version: int, inherited: State | None = None) -> None:
        self.plan = plan
        self.v = version
        self.learner_ready = False
        self.F = inherited.F if inherited else None
        self.weights_digest = inherited.weights_digest if inherited else None
        self.dataset: DatasetFacts | None = inherited.dataset if inherited else None
        self.last: int | None = None
        self.sealed_through = version - 1
        self.window: dict[int, str] = {}
        self.topics: dict[tuple[Kind, int], str] = {}
        self.topics_asked: set[tuple[Kind, int]] = set()
        self.seals: dict[int, tuple[Seal, int]] = {}
        self.seals_written: set[int] = set()
        limits = Limits(plan.dispatch.max_attempts, plan.dispatch.max_draws, plan.dispatch.max_lost)
        self.table = SlotTable(plan.grpo.num_prompts_per_step, limits)
        self.roster = Roster(plan.request_partitions)
        self.digests = dict(plan.digests)
        self.round: Round | None = None
        self.rounds = 0
        self.validation = Validation(plan)
        self.lead = min(1, plan.grpo.max_trajectory_age_steps)
        self.calm = 0
        self.beat = 0
        self.ready_beat = 0
        self.progress_beat = 0
        self.producer_beat = 0
        self.awaited = set(inherited.members) if inherited else set()
        self.settled = not self.awaited
        """Whether all is read that producers of an earlier incarnation had in hand or had published; nothing is issued before."""
        self.asked = False
        self.finishing = False
        self.stop: Stop | None = None
        self.counters = Counters()
        self.draw_outcomes: deque[str | None] = deque(maxlen=4 * plan.grpo.num_prompts_per_step)
        self.published: State | None = None
        self.out: list[Command] = []
        self._learn_last()

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
                self._compare(self.v, event.weights_digest)
            case ev.StopAsked(reason, resumable):
                self._stop(reason, resumable=resumable)
            case ev.Finished():
                self.stop = Stop(reason="all steps trained", v=self.v, resumable=False, finished=True)
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
        if version == self.F and digest is not None and self.weights_digest not in (None, digest):
            self._note(f"weights of version {self.F} differ from those announced; everybody is refit", "warning")
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
            self.roster.refused[report.producer] = problems
            self._note(f"producer {report.producer} refused: {'; '.join(problems)}", "warning")
            return
        for name, value in report.digests.items():
            self.digests.setdefault(name, value)  # what the learner cannot compute (of environments), the first report sets
        if report.incarnation is None and report.producer in self.roster.producers:
            return
        producer = self.roster.join(report, self.beat)
        self._note(f"producer {report.producer} joined: capacity={report.capacity} held={report.held}")
        self._take_stock(producer, report.in_hand)

    def _take_stock(self, producer: Producer, in_hand: Sequence[InHand]) -> None:
        """Make the table say what the producer says that it has in hand."""
        stated = {(item.kind, item.key) for item in in_hand}
        for slots in self.table.open_versions.values():
            for slot, key in list(slots.held_by(producer.name)):
                if (slot.kind, key) in stated:
                    stated.discard((slot.kind, key))
                    self.roster.give(producer, slot.kind, key, self.beat)
                else:  # not read yet, or never: then it must not be done twice
                    self.table.fail(slot.kind, key, producer.name, FailureKind.LOST, "not in hand at the report")
                    self._cancel(producer, slot.kind, key)
        for kind, key in sorted(stated):
            if self.table.adopt(kind, key, producer.name):
                self.roster.give(producer, kind, key, self.beat)
            else:
                self._cancel(producer, kind, key)

    def _on_operator(self, record: Operator) -> None:
        if record.action == "stop":
            self._stop(f"stopped by {record.by}", resumable=True)
        elif record.producer in self.roster.producers:
            self.roster.producers[record.producer].draining = True
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

    def _on_caught_up(self, number: int) -> None:
        self.settled = self.settled or not self.awaited
        for producer in self.roster.lapsed(number, self.plan.dispatch.lease_beats):
            self._remove(producer.name, f"lost: nothing heard for {self.plan.dispatch.lease_beats} beats")

    def _on_topic(self, kind: Kind, version: int, topic_id: str) -> None:
        self.topics[kind, version] = topic_id
        if kind == "rollout":
            if version >= self.v and self.table.get(kind, version) is None:
                self.table.open(kind, version)
        elif version == self.validation.version:
            self.table.open(kind, version, self.validation.count)

    def _on_group(self, event: ev.GroupRead) -> None:
        group = event.group
        mean = sum(t.reward for t in group.trajectories) / len(group.trajectories)
        filled = Filled(
            group.request, event.partition, event.offset, event.sha256, event.content_sha256, mean, group.generated_tokens
        )
        self.roster.take(group.producer, group.kind, group.request)
        slots = self.table.get(group.kind, group.request.version)
        holders = self.table.accept(group.kind, filled)
        if holders is None:
            if slots is None:
                self.counters.late += 1
            else:
                self.counters.duplicates += 1
            return
        self.progress_beat = self.beat
        if group.kind == "rollout":
            self.draw_outcomes.append(None)
        for name, key in holders.items():
            if name != group.producer or key != group.request:
                self._cancel(self.roster.producers.get(name), group.kind, key)

    def _on_refused(self, event: ev.GroupRefused) -> None:
        self.counters.bump("refusals", event.reason)
        if event.key is not None and event.producer is not None:
            key = Attempt.parse(event.key)
            self._release(event.kind, key, event.producer, FailureKind.ROLLOUT, f"record refused: {event.reason}")

    def _on_seal(self, seal: Seal, offset: int) -> None:
        if seal.version in self.seals or seal.version < self.v:
            return
        self.seals[seal.version] = (seal, offset)
        self.sealed_through = max(self.sealed_through, seal.version)
        # Versions are sealed in order, but their topics are read in any: a lower seal is there too, and comes.
        self.window = {version: topic for version, topic in self.window.items() if version > self.sealed_through}
        if self.table.get("rollout", seal.version) is not None:
            self._cancel_all(self.table.close("rollout", seal.version).slots)

    def _on_trained(self, version: int, waited: bool) -> None:
        self.v = version + 1
        self.seals.pop(version, None)
        self.progress_beat = self.beat
        self.out.append(ev.CloseTopic("rollout", version))
        highest = self.plan.grpo.max_trajectory_age_steps
        self.calm = 0 if waited else self.calm + 1
        if waited and self.lead < highest:
            self.lead += 1
        elif self.calm >= CALM_STEPS and self.lead > min(1, highest):
            self.lead -= 1
            self.calm = 0

    # --- what follows -------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        if self.stop is None:
            self._judge_run()
        if self.stop is None:
            self._end_round()
            self._validate_version()
            self._open()
            self._seal()
            self._assign()
        self._answer()
        state = self.state()
        if state != self.published:
            self.published = state
            self.out.insert(0, ev.PublishState(state))

    def _judge_run(self) -> None:
        waiting = self.learner_ready and self.asked
        dispatch = self.plan.dispatch
        if self.last == 0 and self.dataset is not None:
            n = self.plan.grpo.num_prompts_per_step
            self._stop(f"the data set has {self.dataset.rows} rows, a step needs grpo.num_prompts_per_step={n}", resumable=False)
        failed = [outcome for outcome in self.draw_outcomes if outcome is not None]
        if len(failed) > 2 * self.plan.grpo.num_prompts_per_step:
            cause, times = Counter(failed).most_common(1)[0]
            self._stop(f"{len(failed)} of the last {len(self.draw_outcomes)} draws failed, {times} with: {cause}", resumable=True)
        elif waiting and self.beat - self.producer_beat > self.plan.beats(dispatch.no_producer_timeout_s):
            refused = "; ".join(f"{name}: {problems[0]}" for name, problems in self.roster.refused.items())
            self._stop(
                f"no producer for {dispatch.no_producer_timeout_s:g} s (dispatch.no_producer_timeout_s), version {self.v}"
                + (f"; refused: {refused}" if refused else ""),
                resumable=True,
            )
        elif waiting and self.window and self.beat - self.progress_beat > self.plan.beats(dispatch.no_progress_timeout_s):
            limit = f"{dispatch.no_progress_timeout_s:g} s (dispatch.no_progress_timeout_s)"
            self._stop(f"no group accepted for {limit}: {self.waits_for()}", resumable=True)

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
            producer = self.roster.producers.get(name)
            if producer is not None:
                producer.held, producer.digest, producer.failed_rounds = version, digest, 0
                producer.suspect = False  # its engine has answered
        for name, why in outcome.failed.items():
            self._note(f"refit round {self.round.number} version {version} failed at {name}: {why}", "warning")
            producer = self.roster.producers.get(name)
            if producer is not None:
                producer.failed_rounds += 1
                if producer.failed_rounds >= self.plan.refit.max_tries:
                    self._remove(name, f"expelled after {producer.failed_rounds} failed rounds, last: {why}")
                    self.roster.refused[name] = [f"refit failed {producer.failed_rounds} times: {why}"]
        self.F = version if self.F is None else max(self.F, version)
        self.weights_digest = digest
        gap = f" probe_gap={max(gaps.values()):.1e}" if gaps else ""
        self._note(f"version {version} announced: loaded={len(outcome.loaded)} failed={len(outcome.failed)}{gap}")
        self.round = None
        self.progress_beat = self.beat
        if self.plan.validates(version, self.last):
            self.validation.due(version, self.dataset)

    def _validate_version(self) -> None:
        validation = self.validation
        if validation.version is None:
            return
        self._make_topic("validation", validation.version)
        done = validation.judge(self.table.get("validation", validation.version), self.beat)
        if done is None:
            return
        slots = self.table.get("validation", done.version)
        if slots is not None:
            self._cancel_all(self.table.close("validation", done.version).slots)
        self.out += [done, ev.CloseTopic("validation", done.version)]
        self.topics.pop(("validation", done.version), None)

    def _open(self) -> None:
        """Make topics one version ahead; open the lowest versions of [F, F + lead] while all opened ones are assigned."""
        if self.last is None or not self.learner_ready:
            return
        first = max(self.v, 0) if self.F is None else max(self.F, self.v)
        lead_end = min((self.F or 0) + self.lead, self.last - 1)
        for version in range(first, min(lead_end + 1, self.last - 1) + 1):
            self._make_topic("rollout", version)
        if self.F is None or not self.settled:
            return
        for version in range(max(self.F, self.sealed_through + 1), lead_end + 1):
            if version in self.window:
                if not self._assigned(version):
                    return
                continue
            if ("rollout", version) not in self.topics:
                return
            self.window[version] = self.topics["rollout", version]
            if not self._assign_version("rollout", version):
                return

    def _assigned(self, version: int) -> bool:
        slots = self.table.get("rollout", version)
        return slots is None or slots.all_assigned

    def _assign(self) -> None:
        for slots in self.table.versions("validation"):
            self._assign_version("validation", slots.version)
        for version in sorted(self.window):
            if not self._assign_version("rollout", version):
                break
        self._open()

    def _assign_version(self, kind: Kind, version: int) -> bool:
        """Give out the free slots of a version. True when none is left."""
        slots = self.table.get(kind, version)
        if slots is None:
            return True
        exact = kind == "validation"
        urgent = exact or version == self.v
        for slot in slots.unassigned():
            producer = self.roster.best_for(
                version, self.plan.grpo.max_trajectory_age_steps, slot.holders, exact=exact, urgent=urgent
            )
            if producer is None:
                return False
            self._issue(slot, producer)
        return True

    def _issue(self, slot: Slot, producer: Producer) -> None:
        if slot.attempt > 0 or slot.draw > 0:
            self.counters.reissued += 1
        key = self.table.assign(slot, producer.name)
        self.roster.give(producer, slot.kind, key, self.beat)
        plan, grpo = self.plan, self.plan.grpo
        validation = slot.kind == "validation"
        rows = self.dataset.rows if self.dataset else None
        request = Request(
            uuid=plan.uuid,
            kind=slot.kind,
            producer=producer.name,
            incarnation=plan.incarnation,
            T=key.version,
            slot=key.slot,
            draw=key.draw,
            attempt=key.attempt,
            row=key.slot if validation else row_of(plan.seed, rows, grpo.num_prompts_per_step, key.version, key.slot, key.draw),
            min_version=key.version if validation else max(0, key.version - grpo.max_trajectory_age_steps),
            sampling=plan.validation_sampling() if validation else plan.sampling(),
        )
        self.out.append(ev.SendRequest(request, producer.requests_partition))

    def _seal(self) -> None:
        version = self.sealed_through + 1
        slots = self.table.get("rollout", version)
        if slots is None or version not in self.window or version in self.seals_written or not slots.complete:
            return
        self.seals_written.add(version)
        entries = {}
        for slot in slots.slots:
            f = slot.filled
            entries[slot.index] = SealedSlot(f.key.draw, f.key.attempt, f.partition, f.offset, f.sha256, f.content_sha256)
        plan = self.plan
        self.out.append(ev.WriteSeal(Seal(plan.uuid, plan.incarnation, plan.config_digest, version, entries)))

    # --- rank 0 -------------------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        if not self.asked or not self.learner_ready:
            return
        if self.stop is not None:
            self._reply(ev.AnswerStop(self.stop.reason, self.stop.finished))
            return
        if self.round is None and self._refit_due():
            self._start_round(self.v)
            return
        busy = self.round is not None and self.round.phase in (Phase.PAUSE, Phase.OFFER)
        if self.v == self.last:
            if self.round is None and self.validation.version is None and not self.finishing:
                self.finishing = True
                self._reply(ev.AnswerFinish())
        elif self.v in self.seals and not busy:
            seal, offset = self.seals[self.v]
            self._reply(ev.AnswerBatch(self.v, seal, offset, catch_up=self.F is not None and self.v < self.F))

    def _reply(self, answer: ev.AnswerStop | ev.AnswerFinish | ev.AnswerBatch) -> None:
        self.asked = False
        self.out.append(answer)

    def _refit_due(self) -> bool:
        """Whether a round should start now that rank 0 is free."""
        if self.awaited or self.last is None or (self.F is not None and self.v < self.F):
            return False
        needing = self._needing()
        if self.F is None:
            # A first round waits for the producers that were ordered; an empty one would leave all of them newcomers.
            enough = len(self.roster.producers) >= self.plan.producer_count
            late = self.beat - self.ready_beat > self.plan.beats(self.plan.dispatch.start_timeout_s)
            return bool(needing) and (enough or late)
        if self.v > self.F:
            if self.v == self.last and not self.plan.validates(self.v, self.last):
                return False
            return self.validation.version is None
        if not needing or self.v in self.seals or self.v == self.last:
            return False
        serving = any(p.holds(self.F, self.weights_digest) for p in self.roster.producers.values())
        return not serving or max(self.beat - p.joined_beat for p in needing) >= NEWCOMER_BEATS

    def _needing(self) -> list[Producer]:
        digest = self.weights_digest if self.v == self.F else None
        return [
            p
            for p in self.roster.producers.values()
            if not p.draining and p.state is not ProducerState.LEAVING and not (digest and p.holds(self.v, digest))
        ]

    def _start_round(self, version: int) -> None:
        self.rounds += 1
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

    def state(self) -> State:
        """All that holds, as published on `control`."""
        version = self.validation.version
        validation_topic = None if version is None else self.topics.get(("validation", version))
        return State(
            uuid=self.plan.uuid,
            incarnation=self.plan.incarnation,
            config_digest=self.plan.config_digest,
            F=self.F,
            weights_digest=self.weights_digest,
            sealed_through=self.sealed_through,
            last_version=self.last,
            window=dict(sorted(self.window.items())),
            validations={version: validation_topic} if version is not None and validation_topic else {},
            dataset=self.dataset,
            members=self.roster.members(),
            refused=self.roster.refused,
            round=self.round.record() if self.round else None,
            stop=self.stop,
        )

    def waits_for(self) -> str:
        """What rank 0 waits for, for a person."""
        if not self.roster.producers:
            refused = ", ".join(f"{name} ({problems[0]})" for name, problems in self.roster.refused.items())
            return f"the first of {self.plan.producer_count} producers to join" + (f"; refused: {refused}" if refused else "")
        if self.round is not None:
            return f"round {self.round.number} ({self.round.phase.value}): {', '.join(self.round.waiting_for()) or 'rank 0'}"
        if self.F is None:
            return f"{self.plan.producer_count} producers, {len(self.roster.producers)} joined"
        if self.validation.version is not None and self.v > self.F:
            return f"validation of version {self.validation.version}"
        slots = self.table.get("rollout", self.v)
        if slots is None:
            return f"the seal of version {self.v}"
        missing = list(slots.missing())
        who = ", ".join(f"s{s.index:04d} at {'/'.join(s.holders) or 'nobody'}" for s in missing[:4])
        return f"{len(missing)} of {len(slots.slots)} groups of version {self.v} ({who})"

    def _learn_last(self) -> None:
        grpo = self.plan.grpo
        if self.dataset is not None:
            self.last = last_version(grpo.max_num_steps, grpo.max_num_epochs, self.dataset.rows, grpo.num_prompts_per_step)

    def _make_topic(self, kind: Kind, version: int) -> None:
        if (kind, version) not in self.topics_asked and (kind, version) not in self.topics:
            self.topics_asked.add((kind, version))
            self.out.append(ev.MakeTopic(kind, version))

    def _release(self, kind: Kind, key: Attempt, producer: str, failure: FailureKind, reason: str) -> None:
        """A request came back without a group."""
        self.roster.take(producer, kind, key)
        slot = self.table.slot(kind, key)
        draw = slot.draw if slot else 0
        freed = self.table.fail(kind, key, producer, failure, reason)
        if freed is None:
            return
        self.counters.bump("failures", failure.value)
        self._note(f"{key} failed at {producer} ({failure.value}): {reason}", "warning")
        if freed.draw > draw and kind == "rollout":
            self.draw_outcomes.append(reason)

    def _remove(self, name: str, why: str) -> None:
        producer = self.roster.remove(name)
        if producer is None:
            return
        self._note(f"producer {name} {why}", "warning" if "left" not in why else "info")
        if self.round is not None:
            self.round.on_lost(name)
        for _ in self.table.lose(name):
            self.counters.bump("failures", FailureKind.LOST.value)

    def _cancel_all(self, slots: list[Slot]) -> None:
        for slot in slots:
            for name, key in slot.holders.items():
                self._cancel(self.roster.producers.get(name), slot.kind, key)

    def _cancel(self, producer: Producer | None, kind: Kind, key: Attempt) -> None:
        if producer is None:
            return
        self.roster.take(producer.name, kind, key)
        request = Request(
            uuid=self.plan.uuid,
            kind="cancel",
            producer=producer.name,
            incarnation=self.plan.incarnation,
            T=key.version,
            slot=key.slot,
            draw=key.draw,
            attempt=key.attempt,
            row=0,
            min_version=0,
            cancels=kind,
        )
        self.out.append(ev.SendRequest(request, producer.requests_partition))

    def _stop(self, reason: str, *, resumable: bool) -> None:
        if self.stop is None:
            self.stop = Stop(reason=reason, v=self.v, resumable=resumable)
            self._note(f"stop: {reason}", "error")

    def _note(self, text: str, level: str = "info") -> None:
        self.out.append(Note(text, "warning" if level == "warning" else "error" if level == "error" else "info"))

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        self.table.validate()
        self.roster.validate()
        age = self.plan.grpo.max_trajectory_age_steps
        for version in self.window:
            assert self.F is not None and self.F <= version <= self.F + age, (version, self.F)
            assert version > self.sealed_through
        held = {
            (name, slot.kind, key)
            for slots in self.table.open_versions.values()
            for slot in slots.slots
            for name, key in slot.holders.items()
        }
        assigned = {(p.name, *item) for p in self.roster.producers.values() for item in p.assigned}
        assert held == assigned, (held - assigned, assigned - held)
