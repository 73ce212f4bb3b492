"""Groups taken in, and versions sealed and trained.

Invariants: nothing but a seal closes a version; versions are sealed in order, each once an incarnation, and only when every slot
has a valid group; the first seal in the log is the batch, whoever wrote it.
"""

from __future__ import annotations

from learner.dispatcher.deciding.commands import CloseTopic, Outbox, WriteSeal
from learner.dispatcher.deciding.events import GroupRead, GroupRefused
from learner.dispatcher.deciding.issuing import Issuing
from learner.dispatcher.deciding.membership import Membership
from learner.dispatcher.state.run_state import RunState
from learner.dispatcher.state.slots import Filled
from learner.link.messages import VersionTrained
from schemas.identity import Attempt
from schemas.records.group import TrajectoryGroup
from schemas.records.seal import Seal, SealedSlot
from schemas.records.status import FailureKind


class Collecting:
    def __init__(self, state: RunState, issuing: Issuing, membership: Membership, out: Outbox) -> None:
        self.state = state
        self._issuing = issuing
        self._membership = membership
        self._out = out

    def on_group(self, event: GroupRead) -> None:
        """A valid group: its slot is filled, or the next draw opens, or it is late or a duplicate."""
        s, group = self.state, event.group
        mean = sum(t.reward for t in group.trajectories) / len(group.trajectories)
        filled = Filled(
            group.request, event.partition, event.offset, event.sha256, event.content_sha256, mean, group.generated_tokens
        )
        s.roster.take(group.producer, group.kind, group.request)
        sender = s.roster.producers.get(group.producer)
        if sender is not None:
            sender.refusals = 0
        slots = s.slots.get(group.kind, group.request.version)
        accepted = s.slots.accept(group.kind, filled, passes=self._passes(group))
        if accepted is None:
            if slots is None:
                s.counters.late += 1
            else:
                s.counters.duplicates += 1
            return
        s.clock.progress = s.clock.beat
        s.counters.filtered += accepted.filtered
        if group.kind == "rollout":
            s.draw_outcomes.add(None)
        for name, key in accepted.holders.items():
            if name != group.producer or key != group.request:
                self._issuing.cancel(name, group.kind, key)

    def _passes(self, group: TrajectoryGroup) -> bool:
        """The filter of dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): a group of equal rewards has no advantage to
        learn from."""
        if not self.state.plan.grpo.use_dynamic_sampling or group.kind != "rollout":
            return True
        rewards = [t.reward for t in group.trajectories]
        return min(rewards) != max(rewards)

    def on_refused(self, event: GroupRefused) -> None:
        self.state.counters.bump("refusals", event.reason)
        if event.producer is None:
            return
        if event.key is not None:
            key, why = Attempt.parse(event.key), f"record refused: {event.reason}"
            self._issuing.release(event.kind, key, event.producer, FailureKind.ROLLOUT, why)
        self._membership.on_refusal(event.producer, event.reason)

    def seal(self) -> None:
        """Write the seal of the next version, once all its slots are filled."""
        s = self.state
        version = s.sealed_through + 1
        slots = s.slots.get("rollout", version)
        if slots is None or version not in s.window or version in s.seals.written or not slots.complete:
            return
        s.seals.written.add(version)
        entries = {}
        for slot in slots.slots:
            f = slot.filled
            entries[slot.index] = SealedSlot(f.key.draw, f.key.attempt, f.partition, f.offset, f.sha256, f.content_sha256)
        plan = s.plan
        self._out.add(WriteSeal(Seal(plan.uuid, plan.incarnation, plan.config_digest, version, entries)))

    def on_seal(self, seal: Seal, offset: int) -> None:
        s = self.state
        if seal.version in s.seals.read or seal.version < s.version:
            return
        s.seals.read[seal.version] = (seal, offset)
        s.sealed_through = max(s.sealed_through, seal.version)
        # Versions are sealed in order, but their topics are read in any: a lower seal is there too, and comes.
        s.window = {version: topic for version, topic in s.window.items() if version > s.sealed_through}
        if s.slots.get("rollout", seal.version) is not None:
            self._issuing.cancel_all(s.slots.close("rollout", seal.version).slots)

    def on_trained(self, event: VersionTrained) -> None:
        s, version = self.state, event.version
        s.version = version + 1
        s.seals.read.pop(version, None)
        s.seals.written.discard(version)
        s.topics.ids.pop(("rollout", version), None)
        s.topics.making.discard(("rollout", version))
        s.clock.progress = s.clock.beat
        s.lead.trained(event.waited)
        self._out.add(CloseTopic("rollout", version))
