"""A run under supervision: one learner, two producers and a broker, by their names."""

from __future__ import annotations

from launch.exit_codes import FAILED
from launch.outcome import RunOutcome
from launch.supervise.events import (
    BrokerLost,
    Command,
    Done,
    Event,
    Exited,
    Joined,
    Notify,
    RunClaimed,
    Tick,
)
from launch.supervise.supervision import Supervision
from schemas.config.launch import RestartConfig

START_S, STOP_S, OUTAGE_S = 600.0, 30.0, 300.0
LEARNER = "learner-0"
PRODUCERS = ("producer-0", "producer-1")
ALL = (LEARNER, *PRODUCERS)
ENDED = BrokerLost("the local broker (pid 7) has ended", ended=True)
SILENT = BrokerLost("nobody listens at kafka:9092")
TAKEN_OVER = RunOutcome(FAILED, "another learner has taken the run over", LEARNER)


class Story:
    """A supervision with a clock that the test moves. Lines for the person who watches are kept apart."""

    def __init__(self, **restart: float) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.core = Supervision(
            LEARNER,
            PRODUCERS,
            restart=RestartConfig.model_validate(restart),
            start_timeout_s=START_S,
            stop_timeout_s=STOP_S,
            outage_timeout_s=OUTAGE_S,
            now=0.0,
        )

    def on(self, event: Event) -> list[Command]:
        commands = self.core.on(event, self.now)
        self.core.validate()
        self.lines += [command.line for command in commands if isinstance(command, Notify)]
        return [command for command in commands if not isinstance(command, Notify)]

    def after(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.on(Tick())

    def end(self, *names: str, code: int = 0) -> list[Command]:
        return [command for name in names for command in self.on(Exited(name, code))]


def underway(**restart: float) -> Story:
    """A run whose processes have all joined."""
    story = Story(**restart)
    story.on(RunClaimed())
    for name in ALL:
        story.on(Joined(name))
    return story


def outcome(commands: list[Command]) -> RunOutcome:
    (done,) = commands
    assert isinstance(done, Done)
    return done.outcome
