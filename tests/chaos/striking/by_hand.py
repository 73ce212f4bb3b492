"""A run whose learner and producers a test starts one by one, as people do on several machines.

All processes are those that people start; what a test does to them it does by signals, by failpoints, or by writing records.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar, overload

from broker_config.clients.settings import make_producer
from launch.models.recipes import is_model
from schemas import failpoints
from schemas.records.headers import Headers
from schemas.records.status import Operator
from tests.chaos.striking.part import Part
from tests.chaos.striking.watched_run import KAFKA, WatchedRun
from tests.fakes.nursery import Forked, Nursery
from tests.paths import ROOT
from tests.pipeline import CONFIG, environment

MODEL_S = 300.0
LEARNER = "learner"


class ByHand(WatchedRun):
    """One run. `overrides` are those of all its processes."""

    def __init__(self, bootstrap: str, folder: Path, nursery: Nursery, *overrides: str) -> None:
        super().__init__(bootstrap)
        self._nursery = nursery
        self.folder = folder
        self.overrides = (f"run.id={self.id}", f"run.dir={folder}", *overrides)
        self.parts: list[Part] = []
        self._producer = make_producer(KAFKA, bootstrap, "tests")

    # --- processes ----------------------------------------------------------------------------------------------------------

    def learner(self, *overrides: str, resume: bool = False) -> Part:
        """A learner of one process, without torchrun."""
        arguments = ["--config", CONFIG, *(["--resume"] if resume else []), *self.overrides, *overrides]
        return self._start(LEARNER, lambda log: self._nursery.start("learner.__main__", arguments, self._env(), log))

    def learner_of_two(self, *overrides: str, resume: bool = False, env: Mapping[str, str] | None = None) -> Part:
        """Two ranks under torchrun, as `launch/run_cluster.sh` starts them."""
        torchrun = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
        learner = ["-m", "learner", "--config", CONFIG, *(["--resume"] if resume else []), "learner.nproc=2"]
        arguments, environment = [*torchrun, *learner, *self.overrides, *overrides], self._env(env or {})
        return self._start(LEARNER, lambda log: self._nursery.start("launch.processes.torchrun", arguments, environment, log))

    def producer(self, name: str, *overrides: str, strike: str = "", env: Mapping[str, str] | None = None) -> Part:
        """`strike`: as in WEIR_FAILPOINTS."""
        arguments = ["--config", CONFIG, "--name", name, *self.overrides, *overrides]
        environment = self._env({failpoints.VARIABLE: strike} if strike else {}, env or {})
        return self._start(name, lambda log: self._nursery.start("producer.__main__", arguments, environment, log))

    def vllm_producer(self, name: str, *overrides: str) -> Part:
        """One whose engine is real; vLLM is imported by itself."""
        command = ["-m", "producer", "--config", CONFIG, "--name", name, *self.overrides, *overrides]
        return self._start(name, lambda log: self._program(command, log))

    def _env(self, *more: Mapping[str, str]) -> dict[str, str]:
        env = environment(self.bootstrap)
        for changes in more:
            env.update(changes)
        return env

    def _program(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=self._env(), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _start(self, name: str, make: Callable[[Path], subprocess.Popen[bytes] | Forked]) -> Part:
        log = self.folder / f"{name}.{sum(part.name == name for part in self.parts)}.out"
        part = Part(name, make(log), log)
        self.parts.append(part)
        return part

    def _check_hope(self, what: str) -> None:
        dead = [part for part in self.parts if part.name == LEARNER and not part.alive and not part.awaited]
        if dead:
            raise RuntimeError(f"the learner ended (code {dead[0].process.poll()}) while the test waited for {what}")

    def close(self) -> None:
        for part in self.parts:
            part.kill()
        if self._reader is not None:
            self._reader.close()

    @property
    def run_folder(self) -> Path:
        return self.folder / self.id

    def story(self) -> str:
        """The end of every process's output, for a failed test."""
        logs = [part.log for part in self.parts] + sorted(self.folder.glob("*/logs/dispatcher.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in dict.fromkeys(logs))

    # --- what a test writes itself ------------------------------------------------------------------------------------------

    def write(self, topic: str, value: bytes, key: str | None = None, headers: Headers | None = None) -> None:
        """A record that none of the run's processes wrote; returns when the broker has it."""
        failed: list[object] = []
        self._producer.produce(
            topic,
            value=value,
            key=key,
            headers=headers,
            partition=0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        assert self._producer.flush(30) == 0, f"a record for {topic} was not written within 30 s"
        assert failed == []

    def stop(self) -> None:
        """What `weir stop` writes."""
        self.write(self.topics.status, Operator(uuid=self.uuid, action="stop", by="a test").to_bytes())


def make_tiny_model() -> None:
    """The model of `launch/configs/tiny.yaml`, which the learner alone does not make."""
    path = ROOT / ".cache/models/tiny"
    if not is_model(path):
        subprocess.run(
            [sys.executable, "-m", "launch.models", "tiny", str(path)],
            cwd=ROOT, env=environment(""), check=True, capture_output=True, timeout=MODEL_S,
        )  # fmt: skip


R = TypeVar("R", bound=ByHand)


@overload
def by_hand(bootstrap: str, folder: Path, nursery: Nursery, *overrides: str) -> AbstractContextManager[ByHand]: ...


@overload
def by_hand(bootstrap: str, folder: Path, nursery: Nursery, *overrides: str, kind: type[R]) -> AbstractContextManager[R]: ...


@contextmanager
def by_hand(bootstrap: str, folder: Path, nursery: Nursery, *overrides: str, kind: type[Any] = ByHand) -> Iterator[Any]:
    """A run; none of its processes is left, and what they wrote is shown when the test fails."""
    make_tiny_model()
    folder.mkdir(parents=True, exist_ok=True)
    run = kind(bootstrap, folder, nursery, *overrides)
    try:
        yield run
    except BaseException:
        print(run.story())
        raise
    finally:
        run.close()
