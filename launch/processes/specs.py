"""The processes of a run, described: name, command, environment, log file, and how long each may take to end.

Pure: no call to the system here. What depends on a machine comes in as a `Placement`, so that whatever starts the processes (here
`launch/processes/children.py`, under a guard) decides where they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_config.locate import ENVIRONMENT
from launch.outcome import LEARNER
from schemas.config.config import Config
from schemas.config.model import ModelConfig

MODEL = "model"
MODEL_GRACE_S = 1.0
THREADS = "OMP_NUM_THREADS"
ONE_NODE = ("--standalone", "--local-addr", "127.0.0.1")
"""torchrun's options for ranks of one machine, which meet on loopback at a port that they choose."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start. `grace_s`: seconds that it has to end when it is asked to."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    grace_s: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a run's processes are: on a machine that has `python` and `cores`, beside a run's folder, near a broker.

    Args:
        environ: the environment that they inherit.
        bootstrap: the broker's address, as it is reached from there.
        config_file: the run's resolved config.
        logs: absolute folder of the log files.
    """

    python: str
    environ: Mapping[str, str]
    cores: int
    bootstrap: str
    config_file: Path
    logs: Path


def learner_spec(config: Config, at: Placement, *, resume: bool, accept_loss: bool = False) -> ProcessSpec:
    """All ranks of the learner, under torchrun."""
    nproc = config.learner.nproc
    torchrun = ["-m", "launch.processes.torchrun", *ONE_NODE, "--nproc-per-node", str(nproc)]
    options = [*(["--resume"] if resume else []), *(["--accept-loss"] if accept_loss else [])]
    command = [at.python, *torchrun, "-m", "learner", "--config", str(at.config_file), *options]
    threads = config.learner.threads
    if threads is None and THREADS not in at.environ:
        # Learner and producers work at the same time: more threads than cores make all of them slow.
        threads = max(1, at.cores // (nproc + config.producer.count))
    more = {} if threads is None else {THREADS: str(threads)}
    return _spec(LEARNER, command, config, at, more)


def producer_specs(config: Config, at: Placement) -> list[ProcessSpec]:
    """All producers of one machine. How many threads they use is up to their engines."""
    names = [f"producer-{index}" for index in range(config.producer.count)]
    command = [at.python, "-m", "producer", "--config", str(at.config_file), "--name"]
    return [_spec(name, [*command, name], config, at) for name in names]


def model_spec(model: ModelConfig, recipe: str, python: str, environ: Mapping[str, str], log: Path) -> ProcessSpec:
    """Making a missing model. One thread: the sums, and so the weights, are then the same each time."""
    command = [python, "-m", "launch.models", recipe, model.path]
    return ProcessSpec(MODEL, command, process_environment(environ, {THREADS: "1", "MKL_NUM_THREADS": "1"}), log, MODEL_GRACE_S)


def process_environment(environ: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """What every process of ours gets: a log is read while it is written, so output is not held back."""
    return {**environ, "PYTHONUNBUFFERED": "1", **more}


def _spec(name: str, command: Sequence[str], config: Config, at: Placement, more: Mapping[str, str] | None = None) -> ProcessSpec:
    env = process_environment(at.environ, {ENVIRONMENT: at.bootstrap, **(more or {})})
    return ProcessSpec(name, command, env, at.logs / f"{name}.log", config.launch.stop_timeout_s)
