"""What commands share: which run, its config, a broker for as long as it is needed, its topics."""

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
from broker_config.topics import RUN_ID, SINGLE, VERSIONED, TopicName, Topics, parse
from launch.folders import RunFolder, find
from launch.observe.watch import Watch
from launch.processes.broker import use_broker
from schemas.config.config import Config
from schemas.config.dispatch import DispatchConfig
from schemas.config.file import load
from schemas.config.kafka import KafkaConfig
from schemas.errors import ConfigError, DeadlineExceeded, Problem
from schemas.identity import LATEST

RunOption = Annotated[str | None, typer.Option("--run", help="Run id or folder; the latest by default.", show_default=False)]
LOOK_BACK_S = 30.0  # producers that were silent for longer are not there


@dataclass(frozen=True, slots=True)
class Chosen:
    """The run that a command is about. `config` and `folder` are None for a run that left no folder on this machine."""

    run_id: str
    folder: RunFolder | None
    config: Config | None

    @property
    def kafka(self) -> KafkaConfig:
        return self.config.kafka if self.config is not None else KafkaConfig()

    @property
    def dispatch(self) -> DispatchConfig:
        return self.config.dispatch if self.config is not None else DispatchConfig()


@dataclass(frozen=True, slots=True)
class Watched:
    """A run, its broker, and what its topics tell."""

    chosen: Chosen
    bootstrap: str
    watch: Watch


def choose(run: str | None, topics: Sequence[str] = ()) -> Chosen:
    """The run named by `--run`, or by a full topic name, or the latest.

    Raises:
        ConfigError: nothing names one.
    """
    named = run or next((parsed.run_id for parsed in map(parse, topics) if parsed is not None), None)
    try:
        folder = find(named)
    except ConfigError:
        if named is None or named == LATEST or not RUN_ID.fullmatch(named):
            raise
        return Chosen(named, None, None)
    config = load(folder.config)
    return Chosen(config.run.id or folder.run_id, folder, config)


@contextmanager
def connected(kafka: KafkaConfig, timeout_s: float = 20.0) -> Iterator[tuple[str, AdminClient, Deadline]]:
    """(bootstrap, admin client, deadline) of the broker; a local one that had to be started is stopped at the end."""
    with use_broker(kafka, note) as broker:
        yield broker.bootstrap, make_admin(kafka, broker.bootstrap, "weir.cli"), Deadline(timeout_s)


@contextmanager
def watched(run: str | None, timeout_s: float, hint: str = "") -> Iterator[Watched]:
    """A run's topics, read to where they end and followed from there. `hint`: what gives reading more time.

    Raises:
        ConfigError: there is no such run, here or at its broker.
        DeadlineExceeded: the topics were not read in `timeout_s`.
    """
    chosen = choose(run)
    with connected(chosen.kafka) as (bootstrap, admin, deadline):
        if not run_topics(admin, chosen.run_id, deadline):
            raise no_topics(chosen)
        watch = Watch(chosen.kafka, bootstrap, chosen.run_id, folder=chosen.folder, since=time.time() - LOOK_BACK_S)
        watch.broker(f"running at {bootstrap}")
        watch.start()
        try:
            if not watch.caught_up.wait(timeout_s):
                raise DeadlineExceeded(f"waited {timeout_s:g} s for the run's topics to be read; is the broker up?{hint}")
            yield Watched(chosen, bootstrap, watch)
        finally:
            watch.close()


def no_topics(chosen: Chosen) -> ConfigError:
    return ConfigError([Problem("run", chosen.run_id, "the broker has no topics of it", "weir topics --all lists the runs")])


def note(line: str) -> None:
    """A remark to the person, apart from the output."""
    typer.echo(line, err=True)


def resolve(words: Sequence[str], run_id: str, existing: Sequence[str], version: int | None) -> list[str]:
    """Full names of the topics that are meant: short (`control`, `trajectories`), with a version, or full.

    `trajectories` and `validation` without a version are all of the run, in order.

    Raises:
        ConfigError: a word that is no topic, or one that the run does not have.
    """
    names: list[str] = []
    for word in words or SINGLE:
        names += _matching(word, run_id, existing, version)
    missing = [name for name in names if name not in existing]
    if missing:
        fix = "weir topics lists them" if existing else "is it the right broker? the run has no topics there"
        raise ConfigError([Problem("TOPIC", name, "the broker does not have it", fix) for name in missing])
    return names


def _matching(word: str, run_id: str, existing: Sequence[str], version: int | None) -> list[str]:
    if parse(word) is not None:
        return [word]
    topics = Topics(run_id)
    kind, _, rest = word.partition(".")
    if kind in VERSIONED:
        try:
            wanted = int(rest.removeprefix("v")) if rest else version
        except ValueError:
            raise ConfigError([Problem("TOPIC", word, "not of the form trajectories.v00000012", "use --version 12")]) from None
        if wanted is not None:
            return [topics.trajectories(wanted) if kind == "trajectories" else topics.validation(wanted)]
        return sorted(name for name in existing if _is(parse(name), run_id, kind))
    if word in SINGLE:
        return [f"{run_id}.{word}"]
    known = ", ".join((*SINGLE, *VERSIONED))
    raise ConfigError([Problem("TOPIC", word, "no topic of a run", f"use a full name or one of {known}")])


def _is(name: TopicName | None, run_id: str, kind: str) -> bool:
    return name is not None and name.run_id == run_id and name.kind == kind


def bounds_of(admin: AdminClient, names: Sequence[str], deadline: Deadline) -> dict[tuple[str, int], tuple[int, int]]:
    """First and next offset of every partition of topics."""
    described = describe(admin, names, deadline)
    partitions = [(name, index) for name in names for index in range(described[name].partitions)]
    return {where: (found.start, found.end) for where, found in log_bounds(admin, partitions, deadline).items()}


def run_topics(admin: AdminClient, run_id: str, deadline: Deadline) -> list[str]:
    return topics_of_run(admin, run_id, deadline)
