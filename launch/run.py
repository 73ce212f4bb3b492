"""One run on this machine, from its file to its summary: broker, model, folder, processes, live view.

Order: whatever can fail on wrong input comes first. The broker starts while a missing model is made. Then the learner and the
producers start together: their imports take longest, and nothing in them waits for another process's start.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from broker_config import logs
from broker_config.clients.admin import describe
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from broker_config.trial import check_topics
from launch.config.check import CheckedConfig, check_raw
from launch.folders import RunFolder, make_run_folder, mint_id, point_latest, set_logs_aside
from launch.observe.display import Display, make_display
from launch.observe.formats import short_path
from launch.observe.run_view import RunSnapshot
from launch.observe.summary import summarize_run
from launch.observe.watch import RunWatch
from launch.outcome import BROKER, RunOutcome
from launch.processes.broker import PREFLIGHT_S, BrokerUse, Keeper, use_broker
from launch.processes.model_build import ModelBuild
from launch.processes.specs import Placement, learner_spec, producer_specs
from launch.supervise.broker_monitor import BrokerMonitor
from launch.supervise.supervisor import Supervisor
from learner.checkpoint import folders
from schemas.config.config import Config

CONTROL_S = 30.0
KEEPER_EXTRA_S = 60.0


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What to run. `resume`: in the folder that the run has already; `accept_loss`: even if its broker has lost data."""

    checked: CheckedConfig
    resume: bool = False
    accept_loss: bool = False


def launch_run(options: LaunchOptions, console: Console) -> int:
    """Run it to its end; returns the exit code.

    Raises:
        ConfigError, WeirError: nothing, or not all, could be started; what was started is ended.
        KeyboardInterrupt: likewise, before the processes of the run were started.
    """
    started = time.time()
    config = options.checked.config
    if not options.resume:
        config = config.with_id(config.run.id or mint_id(config.run.name, started))
    display = make_display(console)
    try:
        for warning in options.checked.warnings:
            display.say(f"warning: {warning}")
        display.say(f"run {config.run.id}: {short_path(config.folder)}")
        patience_s = 2 * config.launch.stop_timeout_s + KEEPER_EXTRA_S
        with Keeper(patience_s) as keeper, ModelBuild(config.model) as model, use_broker(config.kafka, display.say) as broker:
            keeper.guard(broker)
            if not options.resume:
                check_topics(config.kafka, broker.bootstrap, str(config.run.id), Deadline(PREFLIGHT_S))
            if model.wait(display.say):
                # The rules that need the model's files, now that they are there.
                check_raw({name: section.model_dump() for name, section in config.sections.items()}, resuming=True)
            folder = _folder(config, options.resume)
            # From here on the terminal is the display's.
            logs.configure("INFO", str(folder.logs / "supervisor.log"))
            outcome, last, restarts = _supervise(config, folder, broker, options, started, display)
    finally:
        display.close()
    blamed = _blamed_log(outcome, folder, broker)
    lines = summarize_run(outcome, last, folder, tensorboard=config.logger.tensorboard, blamed_log=blamed, restarts=restarts)
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    return outcome.code


def _folder(config: Config, resume: bool) -> RunFolder:
    if not resume:
        return make_run_folder(config)
    folder = RunFolder(config.folder)
    folder.config.write_text(config.to_yaml(), encoding="utf-8")
    set_logs_aside(folder)
    point_latest(folder)
    return folder


def _supervise(
    config: Config, folder: RunFolder, broker: BrokerUse, options: LaunchOptions, started: float, display: Display
) -> tuple[RunOutcome, RunSnapshot, Mapping[str, int]]:
    resuming = options.resume and not (options.accept_loss and _lost_control(config, folder, broker))
    watch = RunWatch(
        config.kafka, broker.bootstrap, folder.run_id, started=started, since=started, resuming=resuming, folder=folder
    )
    watch.broker(f"running at {broker.bootstrap}")
    watch.start()
    here = _placement(folder, broker)
    try:
        if resuming:
            watch.wait_for_control(CONTROL_S)
        supervisor = Supervisor(
            learner_spec(config, here, resume=options.resume, accept_loss=options.accept_loss),
            producer_specs(config, here),
            learner_again=learner_spec(config, here, resume=True),
            run=watch,
            display=display,
            broker=BrokerMonitor(broker, config.kafka, watch.topics),
            saved=lambda: folders.latest(folder.path / "checkpoints") is not None,
            restart=config.launch.restart,
            start_timeout_s=config.launch.learner_start_timeout_s,
            stop_timeout_s=config.launch.stop_timeout_s,
            outage_timeout_s=config.kafka.outage_timeout_s,
            cwd=Path.cwd(),
            keep_open=broker.keep_open,
        )
        outcome = supervisor.supervise()
        last = supervisor.snapshot()
        display.show(last)
        return outcome, last, supervisor.restarts
    finally:
        watch.close()


def _placement(folder: RunFolder, broker: BrokerUse) -> Placement:
    """This machine."""
    return Placement(
        python=sys.executable,
        environ=os.environ,
        cores=os.cpu_count() or 1,
        bootstrap=broker.bootstrap,
        config_file=folder.config,
        logs=folder.logs.resolve(),
    )


def _lost_control(config: Config, folder: RunFolder, broker: BrokerUse) -> bool:
    """Whether the run has no control topic any more: the learner, which accepts that, makes a new one."""
    topic = Topics(folder.run_id).control
    return topic not in describe(make_admin(config.kafka, broker.bootstrap, "weir.launch"), [topic], Deadline(CONTROL_S))


def _blamed_log(outcome: RunOutcome, folder: RunFolder, broker: BrokerUse) -> Path | None:
    if outcome.blame is None:
        return None
    if outcome.blame == BROKER:
        return broker.log
    return folder.logs / f"{outcome.blame}.log"
