"""`weir stop` and `weir drain`: what a person wants of a running run, told to its learner on the `status` topic."""

from __future__ import annotations

import getpass
import os
import socket
import time
from typing import Annotated

import typer

from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from launch.cli.session import RunOption, Watched, note, watched
from launch.cli.wishes import Done, DrainWish, Errand, Known, StopWish, Wish, Write
from launch.observe.summary import name_of
from launch.observe.view import Snapshot
from schemas.config.kafka import KafkaConfig
from schemas.records.status import Operator

READ_S = 20.0
WRITE_S = 20.0
TURN_S = 0.1
SILENCE_S = 15.0  # of the dispatcher, or so many of its beats, whichever is longer
SILENCE_BEATS = 5
PROGRESS_S = 5.0

WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it has happened, or only ask for it.")]


def stop(
    run: RunOption = None,
    wait: WaitOption = True,
    timeout_s: Annotated[float, typer.Option(help="How long to wait.", min=1)] = 60.0,
) -> None:
    """End a run in order, so that it can be resumed.

    The learner ends after the step that it trains, the producers with it. Exit code 0 also if the run has stopped already; 1 if
    no learner of it runs.
    """
    with watched(run, READ_S) as found:
        _carry_out(StopWish(), found, wait, timeout_s)


def drain(
    producer: Annotated[str, typer.Argument(metavar="PRODUCER", help="A member's name, as weir status shows it.")],
    run: RunOption = None,
    wait: WaitOption = True,
    timeout_s: Annotated[float, typer.Option(help="How long to wait.", min=1)] = 600.0,
) -> None:
    """Let a producer finish what it has and leave: it gets no new work.

    Exit code 0 when it is gone (--no-wait: when it was asked); 1 if no learner of the run runs.
    """
    with watched(run, READ_S) as found:
        _carry_out(DrainWish(producer), found, wait, timeout_s)


def _carry_out(wish: Wish, found: Watched, wait: bool, timeout_s: float) -> None:
    """
    Raises:
        ConfigError: the wish cannot be one of this run.
        WeirError: no learner obeys, or not in time.
    """
    folder, dispatch = found.chosen.folder, found.chosen.dispatch
    resume = name_of(folder) if folder is not None else found.chosen.run_id
    silence_s = max(SILENCE_S, SILENCE_BEATS * dispatch.beat_s)
    errand = Errand(wish, resume, silence_s, dispatch.lease_beats, time.monotonic())
    deadline, told = Deadline(timeout_s), time.monotonic()
    while True:
        snapshot = found.watch.snapshot()
        now = time.monotonic()
        match errand.see(snapshot, now):
            case Done(said):
                typer.echo(said)
                if snapshot.stop is not None and snapshot.stop.resumable and not snapshot.stop.finished:
                    typer.echo(f"go on with it: launch/run_cluster.sh --resume {resume}")
                return
            case Write():
                _write(wish, found, str(snapshot.uuid))
                typer.echo(f"asked the learner of run {snapshot.run_id} to {wish.action} {wish.producer or ''}".rstrip())
                if wish.producer is not None and not _others(snapshot, wish.producer):
                    note("no producer is left then; the learner waits dispatch.no_producer_timeout_s for another one")
            case Known():
                typer.echo(f"the learner of run {snapshot.run_id} was asked before to {wish.action} {wish.producer}")
            case None:
                pass
        if errand.written and not wait:
            return
        deadline.check(f"{errand.pending(snapshot)} (--timeout-s)")
        if now - told >= PROGRESS_S:
            told = now
            note(f"waiting for {wish.progress(snapshot)}")
        time.sleep(min(TURN_S, deadline.remaining()))


def _others(snapshot: Snapshot, producer: str) -> bool:
    """Whether anybody else gets work."""
    return any(row.member and row.name != producer and row.state != "draining" for row in snapshot.producers)


def _write(wish: Wish, found: Watched, uuid: str) -> None:
    """
    Raises:
        BrokerError, DeadlineExceeded: the broker did not take the record.
    """
    kafka: KafkaConfig = found.chosen.kafka
    record = Operator(uuid=uuid, action=wish.action, producer=wish.producer, by=_person())
    writer = LogWriter(kafka, found.bootstrap, "weir.operator", failed=lambda error: note(f"error: {error}"))
    try:
        written = writer.write(Topics(found.chosen.run_id).status, record.to_bytes(), key="operator")
        writer.flush(Deadline(WRITE_S))
        written.result(WRITE_S)
    finally:
        writer.close(Deadline(WRITE_S))


def _person() -> str:
    """`user@host`; a number for a user without a name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
