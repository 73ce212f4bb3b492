"""When a refit round starts, how it moves on, and what its end means: the frontier moves.

Invariants: a round starts only while rank 0 is free, and never while a version is being validated; the frontier never falls.
"""

from __future__ import annotations

from collections.abc import Mapping

from learner.dispatcher.deciding.commands import Outbox
from learner.dispatcher.deciding.issuing import Issuing
from learner.dispatcher.deciding.membership import Membership
from learner.dispatcher.deciding.validating import Validating
from learner.dispatcher.state.producer import Producer
from learner.dispatcher.state.rounds import Phase, RefitRound
from learner.dispatcher.state.run_state import RunState
from learner.link.messages import StartRefit
from schemas.records.control import Member
from schemas.records.status import Ack, ProducerState

NEWCOMER_BEATS = 2  # newcomers within so many beats share a round


class Refits:
    def __init__(self, state: RunState, issuing: Issuing, membership: Membership, validating: Validating, out: Outbox) -> None:
        self.state = state
        self._issuing = issuing
        self._membership = membership
        self._validating = validating
        self._out = out
        self._lacking_of: tuple[Mapping[str, Member], int, str | None] | None = None
        self._lacking_names: list[str] = []

    def on_ack(self, ack: Ack) -> None:
        s = self.state
        if s.round is None or not s.round.on_ack(ack):
            s.counters.ignored_status += 1

    def due(self) -> bool:
        """Whether a round should start now that rank 0 is free."""
        s = self.state
        if s.takeover.awaited or s.last_version is None or (s.frontier is not None and s.version < s.frontier):
            return False
        lacking = self._lacking()
        if s.frontier is None:
            # A first round waits for the producers that were ordered; an empty one would leave all of them newcomers.
            enough = len(s.roster.producers) >= s.plan.producer_count
            late = s.clock.beat - s.clock.learner_ready > s.plan.beats(s.plan.dispatch.start_timeout_s)
            return bool(lacking) and (enough or late)
        if s.version > s.frontier:
            if s.version == s.last_version and not s.plan.validates(s.version, s.last_version):
                return False
            return s.validation.version is None
        if not lacking or s.version in s.seals.read or s.version == s.last_version:
            return False
        serving = any(p.holds(s.frontier, s.weights_digest) for p in s.roster.producers.values())
        return not serving or max(s.clock.beat - p.joined_beat for p in lacking) >= NEWCOMER_BEATS

    def start(self, version: int) -> None:
        """Open a round that gives `version` to everybody who lacks it."""
        s, plan = self.state, self.state.plan
        s.rounds += 1
        if self._validating.wanted(version):
            self._issuing.make_topic("validation", version)  # so that its requests go out first, at once when it is announced
        lacking = self._lacking()
        s.round = RefitRound(
            number=s.rounds,
            incarnation=plan.incarnation,
            version=version,
            mode=plan.refit.mode,
            members={p.name: p.world_size for p in lacking},
            group_size=plan.refit.group_size,
            deadline_beats=plan.beats(plan.refit.phase_timeout_s),
            drain_beats=plan.beats(plan.dispatch.stall_timeout_s),
            opened_beat=s.clock.beat,
            tries={p.name: p.failed_rounds for p in lacking},
        )
        self.advance()

    def advance(self) -> None:
        """Ask rank 0 to send once nobody owes a pause ack; end the round once nobody owes anything."""
        s, open_round = self.state, self.state.round
        if open_round is None:
            return
        if open_round.phase is Phase.PAUSE and s.learner.asked and not open_round.waiting_for():
            groups, worlds = open_round.offer(s.clock.beat)
            self._out.add(StartRefit(open_round.number, open_round.version, groups, worlds))
            s.learner.asked = False
            return
        result = open_round.result()
        if result is None:
            return
        digest, version, gaps = open_round.digest, open_round.version, open_round.gaps
        for name in result.loaded:
            s.roster.loaded(name, version, digest)
        for name, why in result.failed.items():
            self._failed(name, open_round, why)
        s.frontier = version if s.frontier is None else max(s.frontier, version)
        s.weights_digest = digest
        gap = f" probe_gap={max(gaps.values()):.1e}" if gaps else ""
        self._out.note(f"version {version} announced: loaded={len(result.loaded)} failed={len(result.failed)}{gap}")
        s.round = None
        s.clock.progress = s.clock.beat
        self._validating.on_announced(version)

    def _failed(self, name: str, open_round: RefitRound, why: str) -> None:
        s = self.state
        self._out.note(f"refit round {open_round.number} version {open_round.version} failed at {name}: {why}", "warning")
        producer = s.roster.producers.get(name)
        if producer is not None:
            producer.failed_rounds += 1
            if producer.failed_rounds >= s.plan.refit.max_tries:
                self._membership.expel(name, f"refit failed {producer.failed_rounds} times, the last: {why}")

    def compare(self, version: int, digest: str | None) -> None:
        """Rank 0 has made or loaded `version` again: at the frontier, are its weights those that the producers were given?"""
        s = self.state
        if version == s.frontier and digest is not None and s.weights_digest not in (None, digest):
            self._out.note(f"weights of version {version} differ from those announced; everybody is refit", "warning")
            s.weights_digest = digest

    def _lacking(self) -> list[Producer]:
        """Who does not hold the weights of the present version. Asked after every event, so it is found anew only when the
        members have changed."""
        s = self.state
        digest = s.weights_digest if s.version == s.frontier else None
        known = (s.roster.members.present, s.version, digest)
        if self._lacking_of is None or known[0] is not self._lacking_of[0] or known[1:] != self._lacking_of[1:]:
            self._lacking_of = known
            self._lacking_names = [
                name
                for name, member in known[0].items()
                if not member.draining and not (digest and (member.held, member.digest) == (s.version, digest))
            ]
        producers = (s.roster.producers[name] for name in self._lacking_names)
        return [p for p in producers if p.state is not ProducerState.LEAVING]
