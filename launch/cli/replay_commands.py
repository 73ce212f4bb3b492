"""`weir replay`, `weir dump`, `weir load`: trained steps again, and part of a run as a folder."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from launch.cli.session import Chosen, RunOption, choose, note
from schemas.config.file import load as load_config
from schemas.errors import ConfigError, Problem

_STEPS = re.compile(r"(\d{1,8})(?:\.\.(\d{1,8}))?", re.ASCII)


def replay(
    step: Annotated[int | None, typer.Option("--step", help="Version to train again.", min=0, show_default=False)] = None,
    to: Annotated[int | None, typer.Option("--to", help="Last one; --step alone by default.", min=0, show_default=False)] = None,
    run: RunOption = None,
    from_: Annotated[Path | None, typer.Option("--from", help="A dump, instead of a run.", show_default=False)] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="KEY", help="Show one group token by token, such as v00000012/s0031.", show_default=False
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="key=value", help="Train with another config, and show what changes.", show_default=False),
    ] = None,
) -> None:
    """Train steps again from the log, from the nearest checkpoint on, and compare with what was recorded.

    One line a step. Exit code 0: all is as recorded; 1: something differs, or is not there; 2: wrong input. Nothing of the run is
    written to. A checkpoint holds pickled Python objects: give no dump of people whom you do not trust.
    """
    from launch.archive.replay import replay as carry_out
    from launch.processes.broker import use_broker
    from learner.replay.plan import Asked, make_job
    from learner.replay.sources.dump import CONFIG, read_index

    if run is not None and from_ is not None:
        raise ConfigError([Problem("--from", str(from_), "a dump holds its run", "give --run or --from")])
    if from_ is not None:
        read_index(from_)  # a run's own folder would do without its broker
    folder = from_ if from_ is not None else _folder(choose(run))
    asked = Asked(folder, step, to, group, sets or [])
    job = make_job(asked)  # wrong input is told before anything is started
    load_config(folder / CONFIG, asked.sets)  # also in sections that the learner does not read
    if job.index is not None:
        code = carry_out(asked, job, None, typer.echo, note)
    else:
        with use_broker(job.config.kafka, note) as broker:
            keep_open = () if broker.lock is None else (broker.lock,)
            code = carry_out(asked, job, broker.bootstrap, typer.echo, note, keep_open)
    if code:
        raise typer.Exit(code)


def dump(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that does not exist yet.")],
    steps: Annotated[str, typer.Option("--steps", metavar="A..B", help="Versions to write, such as 10..20.")],
    run: RunOption = None,
) -> None:
    """Write steps of a run to one folder: topics, checkpoint, config, model. weir replay --from reads it without a broker."""
    from launch.archive.dump import make_dump, plan_dump
    from launch.processes.broker import use_broker

    match = _STEPS.fullmatch(steps)
    wanted = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not wanted:
        raise ConfigError([Problem("--steps", steps, "no range of versions", "write 10..20, or 10")])
    chosen = choose(run)
    _folder(chosen)
    assert chosen.folder is not None and chosen.config is not None
    dumping = plan_dump(chosen.folder, chosen.config, wanted, steps, out)
    with use_broker(chosen.config.kafka, note) as broker, closing(dumping.open_log(broker.bootstrap)) as log:
        index = make_dump(dumping, log)
    size = sum(found.bytes for found in index.files.values()) / (1 << 20)
    records = sum(topic.records for topic in index.topics.values())
    typer.echo(
        f"{out}: steps {index.checkpoint} to {index.last} from checkpoint {index.checkpoint}, {records} records, {size:.1f} MiB"
    )


def load(
    folder: Annotated[Path, typer.Argument(metavar="DUMP", help="A folder that weir dump wrote.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="key=value...", help="Overrides.", show_default=False)] = None,
    run: Annotated[str | None, typer.Option("--run", help="Id of the run that it becomes; its own by default.")] = None,
) -> None:
    """Put a dump back: its topics on the broker, its folder under runs/. The run can be shown, replayed and forked from.

    A checkpoint holds pickled Python objects: load no dump of people whom you do not trust.
    """
    from launch.archive.load import BrokerTarget, plan_load
    from launch.archive.load import load as carry_out
    from launch.processes.broker import use_broker

    loading = plan_load(folder, run, overrides or [])
    with use_broker(loading.config.kafka, note) as broker:
        carry_out(loading, BrokerTarget(loading.config.kafka, broker.bootstrap, str(loading.config.run.id)))
    typer.echo(f"{loading.config.folder}: steps {loading.index.checkpoint} to {loading.index.last}")


def _folder(chosen: Chosen) -> Path:
    if chosen.folder is None:
        why = "its folder is not on this machine"
        raise ConfigError([Problem("run", chosen.run_id, why, "give the run's folder with --run")])
    return chosen.folder.path
