"""A replayed step compared with what the run recorded of it. Pure.

On a CPU, with everything that the arithmetic depends on as it was, a step comes out bit for bit. Otherwise numbers are compared
within a tolerance, and digests are not compared at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from learner.checkpoint.determinism import different_facts
from learner.checkpoint.manifest import Determinism

COMPARED = ("loss", "grad_norm")
"""What is compared within a tolerance. The other metrics are means of the same tokens, or of no model at all."""

SHOWN = 12
"""Hex digits of a digest that are shown."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|a - b| <= absolute + relative * max(|a|, |b|). A loss is a mean around 0, so it needs the absolute part."""

    relative: float
    absolute: float

    def holds(self, a: float, b: float) -> bool:
        return abs(a - b) <= self.absolute + self.relative * max(abs(a), abs(b))


OF_DTYPE = {"float32": Tolerance(1e-3, 1e-4), "bfloat16": Tolerance(5e-2, 5e-3)}


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What came out of a step: metrics without `train/`, digests of the state and of the weights that are sent.

    `measured`: the names of all metrics that were computed. `metrics` holds only those with a finite value, as a record does. A
    record also holds metrics that a replay does not compute, such as times.
    """

    metrics: Mapping[str, float]
    state_digest: str | None
    weights_digest: str | None
    measured: frozenset[str] = frozenset()

    @classmethod
    def of(cls, metrics: Mapping[str, float], state_digest: str | None, weights_digest: str | None) -> StepFigures:
        named = {name.removeprefix("train/"): value for name, value in metrics.items()}
        kept = {name: value for name, value in named.items() if math.isfinite(value)}
        return cls(kept, state_digest, weights_digest, frozenset(named))


class StepVerdict(StrEnum):
    EQUAL = "equal"
    CLOSE = "agrees"
    DIFFERS = "DIFFERS"
    UNRECORDED = "not recorded"

    @property
    def good(self) -> bool:
        """Whether the step came out as the run recorded it, as far as that can be known."""
        return self in (StepVerdict.EQUAL, StepVerdict.CLOSE)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`line`: for a person."""

    step: int
    verdict: StepVerdict
    line: str


def compare(step: int, recorded: StepFigures | None, replayed: StepFigures, tolerance: Tolerance | None) -> Comparison:
    """Compare one step. Without a `tolerance` all that the replay computes must have been recorded, and agree to the last bit."""
    if recorded is None:
        return _comparison(step, StepVerdict.UNRECORDED, _shown(replayed))
    different = _different(recorded, replayed, tolerance)
    if different:
        return _comparison(step, StepVerdict.DIFFERS, different)
    return _comparison(step, StepVerdict.EQUAL if tolerance is None else StepVerdict.CLOSE, _shown(replayed, recorded, tolerance))


def _comparison(step: int, verdict: StepVerdict, parts: Sequence[str]) -> Comparison:
    return Comparison(step, verdict, f"step {step}  {verdict:<7}  " + "  ".join(parts))


def _shown(replayed: StepFigures, recorded: StepFigures | None = None, tolerance: Tolerance | None = None) -> list[str]:
    parts = []
    for name in COMPARED:
        if name in replayed.metrics:
            was = f" (recorded {recorded.metrics[name]!r})" if recorded is not None and tolerance is not None else ""
            parts.append(f"{name} {replayed.metrics[name]!r}{was}")
    if tolerance is None and replayed.state_digest:
        parts.append(f"state {replayed.state_digest[:SHOWN]}")
    if tolerance is None and replayed.weights_digest:
        parts.append(f"weights {replayed.weights_digest[:SHOWN]}")
    return parts


def _different(recorded: StepFigures, replayed: StepFigures, tolerance: Tolerance | None) -> list[str]:
    parts = []
    a, b = recorded.metrics, replayed.metrics
    names = COMPARED if tolerance is not None else [*COMPARED, *sorted((b.keys() | replayed.measured) - set(COMPARED))]
    for name in names:
        was, now = a.get(name), b.get(name)
        if was is None or now is None:
            same = was is now  # not finite, then and now
        else:
            same = was == now if tolerance is None else tolerance.holds(was, now)
        if not same:
            parts.append(f"{name} {_number(now)}, recorded {_number(was)}")
    if tolerance is None:
        for what, was_digest, now_digest in (
            ("state", recorded.state_digest, replayed.state_digest),
            ("weights", recorded.weights_digest, replayed.weights_digest),
        ):
            if was_digest != now_digest:
                parts.append(f"{what} {_digest(now_digest)}, recorded {_digest(was_digest)}")
    return parts


def _number(value: float | None) -> str:
    return "not finite" if value is None else repr(value)


def _digest(value: str | None) -> str:
    return "none" if value is None else value[:SHOWN]


def changes(step: int, recorded: StepFigures | None, replayed: StepFigures) -> list[str]:
    """The step under another config, compared with its record: one line for each metric that moved, recorded -> replayed."""
    if recorded is None:
        return [_comparison(step, StepVerdict.UNRECORDED, _shown(replayed)).line]
    both = [name for name in replayed.metrics if name in recorded.metrics]
    moved = [name for name in both if replayed.metrics[name] != recorded.metrics[name]]
    gone = [name for name in COMPARED if (name in recorded.metrics) != (name in replayed.metrics)]
    if recorded.state_digest is None or replayed.state_digest is None:
        state = "the state after it was not recorded"
    else:
        state = f"the state after it is {'the same' if recorded.state_digest == replayed.state_digest else 'another one'}"
    lines = [f"step {step}  {len(moved) + len(gone)} of {len(both) + len(gone)} metrics differ, {state}"]
    width = max((len(name) for name in (*moved, *gone)), default=0)
    for name in sorted({*moved, *gone}, key=lambda name: (name not in COMPARED, name)):
        was, now = recorded.metrics.get(name), replayed.metrics.get(name)
        shift = f"  {now - was:+.3g}" if was is not None and now is not None else ""
        lines.append(f"  {name:<{width}}  {_number(was)} -> {_number(now)}{shift}")
    return lines


def reasons_for_tolerance(recorded: Sequence[Determinism], here: Determinism) -> list[str]:
    """Why bits cannot be compared; empty if they can."""
    reasons = different_facts(recorded, here)
    if here.device != "cpu":
        reasons.append(f"sums on a GPU ({here.device}) have no fixed order")
    if not here.deterministic:
        reasons.append("learner.deterministic is false")
    return reasons
