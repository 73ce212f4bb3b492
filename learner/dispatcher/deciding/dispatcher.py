"""The dispatcher: decides who rolls out what, when weights move, and what rank 0 does next. No I/O, no clock but beats.

| loop | consumes | produces | waits for | unblocked by | deadline |
|---|---|---|---|---|---|
| fill a version | status, groups | requests, seals | a group a slot | any healthy producer | leases, `no_progress_timeout_s` |
| refit round | acks, rank 0 | control states | acks of a phase | acks, or the loss of who owes one | `phase_timeout_s` |
| rank 0 | its questions | answers | a sealed batch, a round | the two above | `rank_timeout_s` at the ranks |

Invariants: **a short target >= version can always be filled** (nothing but a seal closes a version, and every free slot goes to
any producer whose acknowledged weights are young enough); no request for a target goes to a producer that acknowledged less than
target - A; versions are sealed in order; the frontier never falls.
"""

from __future__ import annotations

from typing import assert_never

from learner.dispatcher.deciding import events as ev
from learner.dispatcher.deciding.collecting import Collecting
from learner.dispatcher.deciding.commands import Command, HandOverBatch, LearnerAnswer, Outbox
from learner.dispatcher.deciding.events import Event
from learner.dispatcher.deciding.issuing import Issuing
from learner.dispatcher.deciding.membership import Membership
from learner.dispatcher.deciding.refits import Refits
from learner.dispatcher.deciding.reporting import slot_table
from learner.dispatcher.deciding.validating import Validating
from learner.dispatcher.deciding.verdicts import run_verdict
from learner.dispatcher.state.plan import Plan
from learner.dispatcher.state.rounds import Phase
from learner.dispatcher.state.run_state import RunState
from learner.link import messages
from schemas.errors import ProtocolError
from schemas.records.control import State, Stop
from schemas.records.status import Ack, Failed, Heartbeat, Left, Operator, Report

TABLE_SHARE = 4  # after this part of the time that a run may go without a group, the slots are logged


class Dispatcher:
    """`on(event)` returns the commands that follow from it, in the order in which they must be carried out.

    `state` holds everything; the deciders around it (issuing, membership, collecting, validating, refits) hold nothing of their
    own.
    """

    def __init__(self, plan: Plan, version: int, inherited: State | None = None) -> None:
        self.state = RunState(plan, version, inherited)
        self._out = Outbox()
        self._issuing = Issuing(self.state, self._out)
        self._membership = Membership(self.state, self._issuing, self._out)
        self._collecting = Collecting(self.state, self._issuing, self._membership, self._out)
        self._validating = Validating(self.state, self._issuing, self._out)
        self._refits = Refits(self.state, self._issuing, self._membership, self._validating, self._out)

    def begin(self) -> list[Command]:
        """The first commands, before any event."""
        self._advance()
        return self._out.take()

    def on(self, event: Event) -> list[Command]:
        """
        Raises:
            ProtocolError: the event cannot follow upon what happened before.
        """
        match event:
            case ev.StatusRead(record):
                self._on_status(record)
            case ev.BeatRead(number):
                self._on_beat(number)
            case ev.CaughtUp(number):
                self._membership.on_caught_up(number)
            case ev.TopicReady(kind, version, topic_id):
                self._issuing.on_topic(kind, version, topic_id)
            case ev.GroupRead():
                self._collecting.on_group(event)
            case ev.GroupRefused():
                self._collecting.on_refused(event)
            case ev.SealRead(seal, offset):
                self._collecting.on_seal(seal, offset)
            case _:
                self._on_learner(event)
        self._advance()
        return self._out.take()

    # --- events -------------------------------------------------------------------------------------------------------------

    def _on_learner(self, event: ev.LearnerEvent) -> None:
        s = self.state
        match event:
            case messages.LearnerReady():
                self._on_learner_ready(event)
            case messages.NextQuestion():
                s.learner.asked = True
            case messages.RendezvousOpen(rendezvous):
                if s.round is not None:
                    s.round.transfer(rendezvous, s.clock.beat)
            case messages.WeightsSent(digest, failed_groups):
                if s.round is not None:
                    s.round.sent(digest, failed_groups)
            case messages.VersionTrained():
                self._collecting.on_trained(event)
                self._refits.compare(s.version, event.weights_digest)
            case messages.StopRequest(reason, ordered):
                self._stop(reason, resumable=True, ordered=ordered)
            case messages.RunFinished():
                s.stop = Stop(reason="all steps trained", version=s.version, resumable=False, finished=True)
            case _:
                assert_never(event)

    def _on_learner_ready(self, event: messages.LearnerReady) -> None:
        s = self.state
        if event.plan_digest != s.plan.plan_digest:
            raise ProtocolError(f"rank 0 sends by plan {event.plan_digest}, its own dispatcher made {s.plan.plan_digest}")
        s.learner.ready = True
        s.clock.learner_ready = s.clock.progress = s.clock.producer = s.clock.beat
        self._refits.compare(event.version, event.weights_digest)

    def _on_status(self, record: Report | Heartbeat | Ack | Failed | Left | Operator) -> None:
        match record:
            case Report():
                self._membership.on_report(record)
            case Heartbeat():
                self._membership.on_heartbeat(record)
            case Ack():
                self._refits.on_ack(record)
            case Failed():
                item = record.request
                self._issuing.release(item.kind, item.key, record.producer, record.failure, record.reason)
            case Left():
                self._membership.on_left(record)
            case Operator(action="stop"):
                self._stop(f"stopped by {record.by}", resumable=True, ordered=True)
            case Operator():
                if record.producer is not None:
                    self._membership.drain(record.producer, record.by)
            case _:
                assert_never(record)

    def _on_beat(self, number: int) -> None:
        s = self.state
        s.clock.beat = number
        if s.round is not None:
            s.round.on_beat(number)
        self._membership.on_beat(number)
        if s.learner.asked and s.stop is None:
            self._issuing.hedge()
            patience = s.plan.beats(s.plan.dispatch.no_progress_timeout_s) // TABLE_SHARE
            if s.window and patience and number - s.clock.progress == patience:
                self._out.note("\n  ".join([f"no group for {patience} beats:", *slot_table(s)]), "warning")

    # --- what follows -------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        s = self.state
        if s.stop is None:
            verdict = run_verdict(s)
            if verdict is not None:
                self._out.note("\n  ".join(["the slots at the end:", *slot_table(s)]), "warning")
                self._stop(verdict.reason, resumable=verdict.resumable)
        if s.stop is None:
            self._refits.advance()
            self._validating.advance()
            self._issuing.open_versions()
            self._collecting.seal()
            self._issuing.assign()
        self._answer()
        s.roster.dismiss_idle(busy=s.round.members if s.round is not None else ())

    def _answer(self) -> None:
        """Answer rank 0's question what to do next, if it has asked and there is something."""
        s = self.state
        if not s.learner.asked or not s.learner.ready:
            return
        if s.stop is not None:
            self._reply(messages.EndRun(s.stop.reason, s.stop.finished, s.stop.ordered))
            return
        if s.round is None and self._refits.due():
            self._refits.start(s.version)
            return
        busy = s.round is not None and s.round.phase in (Phase.PAUSE, Phase.OFFER)
        if s.version == s.last_version:
            if s.round is None and s.validation.version is None and not s.learner.finishing:
                s.learner.finishing = True
                self._reply(messages.FinishRun())
        elif s.version in s.seals.read and not busy:
            seal, offset = s.seals.read[s.version]
            catch_up = s.frontier is not None and s.version < s.frontier
            self._reply(HandOverBatch(s.version, seal, offset, catch_up))

    def _reply(self, answer: LearnerAnswer) -> None:
        self.state.learner.asked = False
        self._out.add(answer)

    def _stop(self, reason: str, *, resumable: bool, ordered: bool = False) -> None:
        s = self.state
        if s.stop is None:
            s.stop = Stop(reason=reason, version=s.version, resumable=resumable, ordered=ordered)
            self._out.note(f"stop: {reason}", "info" if ordered else "error")
