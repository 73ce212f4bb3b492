"""An operator's wish on its way: when to write it, and when it has come true. Pure; `now` is monotonic seconds.

    checked --a beat of the learner--> written --control shows it--> done
       ^-------- another learner claims the run --------'

A wish is written only while a learner's beats go on: nobody else would read it. A later learner does not look back, and is asked
anew. Clocks of other machines are not asked; a beat counts when it is seen to follow another one. Without beats, or a claim, for
`silence_s` the wish fails. A learner that has just taken the run over does not know its producers yet: that one is no member
counts only when the time in which all answer is over.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal, Protocol

from launch.observe.display import clock
from launch.observe.view import Snapshot
from schemas.errors import ConfigError, Problem, WeirError


@dataclass(frozen=True, slots=True)
class Write:
    """The record is due."""


@dataclass(frozen=True, slots=True)
class Known:
    """The learner was asked before; no record is due."""


@dataclass(frozen=True, slots=True)
class Done:
    """It holds. `said` is for the person."""

    said: str


class Wish(Protocol):
    """What is wanted."""

    action: Literal["stop", "drain"]
    producer: str | None

    def fulfilled(self, s: Snapshot, *, settled: bool) -> str | None:
        """How it came true, in words; None as long as it has not. `settled`: who is no member is none.

        Raises:
            ConfigError, WeirError: it never can.
        """
        ...

    def possible(self, s: Snapshot) -> bool:
        """Whether the learner whose beats go on could obey now."""
        ...

    def asked_before(self, s: Snapshot) -> bool:
        """Whether the learner knows of it already."""
        ...

    def progress(self, s: Snapshot) -> str:
        """What is still missing."""
        ...


class StopWish:
    """The run is to end, so that it can be resumed."""

    action: Literal["stop", "drain"] = "stop"
    producer: str | None = None

    def fulfilled(self, s: Snapshot, *, settled: bool) -> str | None:
        if s.stop is None:
            return None
        how = "has finished" if s.stop.finished else "has stopped"
        return f"run {s.run_id} {how} after {s.stop.version} of {s.last if s.last is not None else '?'} steps: {s.stop.reason}"

    def possible(self, s: Snapshot) -> bool:
        return True

    def asked_before(self, s: Snapshot) -> bool:
        return False

    def progress(self, s: Snapshot) -> str:
        return f"run {s.run_id} to stop; its learner: {s.learner}"


class DrainWish:
    """A producer is to get no more work, and to leave when it has nothing in hand."""

    action: Literal["stop", "drain"] = "drain"

    def __init__(self, producer: str) -> None:
        self.producer: str | None = producer
        self._name = producer
        self._was_member = False

    def fulfilled(self, s: Snapshot, *, settled: bool) -> str | None:
        if s.stop is not None:
            raise WeirError(f"run {s.run_id} has stopped, and its producers leave with it: {s.stop.reason}")
        if self._name in s.members:
            self._was_member = True
            return None
        if not settled:
            return None
        if not self._was_member:
            raise ConfigError([Problem("PRODUCER", self._name, f"is no member of run {s.run_id}", _members(self._name, s))])
        return f"producer {self._name} has left run {s.run_id}; members: {', '.join(s.members) or 'none'}"

    def possible(self, s: Snapshot) -> bool:
        return _has_told(s) and self._name in s.members

    def asked_before(self, s: Snapshot) -> bool:
        return any(row.name == self._name and row.state == "draining" for row in s.producers)

    def progress(self, s: Snapshot) -> str:
        if self._name not in s.members or not _has_told(s):
            return f"producer {self._name} to answer the learner, which has just taken the run over"
        rows = [row for row in s.producers if row.name == self._name]
        doing = f"{rows[0].state}, {rows[0].in_hand} requests in hand" if rows else "not heard"
        return f"producer {self._name} to leave ({doing})"


class Errand:
    """One wish. `see` each snapshot, from the first one that holds all that stands on the topics.

    Args:
        resume: what names the run to `launch/run_cluster.sh --resume`.
        lease_beats: after so many beats a learner waits for no answer of a producer any more.
    """

    def __init__(self, wish: Wish, resume: str, silence_s: float, lease_beats: int, now: float) -> None:
        self._wish = wish
        self._resume = resume
        self._silence_s = silence_s
        self._lease_beats = lease_beats
        self._heard = now
        self._last: tuple[int, int] | None = None
        self._claims: int | None = None
        self.written = False
        """The learner that has the run now was asked."""

    def see(self, s: Snapshot, now: float) -> Write | Known | Done | None:
        """What to do about a snapshot.

        Raises:
            ConfigError: the wish cannot be one of this run.
            WeirError: nobody is there who could fulfil it.
        """
        if s.uuid is None:
            raise WeirError(_no_state(s))
        first, taken_over = self._claims is None, self._claims not in (None, s.claims)
        self._claims = s.claims
        if taken_over:
            self.written, self._heard = False, now
        settled = _has_told(s) and s.beat is not None and s.beat.number > self._lease_beats
        said = self._wish.fulfilled(s, settled=settled)
        if said is not None:
            return Done(said)
        beat = (s.beat.incarnation, s.beat.number) if s.beat is not None else None
        lives = not first and beat is not None and beat != self._last
        self._last = beat
        if lives:
            self._heard = now
            if not self.written and self._wish.possible(s):
                self.written = True
                return Known() if self._wish.asked_before(s) else Write()
        if now - self._heard > self._silence_s:
            raise WeirError(self._silent(s))
        return None

    def pending(self, s: Snapshot) -> str:
        """What is waited for, and whether it may still come."""
        outlook = "it was asked and may still follow" if self.written else "nothing was asked of the learner yet"
        return f"{self._wish.progress(s)}; {outlook}"

    def _silent(self, s: Snapshot) -> str:
        last = f", its last one is {clock(s.beat.silent_s)} old" if s.beat is not None else ""
        what = "the learner did not obey" if self.written else f"nobody is there to {self._wish.action}"
        return (
            f"no learner of run {s.run_id} runs, or it is being started again: no beat for {self._silence_s:g} s{last}, {what}; "
            "ask again when weir status shows new beats, or, only if no supervisor of the run runs any more, go on with it by "
            f"launch/run_cluster.sh --resume {self._resume}"
        )


def _has_told(s: Snapshot) -> bool:
    """Whether the state is of the learner whose beats go on."""
    return s.beat is not None and s.beat.incarnation == s.incarnation


def _no_state(s: Snapshot) -> str:
    if s.learner == "starting":
        return f"no learner has claimed run {s.run_id} yet; try again when it has, weir status shows it"
    return f"the learner of run {s.run_id} has only claimed it and told no state yet; try again in some seconds"


def _members(name: str, s: Snapshot) -> str:
    near = difflib.get_close_matches(name, s.members, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}members: {', '.join(s.members) or 'none'}"
