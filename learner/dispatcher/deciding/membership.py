"""Who is a producer of the run: reports are checked and joined, leases and refusals judged, leavers' work issued again.

Invariant: a producer that holds another config, model or data set than the learner gets no request; whoever is removed has
nothing in hand any more as far as slots and roster know, and counts as lost in an open round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learner.dispatcher.deciding.commands import Outbox, ReadPast
from learner.dispatcher.deciding.issuing import Issuing
from learner.dispatcher.state.run_state import RunState
from schemas.records.status import FailureKind, Heartbeat, Left, Report

MAX_REFUSALS = 3  # records of one producer that are refused in a row until it is expelled


class Membership:
    def __init__(self, state: RunState, issuing: Issuing, out: Outbox) -> None:
        self.state = state
        self._issuing = issuing
        self._out = out

    # --- records ------------------------------------------------------------------------------------------------------------

    def on_report(self, report: Report) -> None:
        s = self.state
        if report.incarnation not in (None, s.plan.incarnation):
            return  # the answer to an earlier claim; the one to this claim follows
        s.takeover.awaited.discard(report.producer)
        problems = disagreements(report, s.plan.agreed, s.digests)
        if report.plan_digest != s.plan.plan_digest:
            problems.append("model: the two sides would send and receive different tensors; use the same checkpoint")
        if s.dataset is None:
            if not problems:
                s.dataset = report.dataset
        elif s.dataset != report.dataset:
            problems.append(f"data: learner knows {s.dataset}, producer has {report.dataset}; use the same data set")
        if problems:
            s.roster.members.refuse(report.producer, problems)
            self._out.note(f"producer {report.producer} refused: {'; '.join(problems)}", "warning")
            return
        for name, value in report.digests.items():
            s.digests.setdefault(name, value)  # what the learner cannot compute (of environments), the first report sets
        if report.incarnation is None and report.producer in s.roster.producers:
            return
        producer = s.roster.join(report, s.clock.beat)
        self._out.note(f"producer {report.producer} joined: capacity={report.capacity} held={report.held}")
        self._issuing.reconcile(producer, report.in_hand)

    def on_heartbeat(self, record: Heartbeat) -> None:
        s = self.state
        if s.roster.heartbeat(record, s.clock.beat) is None:
            s.counters.ignored_status += 1

    def on_left(self, record: Left) -> None:
        s = self.state
        s.takeover.awaited.discard(record.producer)
        for item in record.unfinished:
            self._issuing.release(item.kind, item.key, record.producer, FailureKind.LOST, "handed back")
        s.roster.draining.discard(record.producer)
        self.remove(record.producer, f"left: {record.reason}", expected=True)

    def drain(self, name: str, by: str) -> None:
        """An operator wants a producer to leave once it has nothing in hand."""
        if self.state.roster.drain(name):
            self._out.note(f"producer {name} drains, asked by {by}")

    def on_refusal(self, name: str, reason: str) -> None:
        """A record of a producer went to quarantine; who sends several in a row is expelled."""
        s = self.state
        sender = s.roster.producers.get(name)
        if sender is None or not s.takeover.settled:
            return  # read again by a new learner: it says nothing of what the producer does now
        sender.refusals += 1
        if sender.refusals >= MAX_REFUSALS:
            self.expel(name, f"{sender.refusals} of its records in a row were refused, the last: {reason}")

    # --- time ---------------------------------------------------------------------------------------------------------------

    def on_beat(self, number: int) -> None:
        """Ask to read on where somebody's lease may have lapsed; take stalled requests back."""
        s = self.state
        dispatch = s.plan.dispatch
        if s.roster.lapsed(number, dispatch.lease_beats):
            self._out.add(ReadPast(number))
        stall = s.plan.beats(dispatch.stall_timeout_s)
        for producer in list(s.roster.producers.values()):
            self._issuing.release_stalled(producer, stall)
        if s.roster.producers:
            s.clock.producer = number
        if number > dispatch.lease_beats:
            s.takeover.awaited.clear()
        if not s.takeover.settled and not s.takeover.awaited:
            self._out.add(ReadPast(number))

    def on_caught_up(self, number: int) -> None:
        """All that was published before a beat has been read: whoever is still silent is gone."""
        s = self.state
        s.takeover.settled = s.takeover.settled or not s.takeover.awaited
        for producer in s.roster.lapsed(number, s.plan.dispatch.lease_beats):
            self.remove(producer.name, f"lost: nothing heard for {s.plan.dispatch.lease_beats} beats")

    # --- going --------------------------------------------------------------------------------------------------------------

    def expel(self, name: str, why: str) -> None:
        """A producer whose work cannot be used. It learns so from the control state, ends, and may come back as a new one."""
        self.remove(name, f"expelled: {why}")
        self.state.roster.members.refuse(name, [why])

    def remove(self, name: str, why: str, *, expected: bool = False) -> None:
        """A producer is gone: what it had is issued again, and in an open round nobody waits for it."""
        s = self.state
        if s.roster.remove(name) is not None:
            self._out.note(f"producer {name} {why}", "info" if expected else "warning")
            self._issuing.release_all(name)
        if s.round is not None:
            s.round.on_lost(name)


def disagreements(report: Report, agreed: Mapping[str, Any], digests: Mapping[str, str]) -> list[str]:
    """What a newcomer holds differently from the learner, one line a key, with the values of both sides."""
    problems = [
        f"{key}: learner has {agreed.get(key)!r}, producer has {report.agreed.get(key)!r}; use the same config file for both"
        for key in sorted(agreed.keys() | report.agreed.keys())
        if agreed.get(key) != report.agreed.get(key)
    ]
    problems += [
        f"{name}: learner has {value}, producer has {report.digests.get(name)}; use the same files on both hosts"
        for name, value in sorted(digests.items())
        if report.digests.get(name) != value
    ]
    return problems
