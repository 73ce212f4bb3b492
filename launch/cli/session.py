"""What the commands share: which run, its config, a broker for as long as it is needed, its topics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from confluent_kafka.admin import AdminClient

from broker_config.clients.admin import describe, log_bounds, topics_of_run
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline
from broker_config.topics import RUN_ID, parse
from launch.folders import RunFolder, find_run_folder
from launch.observe.watch import RunWatch
from launch.processes.broker import use_broker
from schemas.config.config import Config
from schemas.config.dispatch import DispatchConfig
from schemas.config.file import load_config
from schemas.config.kafka import KafkaConfig
from schemas.errors import ConfigError, DeadlineExceeded, Problem
from schemas.identity import LATEST

RunOption = Annotated[str | None, typer.Option("--run", help="Run id or folder; the latest by default.", show_default=False)]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="key=value...", help="Keys of the config to override.", show_default=False)
]
LOOK_BACK_S = 30.0  # producers that were silent for longer are gone


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """The run that a command is about. `config` and `folder` are None for a run without a folder on this machine."""

    run_id: str
    folder: RunFolder | None
    config: Config | None

    @property
    def kafka(self) -> KafkaConfig:
        return self.config.kafka if self.config is not None else KafkaConfig()

    @property
    def dispatch(self) -> DispatchConfig:
        return self.config.dispatch if self.config is not None else DispatchConfig()

    def on_this_machine(self) -> tuple[RunFolder, Config]:
        """
        Raises:
            ConfigError: the run has no folder here.
        """
        if self.folder is None or self.config is None:
            why = "its folder is not on this machine"
            raise ConfigError([Problem("run", self.run_id, why, "give the run's folder with --run")])
        return self.folder, self.config


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run, its broker, and what its topics show."""

    chosen: ChosenRun
    bootstrap: str
    watch: RunWatch


def choose_run(run: str | None, topics: Sequence[str] = ()) -> ChosenRun:
    """The run that `--run` names, or else a full topic name; or else the latest.

    Raises:
        ConfigError: nothing names one.
    """
    named = run or next((parsed.run_id for parsed in map(parse, topics) if parsed is not None), None)
    try:
        folder = find_run_folder(named)
    except ConfigError:
        if named is None or named == LATEST or not RUN_ID.fullmatch(named):
            raise
        return ChosenRun(named, None, None)
    config = load_config(folder.config)
    return ChosenRun(config.run.id or folder.run_id, folder, config)


@contextmanager
def connected(kafka: KafkaConfig, timeout_s: float = 20.0) -> Iterator[tuple[str, AdminClient, Deadline]]:
    """(bootstrap, admin client, deadline) of the broker; a local broker that had to be started is stopped at the end."""
    with use_broker(kafka, note) as broker:
        yield broker.bootstrap, make_admin(kafka, broker.bootstrap, "weir.cli"), Deadline(timeout_s)


@contextmanager
def watched_run(run: str | None, timeout_s: float, hint: str = "") -> Iterator[WatchedRun]:
    """A run's topics, read to their ends and followed from there. `hint`: the option that allows more time for reading.

    Raises:
        ConfigError: there is no such run, here or at its broker.
        DeadlineExceeded: the topics were not read in `timeout_s`.
    """
    chosen = choose_run(run)
    with connected(chosen.kafka) as (bootstrap, admin, deadline):
        if not topics_of_run(admin, chosen.run_id, deadline):
            raise no_topics(chosen)
        watch = RunWatch(chosen.kafka, bootstrap, chosen.run_id, folder=chosen.folder, since=time.time() - LOOK_BACK_S)
        watch.broker(f"running at {bootstrap}")
        watch.start()
        try:
            if not watch.caught_up.wait(timeout_s):
                raise DeadlineExceeded(f"waited {timeout_s:g} s for the run's topics to be read; is the broker up?{hint}")
            yield WatchedRun(chosen, bootstrap, watch)
        finally:
            watch.close()


def no_topics(chosen: ChosenRun) -> ConfigError:
    return ConfigError([Problem("run", chosen.run_id, "the broker has no topics of it", "weir topics --all lists the runs")])


def note(line: str) -> None:
    """A remark for the person, apart from the output."""
    typer.echo(line, err=True)


def bounds_of(admin: AdminClient, names: Sequence[str], deadline: Deadline) -> dict[tuple[str, int], tuple[int, int]]:
    """First and next offset of every partition of some topics."""
    described = describe(admin, names, deadline)
    partitions = [(name, index) for name in names for index in range(described[name].partitions)]
    return {where: (found.start, found.end) for where, found in log_bounds(admin, partitions, deadline).items()}
