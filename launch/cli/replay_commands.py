"""`weir replay`, `weir dump`, `weir load`: training steps again, and part of a run as a folder."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from launch.cli.session import OverridesArgument, RunOption, choose_run, note
from schemas.config.file import load_config
from schemas.errors import ConfigError, Problem

_STEPS = re.compile(r"(\d{1,8})(?:\.\.(\d{1,8}))?", re.ASCII)


def replay(
    step: Annotated[int | None, typer.Option("--step", help="The version to train again.", min=0, show_default=False)] = None,
    to: Annotated[
        int | None, typer.Option("--to", help="The last version to train again; --step by default.", min=0, show_default=False)
    ] = None,
    run: RunOption = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="A dump to replay from, instead of a run.", show_default=False)
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="KEY", help="Show one group, such as v00000012/s0031, token by token.", show_default=False
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="key=value",
            help="Train with a key changed, and show what comes out differently.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train steps again from the log, and compare them with what was recorded.

    Training starts at the nearest checkpoint and prints one line per step. Exit code 0: everything is as recorded; 1: something
    differs, or is missing; 2: wrong input. Nothing is written to the run. A checkpoint holds pickled Python objects: replay only
    dumps from people whom you trust.
    """
    from launch.archive.replay import run_replay
    from launch.processes.broker import use_broker
    from learner.dump.index import CONFIG, read_index
    from learner.replay.plan import ReplayRequest, plan_replay

    if run is not None and from_ is not None:
        raise ConfigError([Problem("--from", str(from_), "a dump is of one run", "give either --run or --from")])
    if from_ is not None:
        read_index(from_)  # refuses a run's own folder, which cannot be replayed without its broker
    folder = from_ if from_ is not None else choose_run(run).on_this_machine()[0].path
    request = ReplayRequest(folder, step, to, group, sets or [])
    plan = plan_replay(request)  # wrong input is reported before anything is started
    load_config(folder / CONFIG, request.overrides)  # also in sections that the learner does not read
    if plan.index is not None:
        code = run_replay(request, plan, None, typer.echo, note)
    else:
        with use_broker(plan.config.kafka, note) as broker:
            code = run_replay(request, plan, broker.bootstrap, typer.echo, note, broker.keep_open)
    if code:
        raise typer.Exit(code)


def dump(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that does not exist yet.")],
    steps: Annotated[str, typer.Option("--steps", metavar="A..B", help="The versions to write, such as 10..20.")],
    run: RunOption = None,
) -> None:
    """Write steps of a run to a folder that needs no broker: topics, checkpoint, config, model.

    weir replay --from and weir load read it.
    """
    from launch.archive.dump import make_dump, plan_dump
    from launch.processes.broker import use_broker

    match = _STEPS.fullmatch(steps)
    wanted = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not wanted:
        raise ConfigError([Problem("--steps", steps, "not a range of versions", "write 10..20, or 10")])
    run_folder, config = choose_run(run).on_this_machine()
    plan = plan_dump(run_folder, config, wanted, steps, out)
    with use_broker(config.kafka, note) as broker, closing(plan.open_log(broker.bootstrap)) as log:
        index = make_dump(plan, log)
    size = sum(found.bytes for found in index.files.values()) / (1 << 20)
    records = sum(topic.records for topic in index.topics.values())
    typer.echo(
        f"{out}: steps {index.checkpoint} to {index.last} from checkpoint {index.checkpoint}, {records} records, {size:.1f} MiB"
    )


def load(
    folder: Annotated[Path, typer.Argument(metavar="DUMP", help="A folder that weir dump has written.")],
    overrides: OverridesArgument = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Id of the run that it becomes; by default, that of the dumped run.")
    ] = None,
) -> None:
    """Make a run from a dump: its topics on the broker, its folder under runs/.

    The run can be shown, replayed and forked from. A checkpoint holds pickled Python objects: load only dumps from people whom
    you trust.
    """
    from launch.archive.load import BrokerTarget, load_dump, plan_load
    from launch.processes.broker import use_broker

    plan = plan_load(folder, run, overrides or [])
    with use_broker(plan.config.kafka, note) as broker:
        load_dump(plan, BrokerTarget(plan.config.kafka, broker.bootstrap, str(plan.config.run.id)))
    typer.echo(f"{plan.config.folder}: steps {plan.index.checkpoint} to {plan.index.last}")
