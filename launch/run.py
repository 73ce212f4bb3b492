"""One run on this machine, from its file to its summary: broker, model, folder, processes, live view.

Order: whatever can fail on wrong input comes first. The broker's start and the making of a missing model go on side by side;
then learner and producers start at once, since their imports take longest and nothing in them waits for another's start.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from broker_config import logs
from broker_config.clients.admin import describe
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline
from broker_config.locate import ENVIRONMENT
from broker_config.topics import Topics
from broker_config.trial import check_topics
from launch.config.check import Checked, check
from launch.folders import RunFolder, make, mint_id, point_latest, set_logs_aside
from launch.observe.display import Display, make_display
from launch.observe.summary import shown, summarize
from launch.observe.view import Snapshot
from launch.observe.watch import Watch
from launch.processes.broker import PREFLIGHT_S, BrokerUse, Keeper, use_broker
from launch.processes.children import ChildSpec
from launch.processes.model_build import ModelBuild
from launch.supervise.broker_care import BrokerCare
from launch.supervise.outcome import BROKER, Outcome
from launch.supervise.supervisor import Supervisor
from learner.checkpoint import folders as checkpoint
from schemas.config.config import Config

LEARNER = "learner-0"
CONTROL_S = 30.0
KEEPER_EXTRA_S = 60.0


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run. `resume`: go on in the folder that the file's run has; `accept_loss`: even if its broker has lost data."""

    checked: Checked
    resume: bool = False
    accept_loss: bool = False


def launch(what: Launch, console: Console) -> int:
    """Run it to its end; returns the exit code.

    Raises:
        ConfigError, WeirError: nothing, or not all, could be started; what was started is ended.
        KeyboardInterrupt: likewise, before the processes of the run were started.
    """
    started = time.time()
    config = what.checked.config
    if not what.resume:
        config = config.with_id(config.run.id or mint_id(config.run.name, started))
    display = make_display(console)
    try:
        for warning in what.checked.warnings:
            display.say(f"warning: {warning}")
        display.say(f"run {config.run.id}: {shown(config.folder)}")
        patience_s = 2 * config.launch.stop_timeout_s + KEEPER_EXTRA_S
        with Keeper(patience_s) as keeper, ModelBuild(config.model) as model, use_broker(config.kafka, display.say) as broker:
            keeper.guard(broker)
            if not what.resume:
                check_topics(config.kafka, broker.bootstrap, str(config.run.id), Deadline(PREFLIGHT_S))
            if model.wait(display.say):
                # The rules that need the model's files, now that they are there.
                check({name: section.model_dump() for name, section in config.sections.items()}, resuming=True)
            folder = _folder(config, what.resume)
            # From here on the terminal is the display's.
            logs.configure("INFO", str(folder.logs / "supervisor.log"))
            outcome, last, restarts = _supervised(config, folder, broker, what, started, display)
    finally:
        display.close()
    blamed = _blamed_log(outcome, folder, broker)
    lines = summarize(outcome, last, folder, tensorboard=config.logger.tensorboard, blamed_log=blamed, restarts=restarts)
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    return outcome.code


def _folder(config: Config, resume: bool) -> RunFolder:
    if not resume:
        return make(config)
    folder = RunFolder(config.folder)
    folder.config.write_text(config.to_yaml(), encoding="utf-8")
    set_logs_aside(folder)
    point_latest(folder)
    return folder


def _supervised(
    config: Config, folder: RunFolder, broker: BrokerUse, what: Launch, started: float, display: Display
) -> tuple[Outcome, Snapshot, Mapping[str, int]]:
    resuming = what.resume and not (what.accept_loss and _lost_control(config, folder, broker))
    watch = Watch(config.kafka, broker.bootstrap, folder.run_id, started=started, since=started, resuming=resuming, folder=folder)
    watch.broker(f"running at {broker.bootstrap}")
    watch.start()
    try:
        if resuming:
            watch.wait_for_control(CONTROL_S)
        supervisor = Supervisor(
            learner_spec(config, folder, broker, resume=what.resume, accept_loss=what.accept_loss),
            producer_specs(config, folder, broker),
            learner_again=learner_spec(config, folder, broker, resume=True),
            watch=watch,
            display=display,
            broker=BrokerCare(broker, config.kafka, watch.topics),
            saved=lambda: checkpoint.latest(folder.path / "checkpoints") is not None,
            restart=config.launch.restart,
            start_timeout_s=config.launch.learner_start_timeout_s,
            stop_timeout_s=config.launch.stop_timeout_s,
            outage_timeout_s=config.kafka.outage_timeout_s,
            cwd=Path.cwd(),
        )
        outcome = supervisor.supervise()
        last = supervisor.snapshot()
        display.show(last)
        return outcome, last, supervisor.restarts
    finally:
        watch.close()


def _lost_control(config: Config, folder: RunFolder, broker: BrokerUse) -> bool:
    """Whether the run has no control topic any more: the learner, which accepts that, makes it anew."""
    topic = Topics(folder.run_id).control
    return topic not in describe(make_admin(config.kafka, broker.bootstrap, "weir.launch"), [topic], Deadline(CONTROL_S))


def _blamed_log(outcome: Outcome, folder: RunFolder, broker: BrokerUse) -> Path | None:
    if outcome.blame is None:
        return None
    if outcome.blame == BROKER:
        return broker.log
    return folder.logs / f"{outcome.blame}.log"


def environment(broker: BrokerUse, threads: int | None = None) -> dict[str, str]:
    """Environment of the run's processes."""
    env = {**os.environ, ENVIRONMENT: broker.bootstrap, "PYTHONUNBUFFERED": "1"}
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def learner_spec(config: Config, folder: RunFolder, broker: BrokerUse, *, resume: bool, accept_loss: bool = False) -> ChildSpec:
    """The learner under torchrun, which meets on loopback at a port of its own choice."""
    nproc = config.learner.nproc
    torchrun = ["-m", "launch.processes.torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(nproc)]
    options = [*(["--resume"] if resume else []), *(["--accept-loss"] if accept_loss else [])]
    command = [sys.executable, *torchrun, "-m", "learner", "--config", str(folder.config), *options]
    threads = config.learner.threads
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        # Learner and producers work at the same time: more threads than cores make all of them slow.
        threads = max(1, (os.cpu_count() or 1) // (nproc + config.producer.count))
    return _spec(LEARNER, command, environment(broker, threads), config, folder, broker)


def producer_specs(config: Config, folder: RunFolder, broker: BrokerUse) -> list[ChildSpec]:
    """All producers of this machine. Their threads are the engine's own matter."""
    names = [f"producer-{index}" for index in range(config.producer.count)]
    command = [sys.executable, "-m", "producer", "--config", str(folder.config), "--name"]
    return [_spec(name, [*command, name], environment(broker), config, folder, broker) for name in names]


def _spec(
    name: str, command: Sequence[str], env: Mapping[str, str], config: Config, folder: RunFolder, broker: BrokerUse
) -> ChildSpec:
    keep_open = () if broker.lock is None else (broker.lock,)
    return ChildSpec(name, command, env, (folder.logs / f"{name}.log").resolve(), config.launch.stop_timeout_s, keep_open)
