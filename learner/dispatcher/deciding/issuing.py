"""Who rolls out what: versions are opened, slots given out, groups taken in, versions sealed. The lower half of the core.

`Dispatcher` (core.py) adds rounds and rank 0 to it. Nothing here moves weights; `F` is what the upper half last announced.

Invariants: nothing but a seal closes a version; a request for a target goes only to a producer whose acknowledged version is
between target - A and target; lower versions are given out first; versions are sealed in order; roster and table agree on what
each producer has.
"""

from __future__ import annotations

from collections.abc import Sequence

from learner.dispatcher.deciding import events as ev
from learner.dispatcher.deciding.draw_outcomes import DrawOutcomes
from learner.dispatcher.deciding.events import Command, Counters, Filled, Kind, Note
from learner.dispatcher.deciding.plan import Plan
from learner.dispatcher.deciding.roster import Producer, Roster
from learner.dispatcher.deciding.slots import Limits, Slot, SlotState, SlotTable
from learner.dispatcher.deciding.validation import Validation
from schemas.draws import last_version, row_of
from schemas.identity import Attempt
from schemas.records.control import DatasetFacts, State
from schemas.records.group import TrajectoryGroup
from schemas.records.requests import Request
from schemas.records.seal import Seal, SealedSlot
from schemas.records.status import FailureKind, InHand

CALM_STEPS = 20  # steps without a wait after which `lead` falls by one
MAX_REFUSALS = 3  # records of one producer that are refused in a row until it is expelled
HEDGES_A_BEAT = 32


class Issuing:
    """State and moves of everything that is asked of producers. Commands are appended to `out`."""

    def __init__(self, plan: Plan, version: int, inherited: State | None) -> None:
        self.plan = plan
        self.version = version
        self.frontier = inherited.frontier if inherited else None
        self.dataset: DatasetFacts | None = inherited.dataset if inherited else None
        self.last: int | None = None
        self.sealed_through = max(version - 1, inherited.sealed_through if inherited else -1)
        self.window: dict[int, str] = {}
        self.topics: dict[tuple[Kind, int], str] = {}
        self.topics_asked: set[tuple[Kind, int]] = set()
        self.seals: dict[int, tuple[Seal, int]] = {}
        self.seals_written: set[int] = set()
        limits = Limits(plan.dispatch.max_attempts, plan.dispatch.max_draws, plan.dispatch.max_lost)
        self.table = SlotTable(plan.grpo.num_prompts_per_step, limits)
        self.roster = Roster(plan.request_partitions)
        if inherited is not None:
            self.roster.draining |= {name for name, member in inherited.members.items() if member.draining}
        self.validation = Validation(plan)
        self.lead = min(1, plan.grpo.max_trajectory_age_steps)
        self.calm = 0
        self.beat = 0
        self.progress_beat = 0
        self.settled = True
        """Whether all is read that producers of an earlier incarnation had in hand or had published; nothing is issued before."""
        self.learner_ready = False
        self.counters = Counters()
        self.draw_outcomes = DrawOutcomes(4 * plan.grpo.num_prompts_per_step)
        self.out: list[Command] = []
        self._learn_last()

    # --- records ------------------------------------------------------------------------------------------------------------

    def _on_topic(self, kind: Kind, version: int, topic_id: str) -> None:
        self.topics[kind, version] = topic_id
        if kind == "rollout" and version >= self.version and self.table.get(kind, version) is None:
            self.table.open(kind, version)

    def _on_group(self, event: ev.GroupRead) -> None:
        group = event.group
        mean = sum(t.reward for t in group.trajectories) / len(group.trajectories)
        filled = Filled(
            group.request, event.partition, event.offset, event.sha256, event.content_sha256, mean, group.generated_tokens
        )
        self.roster.take(group.producer, group.kind, group.request)
        sender = self.roster.producers.get(group.producer)
        if sender is not None:
            sender.refusals = 0
        slots = self.table.get(group.kind, group.request.version)
        accepted = self.table.accept(group.kind, filled, passes=self._passes(group))
        if accepted is None:
            if slots is None:
                self.counters.late += 1
            else:
                self.counters.duplicates += 1
            return
        self.progress_beat = self.beat
        self.counters.filtered += accepted.filtered
        if group.kind == "rollout":
            self.draw_outcomes.add(None)
        for name, key in accepted.holders.items():
            if name != group.producer or key != group.request:
                self._cancel(self.roster.producers.get(name), group.kind, key)

    def _passes(self, group: TrajectoryGroup) -> bool:
        """The filter of dynamic sampling (DAPO, arXiv:2503.14476): a group of equal rewards has no advantage to learn from."""
        if not self.plan.grpo.use_dynamic_sampling or group.kind != "rollout":
            return True
        rewards = [t.reward for t in group.trajectories]
        return min(rewards) != max(rewards)

    def _on_refused(self, event: ev.GroupRefused) -> None:
        self.counters.bump("refusals", event.reason)
        if event.key is not None and event.producer is not None:
            key = Attempt.parse(event.key)
            self._release(event.kind, key, event.producer, FailureKind.ROLLOUT, f"record refused: {event.reason}")
        sender = self.roster.producers.get(event.producer or "")
        if sender is None or not self.settled:
            return  # read again by a new learner: it says nothing of what the producer does now
        sender.refusals += 1
        if sender.refusals >= MAX_REFUSALS:
            why = f"{sender.refusals} of its records in a row were refused, the last: {event.reason}"
            self._expel(sender.name, why)

    def _expel(self, name: str, why: str) -> None:
        """A producer whose work cannot be used; it is told by the state, ends, and may come back as a new one."""
        self._remove(name, f"expelled: {why}")
        self.roster.refuse(name, [why])

    def _remove(self, name: str, why: str) -> None:
        """The producer is gone: what it had is issued again."""
        producer = self.roster.remove(name)
        if producer is None:
            return
        self._note(f"producer {name} {why}", "warning" if "left" not in why else "info")
        lost = self.table.lose(name)
        for _ in range(lost.requests):
            self.counters.bump("failures", FailureKind.LOST.value)
        for reason in lost.given_up:
            self.draw_outcomes.add(reason)

    def _on_seal(self, seal: Seal, offset: int) -> None:
        if seal.version in self.seals or seal.version < self.version:
            return
        self.seals[seal.version] = (seal, offset)
        self.sealed_through = max(self.sealed_through, seal.version)
        # Versions are sealed in order, but their topics are read in any: a lower seal is there too, and comes.
        self.window = {version: topic for version, topic in self.window.items() if version > self.sealed_through}
        if self.table.get("rollout", seal.version) is not None:
            self._cancel_all(self.table.close("rollout", seal.version).slots)

    def _on_trained(self, version: int, waited: bool) -> None:
        self.version = version + 1
        self.seals.pop(version, None)
        self.seals_written.discard(version)
        self.topics.pop(("rollout", version), None)
        self.topics_asked.discard(("rollout", version))
        self.progress_beat = self.beat
        self.out.append(ev.CloseTopic("rollout", version))
        highest = self.plan.grpo.max_trajectory_age_steps
        self.calm = 0 if waited else self.calm + 1
        if waited and self.lead < highest:
            self.lead += 1
        elif self.calm >= CALM_STEPS and self.lead > min(1, highest):
            self.lead -= 1
            self.calm = 0

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

    # --- versions and slots -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Make topics one version ahead; open the lowest versions of [F, F + lead] while all opened ones are assigned."""
        if self.last is None or not self.learner_ready:
            return
        first = max(self.version, 0) if self.frontier is None else max(self.frontier, self.version)
        lead_end = min((self.frontier or 0) + self.lead, self.last - 1)
        for version in range(first, min(lead_end + 1, self.last - 1) + 1):
            self._make_topic("rollout", version)
        if self.frontier is None or not self.settled:
            return
        for version in range(max(self.frontier, self.sealed_through + 1), lead_end + 1):
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
        urgent = exact or version == self.version
        slot = slots.next_free()
        if slot is None:
            return True
        candidates = self.roster.candidates(version, self.plan.grpo.max_trajectory_age_steps, exact=exact, urgent=urgent)
        while slot is not None:
            producer = candidates.best(slot.holders)
            if producer is None:
                return False
            self._issue(slot, producer)
            slot = slots.next_free()
        return True

    def moving_weights(self) -> bool:
        """Whether a round is open; the upper half knows."""
        return False

    def _hedge(self) -> None:
        """Slots of the version that is trained next, all given out, some to producers far slower than the fleet: once more.

        Chosen by the producer's rate, never by the rollout's length, so long rollouts are trained as often as short ones.
        """
        slots = self.table.get("rollout", self.version)
        share = self.plan.dispatch.hedge_below
        if slots is None or share <= 0 or self.version not in self.window or not slots.all_assigned or slots.complete:
            return
        if self.moving_weights():  # who is in a round stands still by order
            return
        slow = self.roster.slow(self.beat, share)
        lonely = [
            slot
            for name in sorted(slow)
            for slot, _ in slots.held_by(name)
            if slot.state is SlotState.ASSIGNED and len(slot.holders) == 1
        ]
        if not lonely:
            return
        age = self.plan.grpo.max_trajectory_age_steps
        candidates = self.roster.candidates(self.version, age, exact=False, urgent=True)
        for slot in lonely[:HEDGES_A_BEAT]:
            producer = candidates.best(slow)
            if producer is None:
                return
            self.counters.hedged += 1
            self._note(f"{slot.next_key} hedged: {next(iter(slot.holders))} is slow, {producer.name} tries it too")
            self._issue(slot, producer)

    def _issue(self, slot: Slot, producer: Producer) -> None:
        if (slot.attempt > 0 or slot.draw > 0) and not slot.holders:
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
            target=key.version,
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

    # --- work that ends without a group -------------------------------------------------------------------------------------

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
            self.draw_outcomes.add(reason)

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
            target=key.version,
            slot=key.slot,
            draw=key.draw,
            attempt=key.attempt,
            row=0,
            min_version=0,
            cancels=kind,
        )
        self.out.append(ev.SendRequest(request, producer.requests_partition))

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _make_topic(self, kind: Kind, version: int) -> None:
        if (kind, version) not in self.topics_asked and (kind, version) not in self.topics:
            self.topics_asked.add((kind, version))
            self.out.append(ev.MakeTopic(kind, version))

    def _learn_last(self) -> None:
        grpo = self.plan.grpo
        if self.dataset is not None:
            self.last = last_version(grpo.max_num_steps, grpo.max_num_epochs, self.dataset.rows, grpo.num_prompts_per_step)

    def _note(self, text: str, level: str = "info") -> None:
        self.out.append(Note(text, "warning" if level == "warning" else "error" if level == "error" else "info"))
