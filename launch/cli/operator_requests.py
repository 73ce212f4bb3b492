"""An operator's request on its way: when to write it, and when it has been carried out. Pure; `now` is monotonic seconds.

    checked --a beat of the learner--> written --control shows it--> fulfilled
       ^-------- another learner claims the run --------'

A request is written only while the beats of a learner continue: nobody else would read it. A later learner does not look back, so
it is asked again. The clocks of other machines are not relied on: a beat counts when it is seen to follow another one. After
`silence_s` without a beat or a claim, the request has failed. A learner that has just taken the run over does not know its
producers yet: that a producer is no member means something only when the time in which they all answer is over.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal, Protocol

from launch.observe.formats import clock
from launch.observe.run_view import RunSnapshot
from schemas.errors import ConfigError, Problem, WeirError


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """The record is due."""


@dataclass(frozen=True, slots=True)
class AlreadyAsked:
    """The learner was asked before; no record is due."""


@dataclass(frozen=True, slots=True)
class Fulfilled:
    """The request has been carried out. `message` is for the person."""

    message: str


class OperatorRequest(Protocol):
    """What an operator asks for."""

    action: Literal["stop", "drain"]
    producer: str | None

    def fulfilled(self, s: RunSnapshot, *, settled: bool) -> str | None:
        """How it was carried out, in words; None as long as it was not. `settled`: the members are known to be complete.

        Raises:
            ConfigError, WeirError: it never can be.
        """
        ...

    def possible(self, s: RunSnapshot) -> bool:
        """Whether the learner whose beats continue could carry it out now."""
        ...

    def asked_before(self, s: RunSnapshot) -> bool:
        """Whether the learner knows about it already."""
        ...

    def progress(self, s: RunSnapshot) -> str:
        """What is still to happen."""
        ...


class StopRequest:
    """End the run, so that it can be resumed."""

    action: Literal["stop", "drain"] = "stop"
    producer: str | None = None

    def fulfilled(self, s: RunSnapshot, *, settled: bool) -> str | None:
        if s.stop is None:
            return None
        how = "has finished" if s.stop.finished else "has stopped"
        return f"run {s.run_id} {how} after {s.stop.version} of {s.last if s.last is not None else '?'} steps: {s.stop.reason}"

    def possible(self, s: RunSnapshot) -> bool:
        return True

    def asked_before(self, s: RunSnapshot) -> bool:
        return False

    def progress(self, s: RunSnapshot) -> str:
        return f"run {s.run_id} to stop; its learner: {s.learner}"


class DrainRequest:
    """Give a producer no more work; it leaves when it has nothing in hand."""

    action: Literal["stop", "drain"] = "drain"

    def __init__(self, producer: str) -> None:
        self.producer: str | None = producer
        self._name = producer
        self._was_member = False

    def fulfilled(self, s: RunSnapshot, *, settled: bool) -> str | None:
        if s.stop is not None:
            raise WeirError(f"run {s.run_id} has stopped, and its producers are leaving: {s.stop.reason}")
        if self._name in s.members:
            self._was_member = True
            return None
        if not settled:
            return None
        if not self._was_member:
            raise ConfigError([Problem("PRODUCER", self._name, f"is not a member of run {s.run_id}", _members(self._name, s))])
        return f"producer {self._name} has left run {s.run_id}; members: {', '.join(s.members) or 'none'}"

    def possible(self, s: RunSnapshot) -> bool:
        return _has_reported(s) and self._name in s.members

    def asked_before(self, s: RunSnapshot) -> bool:
        return any(row.name == self._name and row.state == "draining" for row in s.producers)

    def progress(self, s: RunSnapshot) -> str:
        if self._name not in s.members or not _has_reported(s):
            return f"producer {self._name} to answer the learner, which has only just claimed the run"
        rows = [row for row in s.producers if row.name == self._name]
        doing = f"{rows[0].state}, {rows[0].in_hand} requests in hand" if rows else "not heard"
        return f"producer {self._name} to leave ({doing})"


class PendingRequest:
    """One request. `see` each snapshot, from the first one that holds everything on the topics.

    Args:
        resume: what to give to `launch/run_cluster.sh --resume`.
        lease_beats: the number of beats after which a learner no longer waits for a producer's answer.
    """

    def __init__(self, request: OperatorRequest, resume: str, silence_s: float, lease_beats: int, now: float) -> None:
        self._request = request
        self._resume = resume
        self._silence_s = silence_s
        self._lease_beats = lease_beats
        self._heard = now
        self._last: tuple[int, int] | None = None
        self._claims: int | None = None
        self.written = False
        """Whether the learner that has the run now was asked."""

    def see(self, s: RunSnapshot, now: float) -> WriteRequest | AlreadyAsked | Fulfilled | None:
        """What to do about a snapshot.

        Raises:
            ConfigError: the request does not fit this run.
            WeirError: no learner is there to carry it out.
        """
        if s.uuid is None:
            raise WeirError(_no_state(s))
        first, taken_over = self._claims is None, self._claims not in (None, s.claims)
        self._claims = s.claims
        if taken_over:
            self.written, self._heard = False, now
        settled = _has_reported(s) and s.beat is not None and s.beat.number > self._lease_beats
        message = self._request.fulfilled(s, settled=settled)
        if message is not None:
            return Fulfilled(message)
        beat = (s.beat.incarnation, s.beat.number) if s.beat is not None else None
        alive = not first and beat is not None and beat != self._last
        self._last = beat
        if alive:
            self._heard = now
            if not self.written and self._request.possible(s):
                self.written = True
                return AlreadyAsked() if self._request.asked_before(s) else WriteRequest()
        if now - self._heard > self._silence_s:
            raise WeirError(self._silent(s))
        return None

    def outlook(self, s: RunSnapshot) -> str:
        """What is waited for, and whether it may still happen."""
        asked = "the learner was asked and may still do it" if self.written else "the learner was not asked yet"
        return f"{self._request.progress(s)}; {asked}"

    def _silent(self, s: RunSnapshot) -> str:
        last = f" (the last one is {clock(s.beat.silent_s)} old)" if s.beat is not None else ""
        what = "the learner did not obey" if self.written else f"there is nobody to {self._request.action}"
        return (
            f"no learner of run {s.run_id} is running, or it is being started again: no beat for {self._silence_s:g} s{last}, "
            f"{what}; try again when weir status shows new beats, or, only if no supervisor of the run is left, resume it with "
            f"launch/run_cluster.sh --resume {self._resume}"
        )


def _has_reported(s: RunSnapshot) -> bool:
    """Whether the state is of the learner whose beats continue."""
    return s.beat is not None and s.beat.incarnation == s.incarnation


def _no_state(s: RunSnapshot) -> str:
    if s.learner == "starting":
        return f"no learner has claimed run {s.run_id} yet; try again when weir status shows that one has"
    return f"the learner of run {s.run_id} has claimed it but published no state yet; try again in a few seconds"


def _members(name: str, s: RunSnapshot) -> str:
    near = difflib.get_close_matches(name, s.members, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}members: {', '.join(s.members) or 'none'}"
