"""A refit round: one try of giving one version to its members. Pure; beats are its clock.

    PAUSE --acks or deadline--> OFFER --rank 0 listens--> TRANSFER --acks or deadline--> DONE

Invariants: members are fixed when the round opens and only ever leave; a member counts as loaded only by its own ack of this
incarnation, round and digest; the round always ends: each phase by acks, by the loss of who is missing, or by its deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from schemas.errors import ProtocolError
from schemas.records.control import TransferGroup
from schemas.records.status import Ack
from schemas.weights.transports.protocol import Rendezvous


class Phase(Enum):
    PAUSE = "pause"
    """Members freeze (keep) or end (drain) their work; waits for their acks."""
    OFFER = "offer"
    """Rank 0 opens the rendezvous; waits for rank 0."""
    TRANSFER = "transfer"
    """Weights are sent, checked and loaded; waits for rank 0 and for the members' acks."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class RoundResult:
    """How a round ended for each member."""

    loaded: frozenset[str]
    failed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What the control state says of an open round. `members`: those that have not failed."""

    number: int
    version: int
    mode: str
    transferring: bool
    members: tuple[str, ...]
    groups: tuple[TransferGroup, ...]


@dataclass(slots=True)
class RefitRound:
    number: int
    incarnation: int
    version: int
    mode: str
    members: dict[str, int]
    """Producer -> ranks of its engine."""
    group_size: int | None
    deadline_beats: int
    drain_beats: int
    opened_beat: int
    phase: Phase = Phase.PAUSE
    phase_beat: int = 0
    ready: set[str] = field(default_factory=set)
    groups: list[TransferGroup] = field(default_factory=list)
    digest: str | None = None
    loaded: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, float] = field(default_factory=dict)
    tries: Mapping[str, int] = field(default_factory=dict)
    """Rounds that failed at a member since its last good one."""
    dealt: tuple[list[dict[str, int]], list[int]] = field(default_factory=lambda: ([], []))
    """Rank offsets and ranks of each transfer group, fixed when rank 0 is asked to listen."""

    def __post_init__(self) -> None:
        self.phase_beat = self.opened_beat

    # --- events -------------------------------------------------------------------------------------------------------------

    def on_ack(self, ack: Ack) -> bool:
        """Fold in an ack. False if it is not of this round or phase: ignored and counted by the caller."""
        if (ack.incarnation, ack.round, ack.version) != (self.incarnation, self.number, self.version):
            return False
        if ack.producer not in self.members or ack.producer in self.failed:
            return False
        if not ack.ok:
            self.failed[ack.producer] = ack.error or "no reason given"
            return True
        if ack.phase == "pause":
            if self.phase is not Phase.PAUSE:
                return False
            self.ready.add(ack.producer)
            return True
        if self.phase is not Phase.TRANSFER or ack.digest is None:
            return False
        self.loaded[ack.producer] = ack.digest
        if ack.probe_gap is not None:
            self.gaps[ack.producer] = ack.probe_gap
        return True

    def on_lost(self, producer: str) -> None:
        if producer in self.members and producer not in self.loaded:
            self.failed.setdefault(producer, "lost during the round")

    def on_beat(self, beat: int) -> None:
        """Judge the deadline of the phase. OFFER has none: it is rank 0's, whose death ends the process."""
        waiting = self.drain_beats if self.phase is Phase.PAUSE and self.mode == "drain" else self.deadline_beats
        if self.phase in (Phase.PAUSE, Phase.TRANSFER) and beat - self.phase_beat > waiting:
            for producer in self.waiting_for():
                self.failed[producer] = f"no ack of phase {self.phase.value} within {waiting} beats"

    # --- moves --------------------------------------------------------------------------------------------------------------

    def waiting_for(self) -> list[str]:
        """Members that still owe the ack of the present phase."""
        have = self.ready if self.phase is Phase.PAUSE else self.loaded
        return [p for p in self.members if p not in have and p not in self.failed]

    def _deal(self) -> tuple[list[dict[str, int]], list[int]]:
        """Members that paused, dealt into transfer groups: (rank offsets of each group, its ranks with the sender).

        One member's death fails its whole group. So those that failed as often share groups: whoever keeps failing soon stands
        among its like, and newcomers that die cannot have others expelled.
        """
        live = [p for p in sorted(self.members) if p in self.ready and p not in self.failed]
        alike: dict[int, list[str]] = {}
        for producer in live:
            alike.setdefault(self.tries.get(producer, 0), []).append(producer)
        size = self.group_size or max(1, len(live))
        dealt = [names[at : at + size] for _, names in sorted(alike.items()) for at in range(0, len(names), size)]
        groups, worlds = [], []
        for names in dealt:
            offset, offsets = 1, {}
            for producer in names:
                offsets[producer] = offset
                offset += self.members[producer]
            groups.append(offsets)
            worlds.append(offset)
        return groups, worlds

    def offer(self, beat: int) -> tuple[list[dict[str, int]], list[int]]:
        """PAUSE -> OFFER, once nobody owes a pause ack."""
        self._move(Phase.PAUSE, Phase.OFFER, beat)
        self.dealt = self._deal()
        return self.dealt

    def transfer(self, rendezvous: Sequence[Rendezvous], beat: int) -> None:
        """OFFER -> TRANSFER, once rank 0 listens."""
        groups, worlds = self.dealt
        if len(rendezvous) != len(groups):
            raise ProtocolError(f"round {self.number}: {len(rendezvous)} rendezvous for {len(groups)} transfer groups")
        self.groups = [
            TransferGroup(host=r.host, port=r.port, prefix=r.prefix, nccl_id=r.nccl_id, world=world, members=members)
            for r, members, world in zip(rendezvous, groups, worlds, strict=True)
        ]
        self._move(Phase.OFFER, Phase.TRANSFER, beat)

    def sent(self, digest: str, failed_groups: Mapping[int, str]) -> None:
        """Rank 0 has sent (or given up). A member of a failed group that has not said that it loaded all of it has failed."""
        if self.phase is not Phase.TRANSFER:
            raise ProtocolError(f"round {self.number}: sent in phase {self.phase.value}")
        self.digest = digest
        for index, error in failed_groups.items():
            for producer in self.groups[index].members:
                if producer not in self.loaded:
                    self.failed.setdefault(producer, f"sending failed: {error}")

    def result(self) -> RoundResult | None:
        """The end of the round, once rank 0 has sent and nobody owes a `loaded` ack; None before."""
        if self.phase is not Phase.TRANSFER or self.digest is None or self.waiting_for():
            return None
        failed = dict(self.failed)
        for producer, digest in self.loaded.items():
            if digest != self.digest:
                failed[producer] = f"loaded {digest}, sent {self.digest}"
        self.phase = Phase.DONE
        return RoundResult(frozenset(p for p in self.loaded if p not in failed), failed)

    def _move(self, start: Phase, end: Phase, beat: int) -> None:
        if self.phase is not start:
            raise ProtocolError(f"round {self.number}: {start.value} -> {end.value} in phase {self.phase.value}")
        self.phase, self.phase_beat = end, beat

    def facts(self) -> RoundFacts:
        transferring = self.phase is Phase.TRANSFER
        return RoundFacts(
            number=self.number,
            version=self.version,
            mode=self.mode,
            transferring=transferring,
            members=tuple(sorted(p for p in self.members if p not in self.failed)),
            groups=tuple(self.groups) if transferring else (),
        )
