"""A supervisor over processes that a test makes up, in a process of its own so that the test can interrupt and kill it.

    python -m tests.fakes.launch.supervised FOLDER STOP_TIMEOUT LEARNER_CODE PRODUCER_CODE...

Writes `FOLDER/outcome.json` when it ends, and to `FOLDER/shown` the lines that a person reads. The topics are files that a test
makes: `FOLDER/control.json`, a `stop`; `FOLDER/claims`, how many claims there are; `FOLDER/joined`, names of producers.
`FOLDER/saved`: there is a checkpoint. `FOLDER/broker_gone` makes the broker die; a broker that is started again removes it.
`RESTART` in the environment holds keys of `launch.restart` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

from rich.console import Console

from launch.observe.display import PlainLines
from launch.observe.run_view import RunSnapshot, RunView
from launch.processes.specs import ProcessSpec
from launch.supervise.events import BrokerBack, BrokerEvent, BrokerLost
from launch.supervise.supervisor import Supervisor
from schemas.config.launch import RestartConfig
from schemas.records.control import Claim, Member, State, Stop
from schemas.records.status import Heartbeat, ProducerState
from tests.fakes.records.make import UUID


class FolderRun:
    """The topics of a run, as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._view = RunView("fake", 0.0)
        self._claims = 0

    def snapshot(self) -> RunSnapshot:
        claims = int(_read(self._folder / "claims") or "0")
        stop = _read(self._folder / "control.json")
        while self._claims < claims:
            self._view.control(Claim(uuid=UUID, host="here", pid=1, config_digest="c"), 0.0, self._claims)
            self._claims += 1
        if claims or stop:
            joined = (_read(self._folder / "joined") or "").split()
            members = {f"{name}-1": Member(requests_partition=i) for i, name in enumerate(joined)}
            state = State(uuid=UUID, incarnation=max(0, claims - 1), config_digest="c", members=members)
            self._view.control(state.model_copy(update={"stop": Stop.model_validate_json(stop) if stop else None}), 0.0, claims)
            for name in members:
                beat = Heartbeat(
                    uuid=UUID, producer=name, state=ProducerState.SERVING, held=0, engine_tokens=0, capacity=1, in_hand=[]
                )
                self._view.status(beat, 0.0)
        return self._view.snapshot(1.0)

    def process(self, name: str, doing: str) -> None:
        self._view.process(name, doing)

    def broker(self, doing: str) -> None:
        self._view.broker(doing)


class FolderBroker:
    """A broker that is a file: away while `broker_gone` is there."""

    def __init__(self, gone: Path) -> None:
        self._gone = gone
        self._away = False

    def start(self) -> None:
        """Starts nothing."""

    def events(self) -> list[BrokerEvent]:
        away, self._away = self._away, self._gone.exists()
        if away == self._away:
            return []
        return [BrokerLost("the broker has ended", ended=True) if self._away else BrokerBack()]

    def restart(self) -> None:
        self._gone.unlink()

    def pids(self) -> set[int]:
        return set()

    def close(self) -> None:
        """Holds nothing."""


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def main() -> int:
    folder, stop_timeout_s, learner, *producers = sys.argv[1:]
    out = Path(folder)

    def spec(name: str, code: str) -> ProcessSpec:
        return ProcessSpec(name, [sys.executable, "-c", code], dict(os.environ), out / f"{name}.log", float(stop_timeout_s))

    learner_spec = spec("learner-0", learner)
    shown = (out / "shown").open("w", buffering=1)
    supervisor = Supervisor(
        learner_spec,
        [spec(f"producer-{i}", code) for i, code in enumerate(producers)],
        learner_again=dataclasses.replace(learner_spec, env={**learner_spec.env, "RESUMED": "1"}),
        run=FolderRun(out),
        display=PlainLines(Console(file=shown, width=200)),
        broker=FolderBroker(out / "broker_gone"),
        saved=lambda: (out / "saved").exists(),
        restart=RestartConfig.model_validate_json(os.environ.get("RESTART", "{}")),
        start_timeout_s=float(os.environ.get("START_TIMEOUT", "60")),
        stop_timeout_s=float(stop_timeout_s),
        outage_timeout_s=60.0,
        cwd=Path.cwd(),
    )
    outcome = supervisor.supervise()
    (out / "outcome.json").write_text(json.dumps({**dataclasses.asdict(outcome), "restarts": supervisor.restarts}))
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
