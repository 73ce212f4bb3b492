"""`weir broker`: the local broker, kept running for as long as a person wants it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.local.cli import as_json
from broker_config.local.installation import install
from broker_config.local.tools import write_wrappers
from launch.processes.broker import START_S, STOP_S, in_use, keep
from schemas.errors import WeirError

app = typer.Typer(no_args_is_help=True, help="The local Kafka broker. Its data is kept when it is stopped.")


def _say(line: str) -> None:
    typer.echo(line, err=True)


@app.command()
def start(port: Annotated[int | None, typer.Option(help="Port to listen on; a free one by default.")] = None) -> None:
    """Start the broker unless it is running, leave it running, and print host:port."""
    broker = LocalBroker(port=port, say=_say)
    bootstrap = broker.start(Deadline(START_S))
    keep(broker)
    write_wrappers(install(_say))
    typer.echo(bootstrap)


@app.command()
def stop(force: Annotated[bool, typer.Option("--force", help="Even if a run or another command is using it.")] = False) -> None:
    """Stop the broker."""
    broker = LocalBroker()
    if not force and broker.pid is not None and in_use(broker):
        raise WeirError("a run or another command is using the broker: end it first, or add --force")
    typer.echo("stopped" if broker.stop(Deadline(STOP_S)) else "was not running")


@app.command()
def status(as_json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show whether the broker is running. Exit code 0 if it serves, else 1."""
    found = LocalBroker().status()
    if as_json_:
        typer.echo(json.dumps(as_json(found)))
    else:
        where = f" at {found.bootstrap} (pid {found.pid})" if found.pid is not None else ""
        typer.echo(f"{found.state}{where}; folder {found.root}, log {found.log}")
    if found.state != "running":
        raise typer.Exit(1)
