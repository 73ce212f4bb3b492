"""`python -m broker_config`: the local broker and what it needs, for people and for `launch/setup.sh`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, NoReturn

import typer

from broker_config.deadline import Deadline
from broker_config.local.broker import BrokerStatus, LocalBroker
from broker_config.local.cds import make_archive
from broker_config.local.installation import install
from broker_config.local.tools import write_wrappers
from schemas.errors import ConfigError, WeirError

START_S = 120.0
STOP_S = 60.0

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The local Kafka broker.")


def say(line: str) -> None:
    typer.echo(line, err=True)


@app.command()
def fetch() -> None:
    """Download Kafka's jars, make the class archive and the tool scripts. Skips what is done already."""
    installation = install(say)
    make_archive(installation, say)
    write_wrappers(installation)


@app.command()
def start(port: Annotated[int | None, typer.Option(help="Port to listen on; a free one by default.")] = None) -> None:
    """Start the broker unless it runs; prints host:port."""
    bootstrap = LocalBroker(port=port, say=say).start(Deadline(START_S))
    write_wrappers(install(say))
    typer.echo(bootstrap)


@app.command()
def stop() -> None:
    """Stop the broker; its data stays."""
    typer.echo("stopped" if LocalBroker().stop(Deadline(STOP_S)) else "was not running")


@app.command()
def status() -> None:
    """Print what runs, as JSON. Exit code 0 if a broker serves, else 1."""
    found = LocalBroker().status()
    typer.echo(json.dumps(as_json(found)))
    if found.state != "running":
        raise typer.Exit(1)


@app.command()
def wrappers() -> None:
    """Write the scripts of Kafka's tools; prints their folder."""
    typer.echo(str(write_wrappers(install(say))))


def as_json(status: BrokerStatus) -> dict[str, object]:
    """The status for programs."""
    return {
        "state": status.state,
        "bootstrap_servers": status.bootstrap,
        "pid": status.pid,
        "folder": str(status.root),
        "log": str(status.log),
    }


def main() -> NoReturn:
    """Exit code 0: done, 1: failed, 2: wrong input. An expected failure is printed without a traceback."""
    try:
        app()
    except ConfigError as error:
        say(str(error))
        sys.exit(2)
    except WeirError as error:
        say(str(error))
        sys.exit(1)
    sys.exit(0)
