"""Who rolls out what: topics are made, versions opened, slots given out, hedged, taken back and cancelled.

Invariants: a request for a target goes only to a producer whose acknowledged version is between target - A and target; lower
versions are given out first; nothing is issued before what earlier incarnations left is settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from learner.dispatcher.deciding.commands import MakeTopic, Outbox, SendRequest
from learner.dispatcher.state.producer import Producer
from learner.dispatcher.state.run_state import RunState
from learner.dispatcher.state.slots import Kind, Slot, SlotState
from schemas.draws import row_of
from schemas.identity import Attempt
from schemas.records.requests import Request
from schemas.records.status import FailureKind, InHand

HEDGES_A_BEAT = 32


class Issuing:
    def __init__(self, state: RunState, out: Outbox) -> None:
        self.state = state
        self._out = out

    # --- versions and slots -------------------------------------------------------------------------------------------------

    def open_versions(self) -> None:
        """Make topics one version ahead; open the lowest versions of [frontier, frontier + lead] while all opened ones are
        assigned."""
        s = self.state
        last = s.last_version
        if last is None or not s.learner.ready:
            return
        first = max(s.version, 0) if s.frontier is None else max(s.frontier, s.version)
        lead_end = min((s.frontier or 0) + s.lead.value, last - 1)
        for version in range(first, min(lead_end + 1, last - 1) + 1):
            self.make_topic("rollout", version)
        if s.frontier is None or not s.takeover.settled:
            return
        for version in range(max(s.frontier, s.sealed_through + 1), lead_end + 1):
            if version in s.window:
                slots = s.slots.get("rollout", version)
                if slots is not None and not slots.all_assigned:
                    return
                continue
            if ("rollout", version) not in s.topics.ids:
                return
            s.window[version] = s.topics.ids["rollout", version]
            if not self.assign_version("rollout", version):
                return

    def make_topic(self, kind: Kind, version: int) -> None:
        topics = self.state.topics
        if (kind, version) not in topics.making and (kind, version) not in topics.ids:
            topics.making.add((kind, version))
            self._out.add(MakeTopic(kind, version))

    def on_topic(self, kind: Kind, version: int, topic_id: str) -> None:
        s = self.state
        s.topics.ids[kind, version] = topic_id
        if kind == "rollout" and version >= s.version and s.slots.get(kind, version) is None:
            s.slots.open(kind, version)

    def assign(self) -> None:
        """Give out the free slots of all open versions; open further ones."""
        s = self.state
        for slots in s.slots.versions("validation"):
            self.assign_version("validation", slots.version)
        for version in sorted(s.window):
            if not self.assign_version("rollout", version):
                break
        self.open_versions()

    def assign_version(self, kind: Kind, version: int) -> bool:
        """Give out the free slots of a version. True when none is left."""
        s = self.state
        slots = s.slots.get(kind, version)
        if slots is None:
            return True
        exact = kind == "validation"
        urgent = exact or version == s.version
        slot = slots.next_free()
        if slot is None:
            return True
        age = s.plan.grpo.max_trajectory_age_steps
        candidates = s.roster.candidates(version, age, exact=exact, urgent=urgent)
        while slot is not None:
            producer = candidates.best(slot.holders)
            if producer is None:
                return False
            self._issue(slot, producer)
            slot = slots.next_free()
        return True

    def hedge(self) -> None:
        """Slots of the version that is trained next, all given out, some to producers far slower than the fleet: once more.

        Chosen by the producer's rate, never by the rollout's length, so long rollouts are trained as often as short ones.
        """
        s = self.state
        slots = s.slots.get("rollout", s.version)
        share = s.plan.dispatch.hedge_below
        if slots is None or share <= 0 or s.version not in s.window or not slots.all_assigned or slots.complete:
            return
        if s.round is not None:  # who is in a round stands still by order
            return
        slow = s.roster.slow(s.clock.beat, share)
        lonely = [
            slot
            for name in sorted(slow)
            for slot, _ in slots.held_by(name)
            if slot.state is SlotState.ASSIGNED and len(slot.holders) == 1
        ]
        if not lonely:
            return
        age = s.plan.grpo.max_trajectory_age_steps
        candidates = s.roster.candidates(s.version, age, exact=False, urgent=True)
        for slot in lonely[:HEDGES_A_BEAT]:
            producer = candidates.best(slow)
            if producer is None:
                return
            s.counters.hedged += 1
            self._out.note(f"{slot.next_key} hedged: {next(iter(slot.holders))} is slow, {producer.name} tries it too")
            self._issue(slot, producer)

    def _issue(self, slot: Slot, producer: Producer) -> None:
        s = self.state
        if (slot.attempt > 0 or slot.draw > 0) and not slot.holders:
            s.counters.reissued += 1
        key = s.slots.assign(slot, producer.name)
        s.roster.give(producer, slot.kind, key, s.clock.beat)
        plan, grpo = s.plan, s.plan.grpo
        validation = slot.kind == "validation"
        rows = s.dataset.rows if s.dataset else None
        request = Request(
            uuid=plan.uuid,
            kind=slot.kind,
            producer=producer.name,
            incarnation=plan.incarnation,
            target=key.version,
            slot=key.slot,
            draw=key.draw,
            attempt=key.attempt,
            row=key.slot if validation else row_of(plan.seed, rows, grpo.num_prompts_per_step, key.version, key.slot, key.draw),
            min_version=key.version if validation else max(0, key.version - grpo.max_trajectory_age_steps),
            sampling=plan.validation_sampling() if validation else plan.sampling(),
        )
        self._out.add(SendRequest(request, producer.member.requests_partition))

    # --- work that ends without a group -------------------------------------------------------------------------------------

    def release(self, kind: Kind, key: Attempt, producer: str, failure: FailureKind, reason: str) -> None:
        """A request came back without a group."""
        s = self.state
        s.roster.take(producer, kind, key)
        slot = s.slots.slot(kind, key)
        draw = slot.draw if slot else 0
        freed = s.slots.fail(kind, key, producer, failure, reason)
        if freed is None:
            return
        s.counters.bump("failures", failure.value)
        self._out.note(f"{key} failed at {producer} ({failure.value}): {reason}", "warning")
        if freed.draw > draw and kind == "rollout":
            s.draw_outcomes.add(reason)

    def release_stalled(self, producer: Producer, limit_beats: int) -> None:
        """Requests of a producer that made no progress for so long go to others."""
        for kind, key in producer.stalled(self.state.clock.beat, limit_beats):
            producer.suspect = True
            self.release(kind, key, producer.name, FailureKind.ROLLOUT, f"no progress for {limit_beats} beats")
            self.cancel(producer.name, kind, key)

    def release_all(self, producer: str) -> None:
        """A producer is gone: what it had is issued again."""
        s = self.state
        lost = s.slots.lose(producer)
        for _ in range(lost.requests):
            s.counters.bump("failures", FailureKind.LOST.value)
        for reason in lost.given_up:
            s.draw_outcomes.add(reason)

    def reconcile(self, producer: Producer, in_hand: Sequence[InHand]) -> None:
        """Make the slots say what the producer's report says that it has in hand."""
        s = self.state
        reported = {(item.kind, item.key) for item in in_hand}
        for slots in s.slots.open_versions.values():
            for slot, key in list(slots.held_by(producer.name)):
                if (slot.kind, key) in reported:
                    reported.discard((slot.kind, key))
                    s.roster.give(producer, slot.kind, key, s.clock.beat)
                else:  # not read yet, or never: then it must not be done twice
                    s.slots.fail(slot.kind, key, producer.name, FailureKind.LOST, "not in hand at the report")
                    self.cancel(producer.name, slot.kind, key)
        for kind, key in sorted(reported):
            if s.slots.adopt(kind, key, producer.name):
                s.roster.give(producer, kind, key, s.clock.beat)
            else:
                self.cancel(producer.name, kind, key)

    def cancel_all(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            for name, key in slot.holders.items():
                self.cancel(name, slot.kind, key)

    def cancel(self, name: str, kind: Kind, key: Attempt) -> None:
        """Ask a producer not to do a request any more, if it is still there."""
        s = self.state
        producer = s.roster.producers.get(name)
        if producer is None:
            return
        s.roster.take(name, kind, key)
        request = Request(
            uuid=s.plan.uuid,
            kind="cancel",
            producer=name,
            incarnation=s.plan.incarnation,
            target=key.version,
            slot=key.slot,
            draw=key.draw,
            attempt=key.attempt,
            row=0,
            min_version=0,
            cancels=kind,
        )
        self._out.add(SendRequest(request, producer.member.requests_partition))
