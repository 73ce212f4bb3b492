"""`weir stop` and `weir drain`: requests to the learner of a running run, written to the `status` topic."""

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
from launch.cli.operator_requests import (
    AlreadyAsked,
    DrainRequest,
    Fulfilled,
    OperatorRequest,
    PendingRequest,
    StopRequest,
    WriteRequest,
)
from launch.cli.session import RunOption, WatchedRun, note, watched_run
from launch.folders import name_for_commands
from launch.observe.run_view import RunSnapshot
from schemas.config.kafka import KafkaConfig
from schemas.records.status import Operator

READ_S = 20.0
WRITE_S = 20.0
TURN_S = 0.1
SILENCE_S = 15.0  # of the dispatcher, or SILENCE_BEATS of its beats, whichever is longer
SILENCE_BEATS = 5
PROGRESS_S = 5.0

WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done, or only ask for it.")]


def stop(
    run: RunOption = None,
    wait: WaitOption = True,
    timeout_s: Annotated[float, typer.Option(help="Seconds to wait.", min=1)] = 60.0,
) -> None:
    """End a run in order, so that it can be resumed.

    The learner ends after the step that it is training, and the producers end with it. Exit code 0: the run has stopped, now or
    before; 1: no learner of it is running.
    """
    with watched_run(run, READ_S) as found:
        _carry_out(StopRequest(), found, wait, timeout_s)


def drain(
    producer: Annotated[str, typer.Argument(metavar="PRODUCER", help="Name of a member, as weir status shows it.")],
    run: RunOption = None,
    wait: WaitOption = True,
    timeout_s: Annotated[float, typer.Option(help="Seconds to wait.", min=1)] = 600.0,
) -> None:
    """Let a producer finish what it has in hand and leave; it gets no new work.

    Exit code 0: it has left (with --no-wait: it was asked to); 1: no learner of the run is running.
    """
    with watched_run(run, READ_S) as found:
        _carry_out(DrainRequest(producer), found, wait, timeout_s)


def _carry_out(request: OperatorRequest, found: WatchedRun, wait: bool, timeout_s: float) -> None:
    """
    Raises:
        ConfigError: the request does not fit this run.
        WeirError: no learner carries it out, or not in time.
    """
    folder, dispatch = found.chosen.folder, found.chosen.dispatch
    resume = name_for_commands(folder) if folder is not None else found.chosen.run_id
    silence_s = max(SILENCE_S, SILENCE_BEATS * dispatch.beat_s)
    pending = PendingRequest(request, resume, silence_s, dispatch.lease_beats, time.monotonic())
    deadline, noted = Deadline(timeout_s), time.monotonic()
    while True:
        snapshot = found.watch.snapshot()
        now = time.monotonic()
        match pending.see(snapshot, now):
            case Fulfilled(message):
                typer.echo(message)
                if snapshot.stop is not None and snapshot.stop.resumable and not snapshot.stop.finished:
                    typer.echo(f"resume it with: launch/run_cluster.sh --resume {resume}")
                return
            case WriteRequest():
                _write(request, found, str(snapshot.uuid))
                typer.echo(f"asked the learner of run {snapshot.run_id} to {request.action} {request.producer or ''}".rstrip())
                if request.producer is not None and not _others(snapshot, request.producer):
                    note("no producer will be left; the learner will wait dispatch.no_producer_timeout_s for another one")
            case AlreadyAsked():
                typer.echo(f"the learner of run {snapshot.run_id} was already asked to {request.action} {request.producer}")
            case None:
                pass
        if pending.written and not wait:
            return
        deadline.check(f"{pending.outlook(snapshot)} (--timeout-s)")
        if now - noted >= PROGRESS_S:
            noted = now
            note(f"waiting for {request.progress(snapshot)}")
        time.sleep(min(TURN_S, deadline.remaining()))


def _others(snapshot: RunSnapshot, producer: str) -> bool:
    """Whether anybody else gets work."""
    return any(row.member and row.name != producer and row.state != "draining" for row in snapshot.producers)


def _write(request: OperatorRequest, found: WatchedRun, uuid: str) -> None:
    """
    Raises:
        BrokerError, DeadlineExceeded: the broker did not take the record.
    """
    kafka: KafkaConfig = found.chosen.kafka
    record = Operator(uuid=uuid, action=request.action, producer=request.producer, by=_person())
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
