"""An operator's wish on its way: when to write it, and when it has come true. Pure; `now` is monotonic seconds.

    checked --a beat of the learner--> written --control shows it--> done

A wish is written only while a learner's beats go on: nobody else would read it, and a later learner does not look back. Clocks of
other machines are not asked; a beat counts when it is seen to follow another one. Without beats for `silence_s` the wish fails.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal, Protocol

from launch.display import clock
from launch.view import Snapshot
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

    def fulfilled(self, s: Snapshot) -> str | None:
        """How it came true, in words; None as long as it has not.

        Raises:
            ConfigError, WeirError: it never can.
        """
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

    def fulfilled(self, s: Snapshot) -> str | None:
        if s.stop is None:
            return None
        how = "has finished" if s.stop.finished else "has stopped"
        return f"run {s.run_id} {how} after {s.stop.v} of {s.last if s.last is not None else '?'} steps: {s.stop.reason}"

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

    def fulfilled(self, s: Snapshot) -> str | None:
        if s.stop is not None:
            raise WeirError(f"run {s.run_id} has stopped, and its producers leave with it: {s.stop.reason}")
        if self._name in s.members:
            self._was_member = True
            return None
        if not self._was_member:
            raise ConfigError([Problem("PRODUCER", self._name, f"is no member of run {s.run_id}", _members(self._name, s))])
        return f"producer {self._name} has left run {s.run_id}; members: {', '.join(s.members) or 'none'}"

    def asked_before(self, s: Snapshot) -> bool:
        return any(row.name == self._name and row.state == "draining" for row in s.producers)

    def progress(self, s: Snapshot) -> str:
        rows = [row for row in s.producers if row.name == self._name]
        doing = f"{rows[0].state}, {rows[0].in_hand} requests in hand" if rows else "not heard"
        return f"producer {self._name} to leave ({doing})"


class Errand:
    """One wish. `see` each snapshot, from the first one that holds all that stands on the topics.

    Args:
        resume: what names the run to `launch/run_cluster.sh --resume`.
    """

    def __init__(self, wish: Wish, resume: str, silence_s: float, now: float) -> None:
        self._wish = wish
        self._resume = resume
        self._silence_s = silence_s
        self._heard = now
        self._last: tuple[int, int] | None = None
        self._first = True
        self.written = False

    def see(self, s: Snapshot, now: float) -> Write | Known | Done | None:
        """What to do about a snapshot.

        Raises:
            ConfigError: the wish cannot be one of this run.
            WeirError: nobody is there who could fulfil it.
        """
        if s.uuid is None:
            raise WeirError(_no_state(s))
        said = self._wish.fulfilled(s)
        if said is not None:
            return Done(said)
        beat = (s.beat.incarnation, s.beat.number) if s.beat is not None else None
        lives = not self._first and beat is not None and beat != self._last
        self._first, self._last = False, beat
        if lives:
            self._heard = now
            if not self.written:
                self.written = True
                return Known() if self._wish.asked_before(s) else Write()
        if now - self._heard > self._silence_s:
            raise WeirError(self._silent(s))
        return None

    def _silent(self, s: Snapshot) -> str:
        last = f", its last one is {clock(s.beat.silent_s)} old" if s.beat is not None else ""
        what = "the learner did not obey" if self.written else f"nobody is there to {self._wish.action}"
        return (
            f"no learner of run {s.run_id} runs: no beat for {self._silence_s:g} s{last}, {what}; "
            f"go on with the run by launch/run_cluster.sh --resume {self._resume}"
        )


def _no_state(s: Snapshot) -> str:
    if s.learner == "starting":
        return f"no learner has claimed run {s.run_id} yet; try again when it has, weir status shows it"
    return f"the learner of run {s.run_id} has only claimed it and told no state yet; try again in some seconds"


def _members(name: str, s: Snapshot) -> str:
    near = difflib.get_close_matches(name, s.members, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}members: {', '.join(s.members) or 'none'}"
