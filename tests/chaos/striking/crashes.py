"""Runs whose learner is started again and again: struck at a named point each time, while what it shares with others lives on."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from schemas import failpoints
from schemas.config import file as config_file
from schemas.records.metrics import StepMetrics
from tests.chaos.striking.by_hand import ByHand, by_hand
from tests.chaos.striking.ledger import Log, Trained, steps_of
from tests.chaos.striking.part import Part
from tests.chaos.striking.watched_run import START_S
from tests.fakes.nursery import Nursery
from tests.pipeline import CONFIG, SCRIPTED

N, G = 4, 8
"""Slots, and completions of each: enough that random tokens get a reward now and then."""
PRODUCERS = ("steady-0", "steady-1")
SAVE_PERIOD = 2
RUN = (
    *SCRIPTED,
    f"grpo.num_prompts_per_step={N}",
    f"grpo.num_generations_per_prompt={G}",
    "producer.scripted={seconds_per_token: 0.01, by_draw: true}",
    f"producer.count={len(PRODUCERS)}",
    f"checkpointing.save_period={SAVE_PERIOD}",
    "checkpointing.hf_export_at_end=false",
    "dispatch.beat_s=0.2",
    "dispatch.heartbeat_s=0.2",
)


@dataclass(frozen=True, slots=True)
class Strike:
    """SIGKILL at `point`, at its `passing` of an incarnation; of two ranks `rank` is meant. `keep`: checkpointing.keep."""

    point: str
    passing: int = 2
    rank: int | None = None
    keep: int | None = None

    @property
    def armed(self) -> str:
        return f"{self.point}=SIGKILL@{self.passing}" + ("" if self.rank is None else f"/{self.rank}")

    @property
    def code(self) -> int:
        """How a learner of one process ends of it: killed, or because its dispatcher was."""
        return -signal.SIGKILL if self.point.startswith("learner.") else 1

    @property
    def overrides(self) -> tuple[str, ...]:
        return () if self.keep is None else (f"checkpointing.keep={self.keep}",)


@dataclass(slots=True)
class Account:
    """What a run trained, as far as it has been read: `trained` by version, `outcomes` as they lie in `metrics`."""

    trained: dict[int, list[Trained]] = field(default_factory=dict)
    outcomes: list[StepMetrics] = field(default_factory=list)

    @property
    def state_digests(self) -> list[str | None]:
        return [outcome.state_digest for outcome in sorted(self.outcomes, key=lambda o: o.step)]

    @property
    def grad_norms(self) -> list[float]:
        return [outcome.metrics["train/grad_norm"] for outcome in self.outcomes]


def same_states(found: Account, wanted: Account, steps: int) -> None:
    """Each of the steps came out as in the other run, to the last bit."""
    assert sum(norm > 0 for norm in wanted.grad_norms) > steps // 2, "the weights hardly move: equal states say nothing"
    assert len(wanted.outcomes) == len(found.outcomes) == steps
    assert found.state_digests == wanted.state_digests
    assert None not in wanted.state_digests


class CrashingRun(ByHand):
    """A run by hand whose learner may be armed."""

    def __init__(self, bootstrap: str, folder: Path, nursery: Nursery, *overrides: str) -> None:
        super().__init__(bootstrap, folder, nursery, *overrides)
        self._arms: dict[str, str] = {}

    def _env(self, *more: Mapping[str, str]) -> dict[str, str]:
        return super()._env(self._arms, *more)

    def arm(self, arms: Mapping[str, str]) -> None:
        """What is started from now on is struck as these variables say."""
        self._arms = dict(arms)

    def started(self, strike: Strike | None = None, *overrides: str, resume: bool, nproc: int = 1) -> Part:
        """A learner that is struck when it comes to that point."""
        start = self.learner if nproc == 1 else self.learner_of_two
        if strike is None:
            return start(*overrides, resume=resume)
        self._mark(strike).parent.mkdir(exist_ok=True)
        self._arms = {failpoints.VARIABLE: strike.armed, failpoints.ONCE: str(self._mark(strike).parent)}
        try:
            return start(*strike.overrides, *overrides, resume=resume)
        finally:
            self._arms = {}

    def dies(self, learner: Part, strike: Strike, within_s: float = START_S) -> None:
        """Wait for the learner's end, which must have come from the strike."""
        code = learner.end(within_s)
        assert self._mark(strike).exists(), f"not at {strike.armed}, code {code}:\n{learner.output[-4000:]}"
        # Of several ranks, that of the first one that ended: the one that was struck, or one that missed it.
        codes = {strike.code} if strike.rank is None else {1, 128 + signal.SIGKILL}
        assert code in codes, (strike, code, learner.output[-4000:])
        print(f"{strike.armed}: code {code}, version {self.frontier} announced")

    def _mark(self, strike: Strike) -> Path:
        return self.folder / f"struck-{strike.armed.replace('/', '-')}" / strike.point

    @property
    def log(self) -> Log:
        return Log(self.bootstrap, self.id, self.uuid, N)

    def write_config(self) -> None:
        """As `launch/run_cluster.sh` does, so that the run can be replayed."""
        self.run_folder.mkdir(parents=True, exist_ok=True)
        raw = config_file.read(CONFIG, list(self.overrides))
        (self.run_folder / "config.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")

    def note(self, account: Account) -> None:
        """Read what is there now. A batch that was seen before must be the same."""
        log = self.log
        try:
            account.outcomes = log.outcomes()
            steps = {outcome.step for outcome in account.outcomes}
            for version in sorted(steps - account.trained.keys()):
                account.trained[version] = log.trained(version)
        finally:
            log.close()

    def steps(self) -> list[int]:
        return steps_of(self.run_folder)


def undisturbed(bootstrap: str, folder: Path, nursery: Nursery, *overrides: str, nproc: int = 1) -> Account:
    """A run to its end, nobody struck."""
    return chained(bootstrap, folder, nursery, (), *overrides, nproc=nproc)


def chained(
    bootstrap: str, folder: Path, nursery: Nursery, strikes: Sequence[Strike], *overrides: str, nproc: int = 1
) -> Account:
    """A run to its end, its learner struck at point after point; the producers are started once.

    Raises:
        AssertionError: a point was not reached, somebody else died, or a step was recorded twice or never.
    """
    account = Account()
    with by_hand(bootstrap, folder, nursery, *overrides, kind=CrashingRun) as run:
        producers: list[Part] = []
        for number, strike in enumerate([*strikes, None]):
            learner = run.started(strike, resume=number > 0, nproc=nproc)
            if number == 0:
                producers = [run.producer(name) for name in PRODUCERS]
                run.watch()
            if strike is not None:
                run.dies(learner, strike)
                run.note(account)
                assert all(part.alive for part in producers), "a producer died with the learner"
        assert learner.end(START_S) == 0, learner.output[-4000:]
        for part in producers:
            assert part.end() == 0, part.output[-4000:]
        run.note(account)
        steps = run.steps()
        assert steps == list(range(len(steps))), f"lines in metrics.jsonl: {steps}"
        assert [outcome.step for outcome in account.outcomes] == steps, "records in metrics"
    return account
