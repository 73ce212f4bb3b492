"""Whole runs for tests: the main job as a person starts it, and what it leaves in topics and files."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from broker_config.locate import ENVIRONMENT
from broker_config.topics import Topics
from schemas.records import seal as seals
from schemas.records.control import Stop
from schemas.records.group import TrajectoryGroup, decode
from schemas.records.headers import as_mapping
from schemas.records.seal import Seal
from tests.paths import ROOT
from tests.support import eventually, new_id
from tests.topic_contents import last_state, read_topic

T = TypeVar("T")

RUN_LIMIT_S = 400.0
WEIR_LIMIT_S = 200.0
START_LIMIT_S = 180.0  # on a machine with other work, imports alone take a minute
STOP_LIMIT_S = 60.0

CONFIG = "launch/configs/tiny.yaml"
SMALL = ("grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=4", "learner.train_micro_batch_size=4",
         "logger.tensorboard=false")  # fmt: skip
SCRIPTED = (*SMALL, "producer.engine=scripted", "grpo.max_num_steps=4", "data.validation=null", "grpo.val_period=0",
            "grpo.val_at_start=false", "grpo.val_at_end=false")  # fmt: skip


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended, its exit code and what it printed."""

    run_id: str
    bootstrap: str
    folder: Path
    code: int
    output: str

    @property
    def stop(self) -> Stop:
        """How the run ended, as the last state on `control` has it."""
        stop = last_state(self.bootstrap, Topics(self.run_id).control).stop
        assert stop is not None, f"run {self.run_id} ended without a stop on control:\n{self.output}"
        return stop

    def metrics(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def steps(self) -> list[int]:
        return [int(line["step"]) for line in self.metrics()]

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def version_topic(self, version: int) -> tuple[dict[int, TrajectoryGroup], Seal]:
        """Groups by offset, and the first seal, of one version's topic."""
        records = read_topic(self.bootstrap, Topics(self.run_id).trajectories(version))
        groups = {r.offset(): decode(r.value()) for r in records if as_mapping(r.headers())["kind"] != b"seal"}
        sealed = [r.value() for r in records if as_mapping(r.headers())["kind"] == b"seal"]
        some = next(iter(groups.values()))
        slots = 1 + max(group.request.slot for group in groups.values())
        return groups, seals.decode(sealed[0], run=some.run, version=version, prompts_per_step=slots)


class Job:
    """The main job under way: `launch/run_cluster.sh` without its set-up."""

    def __init__(self, run_id: str, bootstrap: str, folder: Path, process: subprocess.Popen[bytes], output: BinaryIO) -> None:
        self.run_id = run_id
        self.bootstrap = bootstrap
        self.folder = folder
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        """What it has printed so far."""
        descriptor = self._output.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def steps(self) -> list[int]:
        """The steps that it has trained so far."""
        metrics = self.folder / "metrics.jsonl"
        return [json.loads(line)["step"] for line in metrics.read_text().splitlines()] if metrics.exists() else []

    def log(self, name: str) -> str:
        """What a process has logged so far; empty before it begins."""
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, condition: Callable[[], T | None], within_s: float, what: str) -> T:
        """`eventually`, which fails at once when the job has ended meanwhile."""

        def asked() -> T | None:
            answer = condition()
            if not answer and self.process.poll() is not None:
                raise RuntimeError(f"the run ended (code {self.process.poll()}) while the test waited for {what}:\n{self.output}")
            return answer

        return eventually(asked, within_s, what)

    def until_trained(self, steps: int, within_s: float = START_LIMIT_S) -> None:
        self.until(lambda: len(self.steps()) >= steps, within_s, f"{steps} trained steps")

    def end(self) -> FinishedRun:
        """Wait until it has ended by itself."""
        try:
            code = self.process.wait(RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            why = f"run {self.run_id} did not end within {RUN_LIMIT_S:g} s; logs in {self.folder}"
            raise AssertionError(f"{why}\n{self.output}") from None
        return FinishedRun(self.run_id, self.bootstrap, self.folder, code, self.output)


@contextmanager
def main_job(
    bootstrap: str,
    runs: Path,
    *overrides: str,
    run_id: str | None = None,
    env: Mapping[str, str] | None = None,
    file_bytes: int | None = None,
) -> Iterator[Job]:
    """A new run of the tiny config, which is stopped when the test leaves it early.

    file_bytes: none of its processes can write a larger file.
    """
    run_id = run_id or new_id()
    arguments = [CONFIG, f"run.id={run_id}", f"run.dir={runs}", *overrides]
    with _started(arguments, run_id, bootstrap, runs / run_id, env or {}, file_bytes) as job:
        yield job


def run_to_end(bootstrap: str, runs: Path, *overrides: str, run_id: str | None = None) -> FinishedRun:
    with main_job(bootstrap, runs, *overrides, run_id=run_id) as job:
        return job.end()


def resume_to_end(run: FinishedRun, *arguments: str) -> FinishedRun:
    """`launch/run_cluster.sh --resume`."""
    with _started(["--resume", str(run.folder), *arguments], run.run_id, run.bootstrap, run.folder, {}, None) as job:
        return job.end()


@contextmanager
def _started(
    arguments: Sequence[str], run_id: str, bootstrap: str, folder: Path, env: Mapping[str, str], file_bytes: int | None
) -> Iterator[Job]:
    limit = None if file_bytes is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    command = [sys.executable, "-m", "launch", *arguments]
    # Into a file: a pipe that nobody reads while the test waits for something else would fill up.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**environment(bootstrap), **env}, stdout=output, stderr=output, preexec_fn=limit
        )
        job = Job(run_id, bootstrap, folder, process, output)
        try:
            yield job
        except BaseException:
            print(job.output)
            raise
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(STOP_LIMIT_S)


def environment(bootstrap: str) -> dict[str, str]:
    return {**os.environ, ENVIRONMENT: bootstrap, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def weir(bootstrap: str, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command `weir`, which must end with `code` and without a traceback."""
    script = "import sys; from launch.cli import main; sys.exit(main())"
    env = {**environment(bootstrap), "NO_COLOR": "1"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=WEIR_LIMIT_S, check=False)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done
