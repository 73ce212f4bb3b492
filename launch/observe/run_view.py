"""What a run is doing, as a person sees it: a pure fold over the records of control, status and metrics.

No client, thread, clock or terminal here. `at` and `now` are seconds since the epoch. The clock of a broker elsewhere may differ
from ours; no age is shown below 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from launch.observe.producers_view import ProducerRow, ProducersView
from launch.observe.rounds_view import RoundRow, RoundsView
from schemas.records.control import Claim, State, Stop
from schemas.records.metrics import StepMetrics
from schemas.records.status import Ack, Beat, Failed, Heartbeat, Left, Report

RECENT_STEPS = 10
CURVE_STEPS = 60


@dataclass(frozen=True, slots=True)
class OpenVersionRow:
    """An open target version: its slots by state, None before the learner has reported them. `holders`: rollouts by producer."""

    version: int
    unassigned: int | None = None
    assigned: int | None = None
    filled: int | None = None
    holders: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastBeat:
    """The dispatcher's last beat. `silent_s`: seconds since then."""

    incarnation: int
    number: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """All that is shown. None: not known yet. Numbers are of the last step, shares of the last `RECENT_STEPS`."""

    run_id: str
    elapsed_s: float
    learner: str
    broker: str
    processes: dict[str, str]
    """Processes that this supervisor started, and what it knows about them."""
    producers: Sequence[ProducerRow] = ()
    steps: int = 0
    last: int | None = None
    reward: float | None = None
    first_reward: float | None = None
    validation: float | None = None
    rewards: Sequence[float] = ()
    loss: float | None = None
    age: float | None = None
    tokens_per_s: float | None = None
    idle_share: float | None = None
    step_s: float | None = None
    eta_s: float | None = None
    failed: int = 0
    refused: dict[str, list[str]] = field(default_factory=dict)
    stop: Stop | None = None
    uuid: str | None = None
    claims: int = 0
    """How many claims were read: one for each learner that has claimed the run."""
    incarnation: int | None = None
    """Of the last state; after a claim that of an earlier learner, until the new one has published its own."""
    frontier: int | None = None
    """The highest version that was announced."""
    sealed_through: int | None = None
    members: Sequence[str] = ()
    validating: Sequence[int] = ()
    """Versions that are being validated."""
    window: Sequence[OpenVersionRow] = ()
    rounds: Sequence[RoundRow] = ()
    """The last refit rounds, the oldest first."""
    beat: LastBeat | None = None
    waits_for: str = ""
    """What rank 0 waits for; empty while it works, and when no beat was read."""
    lead: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    """Reissued, hedged, filtered, duplicates, late, ignored_status: since the learner started."""
    failures: dict[str, int] = field(default_factory=dict)
    """By kind, since the learner started."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Refused records by reason, since the learner started."""


class RunView:
    """Feed it decoded records in the order of their topics; ask for a `snapshot` at any time.

    Every record costs the same, however long the run is, and what is kept does not grow with it.

    Args:
        started: when the run began; None takes the time of its first control record.
    """

    def __init__(self, run_id: str, started: float | None = None) -> None:
        self._run_id = run_id
        self._started = started
        self._ended: float | None = None
        self._processes: dict[str, str] = {}
        self._broker = "running"
        self._uuid: str | None = None
        self._claims = 0
        self._claim = -1  # offset of the last claim; states of a lower incarnation are void
        self._control: State | None = None
        self._producers = ProducersView()
        self._rounds = RoundsView()
        self._beat: Beat | None = None
        self._beat_at = 0.0
        self._failed = 0
        self._steps = 0
        self._metrics: dict[str, float] = {}
        self._first_reward: float | None = None
        self._validation: float | None = None
        self._rewards: deque[float] = deque(maxlen=CURVE_STEPS)
        self._idle: deque[float] = deque(maxlen=RECENT_STEPS)
        self._ends: deque[float] = deque(maxlen=RECENT_STEPS + 1)

    @property
    def stop(self) -> Stop | None:
        """The end of the run, once the learner has announced it."""
        return self._control.stop if self._control else None

    def process(self, name: str, doing: str) -> None:
        """What the supervisor knows about a process that it started."""
        self._processes[name] = doing

    def broker(self, doing: str) -> None:
        self._broker = doing

    def control(self, record: Claim | State, at: float, offset: int) -> None:
        """`offset`: of the record; that of a claim is its learner's incarnation."""
        self._uuid = self._uuid or record.uuid
        if record.uuid != self._uuid:
            return  # of another run, which lost the race for this id
        if self._started is None:
            self._started = at
        match record:
            case Claim():
                self._claims += 1
                self._claim = offset
                self._ended = None
                self._control = self._control and self._control.model_copy(update={"stop": None, "round": None})
                self._rounds.claim(at)
            case State():
                if record.incarnation < self._claim:
                    return  # of a learner that has lost the run
                self._claim = record.incarnation  # its claim may have been deleted, or not been read
                self._control = record
                self._ended = at if record.stop is not None else None
                self._rounds.state(record, at)
                self._producers.members(record.members)

    def status(self, record: object, at: float) -> None:
        match record:
            case Report() | Heartbeat():
                self._producers.reported(record, at)
            case Left():
                self._producers.left(record.producer)
            case Ack():
                self._producers.heard(record.producer, at)
                self._rounds.ack(record)
            case Failed():
                self._producers.heard(record.producer, at)
                self._failed += 1
            case Beat():
                if self._beat is None or record.incarnation >= self._beat.incarnation:
                    self._beat, self._beat_at = record, at
            case _:
                pass

    def metrics(self, record: StepMetrics, at: float) -> None:
        values = record.metrics
        self._steps = max(self._steps, record.step + 1)
        self._metrics = values
        reward = values.get("train/reward")
        if reward is not None:
            self._rewards.append(reward)
            if self._first_reward is None:
                self._first_reward = reward
        whole, waited = values.get("timing/train/total_step_time"), values.get("timing/train/exposed_generation")
        if whole is not None and waited is not None and whole > 0:
            self._idle.append(min(1.0, waited / whole))
        if self._started is None or at >= self._started:
            self._ends.append(at)  # the earlier part of a resumed run says nothing about the speed of this one

    def validation(self, accuracy: float) -> None:
        """The newest validation's result."""
        self._validation = accuracy

    def snapshot(self, now: float) -> RunSnapshot:
        until = now if self._ended is None else self._ended
        step_s = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1) if len(self._ends) > 1 else None
        control = self._control
        last = control.last_version if control else None
        eta = step_s * (last - self._steps) if step_s is not None and last is not None and self.stop is None else None
        producers = self._producers.rows(now, ended=self.stop is not None)
        last_beat = self._last_beat()
        return RunSnapshot(
            run_id=self._run_id,
            elapsed_s=max(0.0, until - self._started) if self._started is not None else 0.0,
            learner=self._learner(),
            broker=self._broker,
            processes=dict(self._processes),
            producers=producers,
            steps=self._steps,
            last=last,
            reward=self._metrics.get("train/reward"),
            first_reward=self._first_reward,
            validation=self._validation,
            rewards=tuple(self._rewards),
            loss=self._metrics.get("train/loss"),
            age=self._metrics.get("train/avg_trajectory_age"),
            tokens_per_s=self._metrics.get("performance/tokens_per_s"),
            idle_share=sum(self._idle) / len(self._idle) if self._idle else None,
            step_s=step_s,
            eta_s=eta,
            failed=self._failed,
            refused=dict(control.refused) if control else {},
            stop=self.stop,
            uuid=control.uuid if control else None,
            claims=self._claims,
            incarnation=control.incarnation if control else None,
            frontier=control.frontier if control else None,
            sealed_through=control.sealed_through if control else None,
            members=tuple(sorted(control.members)) if control else (),
            validating=tuple(sorted(control.validations)) if control else (),
            window=self._window(producers, last_beat),
            rounds=self._rounds.rows(now),
            beat=LastBeat(last_beat.incarnation, last_beat.number, max(0.0, now - self._beat_at)) if last_beat else None,
            waits_for=last_beat.waits_for if last_beat and self.stop is None else "",
            lead=last_beat.lead if last_beat else None,
            counts=dict(last_beat.counts) if last_beat else {},
            failures=dict(last_beat.failures) if last_beat else {},
            refusals=dict(last_beat.refusals) if last_beat else {},
        )

    def _last_beat(self) -> Beat | None:
        """Unless it is of a learner that has lost the run."""
        stale = self._beat is not None and self._beat.incarnation < self._claim
        return None if stale else self._beat

    def open_versions(self) -> list[int]:
        """Target versions that are open, by control."""
        return sorted(self._control.window) if self._control is not None and self.stop is None else []

    def _window(self, producers: Sequence[ProducerRow], last_beat: Beat | None) -> list[OpenVersionRow]:
        """The versions that are open, by control; a beat may be from a moment before or after it."""
        figures = last_beat.window if last_beat else {}
        rows = []
        for version in self.open_versions():
            slots = figures.get(version)
            rows.append(
                OpenVersionRow(
                    version,
                    slots.unassigned if slots else None,
                    slots.assigned if slots else None,
                    slots.filled if slots else None,
                    {row.name: row.rollouts[version] for row in producers if version in row.rollouts},
                )
            )
        return rows

    def _learner(self) -> str:
        """What the learner is doing, as far as control shows it."""
        control = self._control
        if control is None or control.incarnation < self._claim:
            return "claimed the run" if self._claims else "starting"
        if control.stop is not None:
            return f"stopped: {control.stop.reason}"
        if control.round is not None:
            verb = "pausing producers for" if control.round.phase == "pause" else "sending"
            return f"{verb} the weights of version {control.round.version}"
        if control.frontier is None:
            joined = len(control.members)
            return f"waiting for producers ({joined} joined)" if joined else "waiting for producers"
        if control.sealed_through >= control.frontier:
            return f"training target version {control.frontier}"
        return f"waiting for the groups of target version {control.frontier}"
