"""A supervisor over processes that a test makes up, in a process of its own so that the test can interrupt and kill it.

    python -m tests.fakes.supervised FOLDER STOP_TIMEOUT LEARNER_CODE PRODUCER_CODE...

Writes `FOLDER/outcome.json` when it ends. `FOLDER/control.json`, once it is there, is the `stop` that the topics tell;
`FOLDER/broker_gone` makes the broker die.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
from pathlib import Path

from rich.console import Console

from launch.children import ChildSpec
from launch.display import PlainLines
from launch.supervisor import Supervisor
from launch.view import RunView, Snapshot
from schemas.control import Claim, State, Stop
from tests.fakes.runs import UUID


class FolderWatch:
    """The topics of a run, as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._view = RunView("fake", 0.0)

    def snapshot(self) -> Snapshot:
        path = self._folder / "control.json"
        if path.exists() and self._view.stop is None:
            stop = Stop.model_validate_json(path.read_text())
            self._view.control(State(uuid=UUID, incarnation=0, config_digest="c", stop=stop), 0.0)
        elif (self._folder / "claimed").exists() and not self._view.claimed:
            self._view.control(Claim(uuid=UUID, host="h", pid=1, config_digest="c"), 0.0)
        return self._view.snapshot(1.0)

    def process(self, name: str, doing: str) -> None:
        self._view.process(name, doing)

    def broker(self, doing: str) -> None:
        self._view.broker(doing)


def main() -> int:
    folder, stop_timeout_s, learner, *producers = sys.argv[1:]
    out = Path(folder)

    def spec(name: str, code: str) -> ChildSpec:
        return ChildSpec(name, [sys.executable, "-c", code], dict(os.environ), out / f"{name}.log", float(stop_timeout_s))

    supervisor = Supervisor(
        spec("learner-0", learner),
        [spec(f"producer-{i}", code) for i, code in enumerate(producers)],
        watch=FolderWatch(out),
        display=PlainLines(Console(file=io.StringIO())),
        broker_lost=lambda: "the broker has ended" if (out / "broker_gone").exists() else None,
        start_timeout_s=float(os.environ.get("START_TIMEOUT", "60")),
        stop_timeout_s=float(stop_timeout_s),
        cwd=Path.cwd(),
    )
    outcome = supervisor.supervise()
    (out / "outcome.json").write_text(json.dumps(dataclasses.asdict(outcome)))
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
