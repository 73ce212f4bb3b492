"""What happens to a run's processes, and what is to be done about it: the events and commands of `supervision.py`."""

from __future__ import annotations

from dataclasses import dataclass

from launch.outcome import RunOutcome


@dataclass(frozen=True, slots=True)
class Exited:
    """A process has ended; nothing of it is left."""

    name: str
    code: int


@dataclass(frozen=True, slots=True)
class RunClaimed:
    """A learner has claimed the run; one event for each claim."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A producer is a member for the first time. Of the learner: it has claimed the run, and there is a checkpoint."""

    name: str


@dataclass(frozen=True, slots=True)
class VersionsTrained:
    """The number of versions trained so far."""

    count: int


@dataclass(frozen=True, slots=True)
class StopSeen:
    """The control state holds a `stop`."""

    reason: str
    finished: bool
    ordered: bool = False
    """An operator asked for it."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A person, or the system, wants the run to end: `SIGINT`, `SIGTERM`, `SIGHUP`."""

    signal: str


@dataclass(frozen=True, slots=True)
class BrokerLost:
    """The broker is away. `ended`: it is one that may be started again, and it has ended, or a start of it has failed; `full`:
    because its disk is full."""

    detail: str
    ended: bool = False
    full: bool = False


@dataclass(frozen=True, slots=True)
class BrokerBack:
    """The broker answers again."""


BrokerEvent = BrokerLost | BrokerBack


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Exited | RunClaimed | Joined | VersionsTrained | StopSeen | Interrupted | BrokerLost | BrokerBack | Tick


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a process again; the learner resumes from its newest checkpoint."""

    name: str


@dataclass(frozen=True, slots=True)
class RestartBroker:
    """Start the broker again, without waiting for it."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a process to end in order."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End a process and everything below it now."""

    name: str


@dataclass(frozen=True, slots=True)
class Notify:
    """A line for the person who watches the run. `restarting`: the process that it announces a start of."""

    line: str
    restarting: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The run is over."""

    outcome: RunOutcome


Command = Restart | RestartBroker | Terminate | Kill | Notify | Done

Decision = list[Command] | RunOutcome
"""What to do; an outcome means: end the run."""
