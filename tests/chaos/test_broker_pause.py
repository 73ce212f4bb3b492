"""The broker stands still for longer than all leases and deadlines: nobody is expelled or lost for it, the run goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from tests.chaos.striking.by_hand import LEARNER, ByHand, by_hand
from tests.chaos.striking.part import Part
from tests.chaos.striking.watched_run import START_S
from tests.fakes.nursery import Nursery
from tests.pipeline import SCRIPTED

WAIT = "no producer yet"
PHASES = (WAIT, "producer.rollout", "producer.pause", "producer.receive", "producer.publish")
"""The run waits for producers; a producer is struck at a failpoint while it rolls out, pauses, joins the transfer, publishes."""

RUN = (
    *SCRIPTED,
    "grpo.num_prompts_per_step=6",
    "grpo.num_generations_per_prompt=2",
    "grpo.max_num_steps=100000",
    "producer.count=1",
    "producer.scripted={seconds_per_token: 0.1}",
    "checkpointing.save_period=100000",
)


# A broker that stands still for longer than its session is fenced by its own controller when it goes on, and reports for a moment
# that there is no broker at all. What clients make of that is librdkafka's matter, and not what is tested here.
BROKER = {"broker.session.timeout.ms": "600000"}


@dataclass(frozen=True, slots=True)
class Pace:
    """`pause_s` is longer than all of the run's deadlines but those that are meant for a broker that is away."""

    beat_s: float
    lease_beats: int
    phase_timeout_s: float
    no_producer_timeout_s: float
    pause_s: float
    within_s: float

    @property
    def overrides(self) -> tuple[str, ...]:
        return (
            f"dispatch.beat_s={self.beat_s}",
            f"dispatch.heartbeat_s={self.beat_s}",
            f"dispatch.lease_beats={self.lease_beats}",
            f"refit.phase_timeout_s={self.phase_timeout_s}",
            f"dispatch.no_producer_timeout_s={self.no_producer_timeout_s}",
        )


# While a transfer waits for a struck member, half of `phase_timeout_s` passes in seconds, not in beats: by then the test must
# have stopped the broker and let the member go on, on a busy machine too.
FAST = Pace(beat_s=0.2, lease_beats=30, phase_timeout_s=8, no_producer_timeout_s=8, pause_s=10, within_s=120)
DEFAULT = Pace(beat_s=1, lease_beats=15, phase_timeout_s=20, no_producer_timeout_s=40, pause_s=60, within_s=180)


@contextmanager
def paused(broker: int) -> Iterator[None]:
    os.kill(broker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker, signal.SIGCONT)


def pause_in(run: ByHand, broker: int, phase: str, pace: Pace) -> None:
    if phase == WAIT:
        run.until(lambda: (beat := run.beat()) is not None and "to join" in beat.waits_for, START_S, "the learner to wait")
        with paused(broker):
            time.sleep(pace.pause_s)  # the fault itself
        steady(run)
        return
    # In its first round a newcomer is alone, so that it is struck in the second one.
    name = f"at-{phase.replace('.', '-')}"
    passing = 2 if phase in ("producer.pause", "producer.receive") else 1
    victim = run.producer(name, strike=f"{phase}=SIGSTOP@{passing}")
    run.until(lambda: victim.frozen, pace.within_s, f"{name} to come to {phase}")
    if phase == "producer.receive":  # the others learn of the transfer from the broker too
        run.until(lambda: others_are_connected(run, victim), pace.within_s, "the others to join the transfer")
    with paused(broker):
        victim.send(signal.SIGCONT)
        time.sleep(pace.pause_s)  # the fault itself
    run.reaches(run.frontier + 2, pace.within_s)


def steady(run: ByHand) -> None:
    """A producer that trains with the learner. Its own first round is over: a pause within it would fail it, as control is how a
    member learns of a transfer that rank 0 has begun."""
    run.producer("steady")
    run.reaches(1, START_S)


def others_are_connected(run: ByHand, victim: Part) -> bool:
    """Whether all other producers have connected to where the sender of the open round listens."""
    round_ = run.state.round if run.state is not None else None
    ports = {group.port for group in round_.groups} if round_ is not None else set()
    others = [part for part in run.parts if part is not victim and part.name != LEARNER]
    return all(ports & remote_ports(part) for part in others)


def remote_ports(part: Part) -> set[int]:
    return {at.raddr.port for at in psutil.Process(part.process.pid).net_connections("tcp") if at.raddr}


def goes_on(local: LocalBroker, nursery: Nursery, folder: Path, phases: tuple[str, ...], pace: Pace) -> None:
    bootstrap = local.start(Deadline(90))
    pid = local.pid
    assert pid is not None
    with by_hand(bootstrap, folder, nursery, *RUN, *pace.overrides) as run:
        learner = run.learner()
        run.watch()
        if WAIT not in phases:
            steady(run)
        for phase in phases:
            since = time.monotonic()
            pause_in(run, pid, phase, pace)
            print(f"{phase}: {time.monotonic() - since:.1f} s")
        run.stop()
        assert learner.end(pace.within_s) == 1
        assert "stopped by a test" in learner.output
        assert [part.end() for part in run.parts[1:]] == [0] * (len(run.parts) - 1)
        members: set[str] = set()
        for state in (timed.record for timed in run.states):
            assert members <= state.members.keys(), "a member was removed"
            assert not state.refused
            members |= state.members.keys()
        assert len(members) == len(run.parts) - 1
        log = next(folder.glob("*/logs/dispatcher.log")).read_text()
        assert "lost" not in log and "failed at" not in log, log
        beat = run.beat()
        assert beat is not None and not beat.failures


@pytest.mark.timeout(300)
def test_a_broker_that_stands_still_for_a_while_costs_nobody_anything(
    own_broker: Callable[..., LocalBroker], nursery: Nursery, tmp_path: Path
) -> None:
    goes_on(own_broker(properties=BROKER), nursery, tmp_path / "run", ("producer.rollout", "producer.receive"), FAST)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_minute_in_each_phase_costs_nobody_anything(
    own_broker: Callable[..., LocalBroker], nursery: Nursery, tmp_path: Path
) -> None:
    goes_on(own_broker(properties=BROKER), nursery, tmp_path / "run", PHASES, DEFAULT)
