"""The last refit rounds, as control states and acks show them. Pure; `at` and `now` are seconds since the epoch.

When a round begins, changes its phase and ends, and who holds its weights at its end, is known from control alone. Acks add how
long loading took and what went wrong; they may be read before or after the states of their round, or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.records.control import Round, State
from schemas.records.status import Ack

KEPT = 8  # rounds

_RoundId = tuple[int, int]
"""Incarnation and number."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round. `loaded` and `failed` count its members once it has ended; seconds are None for a phase never reached."""

    incarnation: int
    number: int
    version: int
    members: Sequence[str]
    phase: str
    """`pause`, `transfer`, `done`, or `given up`: a claim, or the end of the run, came before the end of the round."""
    pause_s: float
    transfer_s: float | None
    load_s: float | None = None
    """The longest time that a member took to receive and load the weights."""
    loaded: int = 0
    failed: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    """What failed, by member."""


class _ObservedRound:
    def __init__(self, incarnation: int, first: Round, at: float) -> None:
        self.id: _RoundId = (incarnation, first.number)
        self.version = first.version
        self.members: set[str] = set()
        self.began = at
        self.sending: float | None = None
        self.ended: float | None = None
        self.given_up = False
        self.loaded = 0

    def see(self, record: Round, at: float) -> None:
        self.members.update(record.members)  # those that fail are left out later
        if record.phase == "transfer" and self.sending is None:
            self.sending = at

    def end(self, at: float, state: State | None) -> None:
        """`state`: the one that ended the round; None if it was given up."""
        self.ended, self.given_up = at, state is None
        if state is not None:
            holds = (self.version, state.weights_digest)
            held = [state.members[name] for name in self.members if name in state.members]
            self.loaded = sum((member.held, member.digest) == holds for member in held)

    def row(self, acks: dict[str, Ack], now: float) -> RoundRow:
        phase = "transfer" if self.sending is not None else "pause"
        if self.ended is not None:
            phase = "given up" if self.given_up else "done"
        until = now if self.ended is None else self.ended
        paused = until if self.sending is None else self.sending
        return RoundRow(
            incarnation=self.id[0],
            number=self.id[1],
            version=self.version,
            members=tuple(sorted(self.members)),
            phase=phase,
            pause_s=max(0.0, paused - self.began),
            transfer_s=None if self.sending is None else max(0.0, until - self.sending),
            load_s=max((ack.seconds for ack in acks.values() if ack.ok), default=None),
            loaded=self.loaded,
            failed=len(self.members) - self.loaded if phase == "done" else 0,
            errors={name: ack.error or "no reason given" for name, ack in sorted(acks.items()) if not ack.ok},
        )


class RoundsView:
    """Feed it the records in the order of their topics; it keeps the last `KEPT` rounds."""

    def __init__(self) -> None:
        self._rounds: deque[_ObservedRound] = deque(maxlen=KEPT)
        self._acks: dict[_RoundId, dict[str, Ack]] = {}

    def claim(self, at: float) -> None:
        """A claim ends any open round."""
        if (running := self._open()) is not None:
            running.end(at, None)

    def state(self, state: State, at: float) -> None:
        reported = state.round if state.stop is None else None
        running = self._open()
        if running is not None and (reported is None or (state.incarnation, reported.number) != running.id):
            given_up = state.stop is not None or state.incarnation != running.id[0]
            running.end(at, None if given_up else state)
            running = None
        if reported is None:
            return
        if running is None:
            running = _ObservedRound(state.incarnation, reported, at)
            self._rounds.append(running)
        running.see(reported, at)

    def ack(self, ack: Ack) -> None:
        """The last answer of each member counts, but a failure is final."""
        id_ = (ack.incarnation, ack.round)
        answers = self._acks.setdefault(id_, {})
        before = answers.get(ack.producer)
        if (before is None or before.ok) and (ack.phase == "loaded" or not ack.ok):
            answers[ack.producer] = ack
        if len(self._acks) > KEPT:
            del self._acks[min(self._acks)]

    def rows(self, now: float) -> list[RoundRow]:
        """The oldest first; the last one may still be running."""
        return [each.row(self._acks.get(each.id, {}), now) for each in self._rounds]

    def _open(self) -> _ObservedRound | None:
        return self._rounds[-1] if self._rounds and self._rounds[-1].ended is None else None
