"""What the run's topics show, as events of a supervision. Pure: snapshots in, what is new in them out.

Invariants: each claim is one event, and so is each further `stop`; a process joins once; a producer that the supervisor saw die
is neither a member nor shown, whatever the topics still hold of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from launch.observe.producers_view import ProducerRow
from launch.observe.run_view import RunSnapshot
from launch.supervise.events import Event, Joined, RunClaimed, StopSeen, VersionsTrained


class TopicEvents:
    """Feed it the snapshots in their order. `learner`, `producers`: names of the processes."""

    def __init__(self, learner: str, producers: Sequence[str]) -> None:
        self._learner = learner
        self._awaited = list(producers)  # not joined yet
        self._learner_joined = False
        self._claims = 0
        self._trained = 0
        self._stop: tuple[int | None, object] | None = None
        self._dead: set[str] = set()  # identities, of which a process has another one each time it is started

    def of(self, seen: RunSnapshot) -> Iterator[Event]:
        for _ in range(self._claims, seen.claims):
            yield RunClaimed()
        self._claims = seen.claims
        if seen.steps > self._trained:
            self._trained = seen.steps
            yield VersionsTrained(seen.steps)
        members = [row.name for row in self._living(seen) if row.member and row.state != "silent"]
        for name in [name for name in self._awaited if any(_is_of(member, name) for member in members)]:
            self._awaited.remove(name)
            yield Joined(name)
        stop = (seen.incarnation, seen.stop)
        if seen.stop is not None and stop != self._stop:
            self._stop = stop
            yield StopSeen(seen.stop.reason, seen.stop.finished, seen.stop.ordered)

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether a checkpoint would make the learner one that has joined."""
        return self._claims > 0 and not self._learner_joined

    def checkpoint(self) -> Event:
        """The run has a checkpoint."""
        self._learner_joined = True
        return Joined(self._learner)

    def died(self, name: str, seen: RunSnapshot) -> None:
        """The process has ended; `seen` may show it as if it lived."""
        self._dead |= {row.name for row in seen.producers if _is_of(row.name, name)}

    def without_dead(self, seen: RunSnapshot) -> RunSnapshot:
        return replace(seen, producers=self._living(seen))

    def _living(self, seen: RunSnapshot) -> list[ProducerRow]:
        return [row for row in seen.producers if row.name not in self._dead]


def _is_of(identity: str, name: str) -> bool:
    """Whether a producer on the topics is the process `name`, to whose name its identity adds a random part."""
    return identity.startswith(f"{name}-")
