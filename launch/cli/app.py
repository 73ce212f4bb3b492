"""`weir`: the command with its subcommands, its exit codes and its errors.

A command that needs the local broker starts it and stops it again, unless it was running already.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from broker_config import logs
from broker_config.clients.admin import topic_names, topics_of_run
from broker_config.clients.reader import Record
from broker_config.locate import configured_servers
from broker_config.topics import parse
from launch.cli import broker_commands, operator_commands, replay_commands
from launch.cli.describe import TextOf, record_json, record_lines
from launch.cli.session import (
    ChosenRun,
    OverridesArgument,
    RunOption,
    bounds_of,
    choose_run,
    connected,
    no_topics,
    note,
    watched_run,
)
from launch.cli.topic_names import resolve_topics
from launch.config.model_facts import looks_like_hub_name
from launch.exit_codes import FAILED, FINISHED, INTERRUPTED, WRONG_INPUT
from schemas.config.kafka import KafkaConfig
from schemas.disk import explain
from schemas.errors import ConfigError, Problem, WeirError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Look at a run, its topics and its broker; stop, replay or archive it. Exit codes: 0 done, 1 failed, 2 wrong input, "
    "130 interrupted.",
)
app.add_typer(broker_commands.app, name="broker")


@app.command()
def show(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC...",
            help="Full names, or control, status, requests, metrics, quarantine, trajectories, validation "
            "(trajectories.v00000012 for one version). By default, all but the last two.",
            show_default=False,
        ),
    ] = None,
    run: RunOption = None,
    version: Annotated[int | None, typer.Option(help="Target version of trajectories and validation.", min=0)] = None,
    key: Annotated[str | None, typer.Option(help="Only records whose key contains this text.")] = None,
    limit: Annotated[int | None, typer.Option(help="Print at most this many records.", min=1)] = None,
    text: Annotated[bool, typer.Option("--text", help="Also print prompts, completions and rewards.")] = False,
    as_json_: Annotated[bool, typer.Option("--json", help="Print one JSON object per record, with all token ids.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with records as they come, until Ctrl-C.")] = False,
) -> None:
    """Print records in words, one line each."""
    from launch.cli.show import records

    words = topics or []
    chosen = choose_run(run, words)
    text_of = _text_of(chosen) if text else None
    with connected(chosen.kafka) as (bootstrap, admin, deadline):
        names = resolve_topics(words, chosen.run_id, topics_of_run(admin, chosen.run_id, deadline), version)
        found: Iterator[Record] = records(chosen.kafka, bootstrap, admin, names, follow=follow, deadline=deadline)
        found = islice((record for record in found if key is None or key in (record.key or "")), limit)
        heading = None
        for record in found:
            if as_json_:
                typer.echo(json.dumps(record_json(record, text_of), ensure_ascii=False))
                continue
            if record.topic != heading and len(names) > 1:
                heading = record.topic
                typer.echo(f"== {heading}")
            typer.echo("\n".join(record_lines(record, text_of)))


def _text_of(chosen: ChosenRun) -> TextOf:
    """By the run's tokenizer.

    Raises:
        ConfigError: the run's config is not on this machine, or its tokenizer is not.
    """
    if chosen.config is None:
        why = "its config.yaml, which names the tokenizer, is not on this machine"
        raise ConfigError([Problem("--text", chosen.run_id, why, "give the run's folder with --run")])
    model = chosen.config.model
    name = model.tokenizer or model.path
    if not Path(name).is_dir() and (model.build is not None or not looks_like_hub_name(name)):
        raise ConfigError([Problem("--text", name, "the tokenizer's folder is not here", "run it where the run was started")])
    from producer.data import load_tokenizer

    tokenizer = load_tokenizer(model)
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


@app.command("topics")
def topics_(
    run: RunOption = None,
    all_runs: Annotated[bool, typer.Option("--all", help="List all runs that the broker has topics of.")] = False,
) -> None:
    """List a run's topics, with the number of records in each."""
    if all_runs:
        with connected(KafkaConfig()) as (_, admin, deadline):
            counts: dict[str, int] = {}
            for name in topic_names(admin, deadline):
                parsed = parse(name)
                if parsed is not None:
                    counts[parsed.run_id] = counts.get(parsed.run_id, 0) + 1
        for run_id, count in counts.items():
            typer.echo(f"{run_id}  {count} topics")
        return
    chosen = choose_run(run)
    with connected(chosen.kafka) as (_, admin, deadline):
        names = topics_of_run(admin, chosen.run_id, deadline)
        sizes = bounds_of(admin, names, deadline)
    if not names:
        raise no_topics(chosen)
    for name in names:
        parts = [found for (topic, _), found in sizes.items() if topic == name]
        kept = sum(end - start for start, end in parts)
        cut = sum(start for start, _ in parts)
        typer.echo(f"{name}  {len(parts)} partition(s)  {kept} records" + (f"  ({cut} retired)" if cut else ""))


@app.command()
def status(
    run: RunOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until Ctrl-C.")] = False,
    as_json_: Annotated[bool, typer.Option("--json", help="Print one JSON object; with --follow, one line a second.")] = False,
    timeout_s: Annotated[float, typer.Option(help="Seconds that reading the topics may take.", min=1)] = 20.0,
) -> None:
    """Show what a run is doing, or what it did last.

    Lists the open versions and who works on their slots, the producers, the last refit rounds, what the learner waits for, and
    what it has counted since it started.
    """
    from launch.cli import run_status

    with watched_run(run, timeout_s, " (--timeout-s)") as found:
        if as_json_:
            run_status.print_json(found.watch, follow=follow)
        else:
            run_status.print_tables(found.watch, follow=follow)


app.command()(operator_commands.stop)
app.command()(operator_commands.drain)
app.command()(replay_commands.replay)
app.command()(replay_commands.dump)
app.command()(replay_commands.load)


@app.command()
def check(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A run's YAML file.")],
    overrides: OverridesArgument = None,
    broker: Annotated[bool, typer.Option("--broker", help="Also check that the configured broker would serve the run.")] = False,
) -> None:
    """Check a run's file, as launch/run_cluster.sh does before it starts anything."""
    from launch.config.check import load_checked

    checked = load_checked(config, overrides or [])
    for warning in checked.warnings:
        note(f"warning: {warning}")
    if broker:
        from broker_config.deadline import Deadline
        from broker_config.preflight import check_broker

        servers = configured_servers(checked.config.kafka)
        if servers is None:
            note("no broker is configured: the local one would be started")
        else:
            check_broker(checked.config.kafka, servers, Deadline(15))
            typer.echo(f"{servers}: ok")
    typer.echo(f"{config}: ok")


@app.command()
def export(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that does not exist yet.")],
    step: Annotated[int, typer.Option("--step", help="The version to copy.", min=0)],
    run: RunOption = None,
) -> None:
    """Copy the exported Hugging Face checkpoint of a version."""
    from launch.cli.export import copy_export

    folder, _ = choose_run(run).on_this_machine()
    typer.echo(f"{copy_export(folder, step, out)} -> {out}")


WRONG_USAGE: type[Any] = next(kind for kind in reversed(typer.BadParameter.__mro__) if hasattr(kind, "show"))
"""What the parser of the command line raises; typer has no public name for it. `show()` prints it, `exit_code` is 2."""


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Exit code 0 done, 1 failed, 2 wrong input, 130 interrupted; an expected failure is printed without a traceback."""
    logs.configure("WARNING")
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _terminated)
    try:
        code = app(prog_name="weir", standalone_mode=False)
        return code if isinstance(code, int) else FINISHED
    except typer.Exit as exit_:
        return exit_.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except WRONG_USAGE as error:
        error.show()
        return int(error.exit_code)
    except ConfigError as error:
        note("\n".join(f"error: {problem}" for problem in error.problems))
        return WRONG_INPUT
    except WeirError as error:
        note(f"error: {error}")
        return FAILED
    except BrokenPipeError:
        # `weir show ... | head`: whoever was reading has seen enough.
        sys.stderr.close()
        return FINISHED
    except OSError as error:
        note(f"error: {explain(error)}")
        return FAILED
