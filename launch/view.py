"""What a run does, as a person sees it: a pure fold over the records of control, status and metrics.

No client, thread, clock or terminal here. `at` and `now` are seconds since the epoch; on a broker elsewhere its clock may differ
from ours, so that ages are never shown below 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.control import Claim, State, Stop
from schemas.metrics import StepMetrics
from schemas.status import Beat, Failed, Heartbeat, Left, Report

StatusRecord = Report | Heartbeat | Failed | Left | Beat | object

RATE_WINDOW_S = 10.0
RECENT_STEPS = 10
CURVE_STEPS = 60


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """One producer. `version`: of the weights it serves, -1 before the first; `silent_s`: since its last record."""

    name: str
    state: str
    version: int
    in_hand: int
    capacity: int
    tokens_per_s: float
    silent_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the live view shows. None: not known yet. Numbers of the last step, shares of the last `RECENT_STEPS`."""

    run_id: str
    elapsed_s: float
    learner: str
    broker: str
    processes: dict[str, str]
    """Processes that this supervisor started, and what it knows of them."""
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


class _Producer:
    """Latest facts of one producer, and its token counts of the last seconds."""

    def __init__(self) -> None:
        self.state = "silent"
        self.version = -1
        self.in_hand = 0
        self.capacity = 0
        self.at = 0.0
        self.tokens: deque[tuple[float, int]] = deque(maxlen=64)

    def rate(self, now: float) -> float:
        recent = [(at, count) for at, count in self.tokens if at >= now - RATE_WINDOW_S]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return 0.0
        return max(0.0, (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0]))


class RunView:
    """Feed it decoded records in the order of their topics; ask for a `snapshot` at any time.

    Args:
        started: when the run began; None takes the time of its first control record.
    """

    def __init__(self, run_id: str, started: float | None = None) -> None:
        self._run_id = run_id
        self._started = started
        self._ended: float | None = None
        self._processes: dict[str, str] = {}
        self._broker = "running"
        self._claimed = False
        self._control: State | None = None
        self._producers: dict[str, _Producer] = {}
        self._failed = 0
        self._steps = 0
        self._metrics: dict[str, float] = {}
        self._first_reward: float | None = None
        self._validation: float | None = None
        self._rewards: deque[float] = deque(maxlen=CURVE_STEPS)
        self._idle: deque[float] = deque(maxlen=RECENT_STEPS)
        self._ends: deque[float] = deque(maxlen=RECENT_STEPS + 1)

    @property
    def claimed(self) -> bool:
        """Whether a learner has claimed the run."""
        return self._claimed

    @property
    def stop(self) -> Stop | None:
        """The end of the run, once the learner has told it."""
        return self._control.stop if self._control else None

    @property
    def steps(self) -> int:
        """Versions trained."""
        return self._steps

    def process(self, name: str, doing: str) -> None:
        """What the supervisor knows of a process that it started."""
        self._processes[name] = doing

    def broker(self, doing: str) -> None:
        self._broker = doing

    def control(self, record: Claim | State, at: float) -> None:
        self._claimed = True
        if self._started is None:
            self._started = at
        match record:
            case Claim():
                self._ended = None
                self._control = self._control and self._control.model_copy(update={"stop": None, "round": None})
            case State():
                self._control = record
                self._ended = at if record.stop is not None else None
                for name, member in record.members.items():
                    self._producers.setdefault(name, _Producer()).version = member.held

    def status(self, record: object, at: float) -> None:
        match record:
            case Report() | Heartbeat():
                producer = self._producers.setdefault(record.producer, _Producer())
                producer.state, producer.version = str(record.state), record.held
                producer.in_hand, producer.capacity, producer.at = len(record.in_hand), record.capacity, at
                if isinstance(record, Heartbeat):
                    producer.tokens.append((at, record.engine_tokens))
            case Left():
                self._producers.pop(record.producer, None)
            case Failed():
                self._failed += 1
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
            self._ends.append(at)  # those of an earlier part of the run say nothing of how fast this one is

    def validation(self, accuracy: float) -> None:
        """The newest validation's result."""
        self._validation = accuracy

    def snapshot(self, now: float) -> Snapshot:
        until = now if self._ended is None else self._ended
        step_s = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1) if len(self._ends) > 1 else None
        last = self._control.last_version if self._control else None
        eta = step_s * (last - self._steps) if step_s is not None and last is not None else None
        return Snapshot(
            run_id=self._run_id,
            elapsed_s=max(0.0, until - self._started) if self._started is not None else 0.0,
            learner=self._learner(),
            broker=self._broker,
            processes=dict(self._processes),
            producers=[self._row(name, producer, now) for name, producer in self._present()],
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
            refused=dict(self._control.refused) if self._control else {},
            stop=self.stop,
        )

    def _present(self) -> list[tuple[str, _Producer]]:
        """Members and others, by name; after the end only those who still give a sign."""
        return [(name, producer) for name, producer in sorted(self._producers.items()) if producer.at or self.stop is None]

    def _row(self, name: str, producer: _Producer, now: float) -> ProducerRow:
        return ProducerRow(
            name=name,
            state=producer.state,
            version=producer.version,
            in_hand=producer.in_hand,
            capacity=producer.capacity,
            tokens_per_s=producer.rate(now),
            silent_s=max(0.0, now - producer.at) if producer.at else 0.0,
        )

    def _learner(self) -> str:
        """What the learner does, as far as control tells."""
        control = self._control
        if control is None:
            return "claimed the run" if self._claimed else "starting"
        if control.stop is not None:
            return f"stopped: {control.stop.reason}"
        if control.round is not None:
            verb = "pausing producers for" if control.round.phase == "pause" else "sending"
            return f"{verb} the weights of version {control.round.version}"
        if control.F is None:
            joined = len(control.members)
            return f"waiting for producers ({joined} joined)" if joined else "waiting for producers"
        if control.sealed_through >= control.F:
            return f"training target version {control.F}"
        return f"waiting for the groups of target version {control.F}"
