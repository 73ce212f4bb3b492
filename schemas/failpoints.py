"""Named points of a process at which a test can strike it: `WEIR_FAILPOINTS="learner.forward=SIGKILL@3/1"`.

An entry names a point, the signal that the process sends to itself there, after @ at which passing (counted from 1), after / the
only learner rank that is meant. With `WEIR_FAILPOINTS_ONCE=<folder>` each entry strikes once, whatever is started again: the
folder gets a file of the point's name, which also shows the test that it happened. Without the first variable a point costs one
look into an empty table.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from schemas.errors import ConfigError, Problem

VARIABLE: Final = "WEIR_FAILPOINTS"
ONCE: Final = "WEIR_FAILPOINTS_ONCE"
POINTS: Final = (
    # a producer
    "producer.rollout",  # half the tokens of a request of the scripted engine are there
    "producer.publish",  # the group is handed to the client, not yet acknowledged
    "producer.published",  # acknowledged; the core does not know yet
    "producer.pause",  # the engine stands still, the pause is not acknowledged
    "producer.receive",  # about to join the transfer
    "producer.received",  # all weights are staged, none is loaded
    "producer.loaded",  # loaded, not acknowledged
    # the learner's dispatcher
    "dispatcher.before_seal",
    "dispatcher.after_seal",  # the seal is read back, rank 0 does not have it
    "dispatcher.before_announce",
    "dispatcher.after_announce",
    "dispatcher.before_delete",  # topics of trained versions are about to be deleted
    "dispatcher.after_delete",
    # all ranks of the learner
    "learner.forward",  # gradients are there, no optimizer step yet
    "learner.optimizer",  # right after the optimizer step
    "learner.send",  # weights are about to be gathered and sent
    "learner.checkpoint",  # the state is about to be written
    # rank 0
    "learner.offer",  # about to listen for the members of a round
    "learner.sent",
    "learner.before_commit",
    "learner.after_commit",
    "learner.before_manifest",  # all files are there but the manifest
    "learner.after_manifest",  # the manifest is there, the folder has its tmp name
    "learner.after_rename",
)
_ENTRY = re.compile(r"(?P<point>[a-z_.]+)=(?P<signal>SIG[A-Z]+)(@(?P<passing>\d+))?(/(?P<rank>\d+))?")


@dataclass(frozen=True, slots=True)
class Strike:
    signal: signal.Signals
    passing: int = 1
    rank: str | None = None


def parse(text: str) -> dict[str, Strike]:
    """
    Raises:
        ConfigError: an entry is not of the form above, or names no point.
    """
    strikes = {}
    for entry in text.split():
        match = _ENTRY.fullmatch(entry)
        if match is None or match["point"] not in POINTS or match["signal"] not in signal.Signals.__members__:
            form = f"write POINT=SIGNAL[@PASSING][/RANK] with POINT one of {', '.join(POINTS)}"
            raise ConfigError([Problem(VARIABLE, entry, "no failpoint", form)])
        strikes[match["point"]] = Strike(signal.Signals[match["signal"]], int(match["passing"] or 1), match["rank"])
    return strikes


class Failpoints:
    """Counts how often armed points are passed; `due` returns the signal once it is time to strike."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        rank = environment.get("RANK", "0")
        self._strikes = {
            point: strike for point, strike in parse(environment.get(VARIABLE, "")).items() if strike.rank in (None, rank)
        }
        self._once = Path(environment[ONCE]) if ONCE in environment else None
        self._passed = dict.fromkeys(self._strikes, 0)

    def armed(self, point: str) -> bool:
        return point in self._strikes

    def due(self, point: str) -> signal.Signals | None:
        """The signal that is due at this passing of the point, if one is."""
        strike = self._strikes.get(point)
        if strike is None:
            return None
        self._passed[point] += 1
        if self._passed[point] != strike.passing or not self._first(point):
            return None
        return strike.signal

    def _first(self, point: str) -> bool:
        if self._once is None:
            return True
        try:
            (self._once / point).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@cache
def _of_process() -> Failpoints:
    return Failpoints(os.environ)


def armed(point: str) -> bool:
    """Whether this process is to be struck at `point` at some time."""
    return _of_process().armed(point)


def reach(point: str) -> None:
    """The process is at `point`; usually nothing happens."""
    signum = _of_process().due(point)
    if signum is not None:
        os.kill(os.getpid(), signum)
