"""One run of the main job, watched from outside: its times from its files, its memory from the processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.locate import ENVIRONMENT

SAMPLE_S = 0.5
LIMIT_S = 1800.0
WARM_UP = 2  # steps that start-up still shows in


class TinyRun:
    """`run` blocks until the run is over; the other members are there after it."""

    def __init__(self, folder: Path, config: str, overrides: list[str]) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "launch", config, f"run.dir={folder / 'runs'}", *overrides]
        self._broker = LocalBroker(folder / "broker")
        self.seconds = 0.0
        self.first_step_s = 0.0
        self.peak_rss: dict[str, int] = {}

    def run(self) -> None:
        began = time.monotonic()
        with self.broker() as bootstrap:
            began = time.monotonic()
            process = subprocess.Popen(self._command, env={**os.environ, ENVIRONMENT: bootstrap}, stdout=subprocess.DEVNULL)
            broker_pid = self._broker.pid
            while process.poll() is None:
                self._sample(process.pid, broker_pid)
                if not self.first_step_s and self._lines():
                    self.first_step_s = time.monotonic() - began
                if time.monotonic() - began > LIMIT_S:
                    process.terminate()
                    raise TimeoutError(f"the run did not end within {LIMIT_S:g} s")
                time.sleep(SAMPLE_S)
            self.seconds = time.monotonic() - began
        if process.returncode != 0:
            raise RuntimeError(f"the run ended with exit code {process.returncode}")

    @contextmanager
    def broker(self) -> Iterator[str]:
        """A broker of this benchmark's own, its data kept between calls."""
        try:
            yield self._broker.start(Deadline(90))
        finally:
            self._broker.stop(Deadline(60))

    @property
    def run_folder(self) -> Path:
        return (self._folder / "runs" / "latest").resolve()

    @property
    def run_id(self) -> str:
        return self.run_folder.name

    @property
    def config(self) -> dict[str, dict[str, object]]:
        loaded: dict[str, dict[str, object]] = yaml.safe_load((self.run_folder / "config.yaml").read_text())
        return loaded

    @property
    def model(self) -> dict[str, object]:
        return self.config["model"]

    @property
    def max_new_tokens(self) -> int:
        return int(str(self.config["generation"]["max_new_tokens"]))

    @property
    def exported(self) -> Path:
        return sorted((self.run_folder / "hf").iterdir())[-1]

    def figures(self) -> dict[str, float]:
        steps = self.steps()
        seconds = sum(s["timing/train/total_step_time"] for s in steps)
        waited = sum(s["timing/train/exposed_generation"] for s in steps)
        tokens = sum(s["train/generated_tokens"] for s in steps)
        figures = {
            "command to first step, s": self.first_step_s,
            "whole run, s": self.seconds,
            "median step, s": statistics.median(s["timing/train/total_step_time"] for s in steps),
            "learner idle share": waited / seconds,
            "tokens/s of the run": tokens / seconds,
        }
        return figures | {f"peak RSS of {name}, MiB": size / 2**20 for name, size in sorted(self.peak_rss.items())}

    def steps(self) -> list[dict[str, float]]:
        """Metrics of the steps after the warm-up."""
        return self._lines()[WARM_UP:]

    def _lines(self) -> list[dict[str, float]]:
        file = self._folder / "runs" / "latest" / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _sample(self, supervisor: int, broker: int | None) -> None:
        sizes: dict[str, int] = {}
        try:
            found = psutil.Process(supervisor).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        if broker is not None:
            found.append(psutil.Process(broker))
        for process in found:
            try:
                words, size = " ".join(process.cmdline()), process.memory_info().rss
            except psutil.Error:
                continue
            for name in ("producer-0", "producer-1", "learner", "kafka.Kafka"):
                if name in words and "launch.processes.guard" not in words:
                    role = "broker" if name == "kafka.Kafka" else "learner, all processes" if name == "learner" else name
                    sizes[role] = sizes.get(role, 0) + size
                    break
        for role, size in sizes.items():
            self.peak_rss[role] = max(self.peak_rss.get(role, 0), size)
