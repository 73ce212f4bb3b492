"""What a message costs the dispatcher, with many producers and slots: decoding and the core, without Kafka.

    .venv/bin/python -m tests.bench.dispatcher_core [--producers 1000] [--slots 4096] [--versions 3]

Producers answer every request at once with a group, in a shuffled order, and then send a heartbeat each. Records are decoded and
checked as in a run. Messages of a kind are timed together, in CPU seconds, so that other programs do not count.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from learner.dispatcher.deciding import commands as cmd
from learner.dispatcher.deciding import events as ev
from learner.dispatcher.deciding.control_state import StateChanges
from learner.dispatcher.deciding.dispatcher import Dispatcher
from learner.link import messages
from schemas.records import status
from schemas.records.control import State
from schemas.records.group import encode
from schemas.records.headers import of_group
from schemas.records.requests import Request
from schemas.records.status import InHand
from schemas.records.validity import Rules, accept
from schemas.weights.transports.protocol import Rendezvous
from tests.fakes.dispatcher.plans import make_plan
from tests.fakes.records.groups import make_group, make_trajectory
from tests.fakes.records.make import UUID, make_ack, make_dataset, make_heartbeat, make_report

TRAJECTORIES, TOKENS = 16, 5
ROWS = 100_000


def status_read(value: bytes) -> ev.StatusRead:
    record = status.decode(value)
    assert not isinstance(record, status.Beat), "no producer beats"
    return ev.StatusRead(record)


class Fleet:
    """Many producers around one dispatcher. `cost` collects the CPU seconds of each message, by kind."""

    def __init__(self, producers: int, slots: int, versions: int, age: int) -> None:
        self.plan = make_plan(
            grpo={
                "num_prompts_per_step": slots,
                "num_generations_per_prompt": TRAJECTORIES,
                "max_num_steps": versions,
                "max_trajectory_age_steps": age,
            },
            dispatch={"lease_beats": 10**6, "no_progress_timeout_s": 1e9, "stall_timeout_s": 1e9},
            producer_count=producers,
            request_partitions=producers,
        )
        self.rules = Rules(
            run=UUID,
            seed=self.plan.seed,
            rows=ROWS,
            validation_rows=None,
            prompts_per_step=slots,
            generations_per_prompt=TRAJECTORIES,
            max_age=age,
            vocab_size=1000,
            max_total_length=64,
            max_record_bytes=1 << 20,
        )
        self.core = Dispatcher(self.plan, 0)
        self.cost: dict[str, tuple[float, int]] = {}
        self.work: deque[Request] = deque()
        self.in_hand: dict[str, dict[Any, Request]] = defaultdict(dict)
        self.tokens: dict[str, int] = defaultdict(int)
        self.later: deque[ev.Event] = deque()
        self.answers: list[cmd.Command] = []
        self.offset = 0
        self.state: State | None = None
        self.random = random.Random(1)
        self.names = [f"p{number:04d}" for number in range(producers)]
        self.changes = StateChanges(self.core.state)
        self.obey(self.core.begin())

    def burst(self, kind: str, events: Sequence[Callable[[], ev.Event]]) -> None:
        """Messages of one kind, one after the other; what follows from them is carried out afterwards."""
        done = []
        began = time.thread_time()
        for event in events:
            done.append(self.core.on(event()))
            self.changes.pending()  # as the shell asks
        cost, count = self.cost.get(kind, (0.0, 0))
        self.cost[kind] = cost + time.thread_time() - began, count + len(events)
        for commands in done:
            self.obey(commands)
        while self.later:
            self.obey(self.core.on(self.later.popleft()))
        if self.changes.pending():
            began = time.thread_time()
            self.state = self.changes.take()
            assert self.state is not None
            self.state.to_bytes()
            cost, count = self.cost.get("state", (0.0, 0))
            self.cost["state"] = cost + time.thread_time() - began, count + 1

    def timed(self, kind: str, event: Callable[[], ev.Event]) -> None:
        self.burst(kind, [event])

    def statuses(self, kind: str, records: Iterable[bytes]) -> None:
        self.burst(kind, [partial(status_read, record) for record in records])

    def obey(self, commands: list[cmd.Command]) -> None:
        for command in commands:
            match command:
                case cmd.SendRequest(request, _):
                    if request.kind == "rollout":
                        self.work.append(request)
                        self.in_hand[request.producer][request.key] = request
                case cmd.MakeTopic(kind, version):
                    self.later.append(ev.TopicReady(kind, version, f"topic{version}"))
                case cmd.WriteSeal(seal):
                    self.later.append(ev.SealRead(seal, self.offset))
                case cmd.HandOverBatch() | messages.StartRefit() | messages.FinishRun() | messages.EndRun():
                    self.answers.append(command)
                case _:
                    pass

    def run(self) -> None:
        self.statuses("report", [make_report(n, capacity=8, dataset=make_dataset(rows=ROWS)).to_bytes() for n in self.names])
        self.timed("rank 0", lambda: messages.LearnerReady(0, self.plan.plan_digest, "w0"))
        beat = 0
        while True:
            self.timed("rank 0", messages.NextQuestion)
            while not self.answers:
                beat += 1
                self.timed("beat", partial(ev.BeatRead, beat))
                self.roll_out()
            match self.answers.pop():
                case messages.StartRefit(number, version, _, _):
                    self.refit(number, version)
                case cmd.HandOverBatch(version=version):
                    self.timed("rank 0", partial(messages.VersionTrained, version, waited=True))
                case other:
                    assert isinstance(other, messages.FinishRun), other
                    return

    def refit(self, number: int, version: int) -> None:
        self.timed("rank 0", lambda: messages.RendezvousOpen([Rendezvous("h", 1, "p", None)]))
        self.timed("rank 0", lambda: messages.WeightsSent(f"w{version}", {}))
        acks = [make_ack(n, "loaded", round=number, version=version, digest=f"w{version}") for n in self.names]
        self.statuses("ack", [ack.to_bytes() for ack in acks])

    def roll_out(self) -> None:
        """Everything that is in hand is done, and every producer says so; pauses of rounds are acknowledged."""
        state = self.state
        if state is not None and state.round is not None and state.round.phase == "pause":
            acks = [make_ack(n, "pause", round=state.round.number, version=state.round.version) for n in self.names]
            self.statuses("ack", [ack.to_bytes() for ack in acks])
            return
        self.statuses("heartbeat", map(self.heartbeat, self.names))
        batch = list(self.work)
        self.work.clear()
        self.random.shuffle(batch)
        groups = []
        for request in batch:
            self.in_hand[request.producer].pop(request.key, None)
            self.tokens[request.producer] += TRAJECTORIES * TOKENS
            groups.append((*self.group(request), request))
        self.burst("group", [partial(self.judged, *group) for group in groups])

    def judged(self, value: bytes, headers: dict[str, bytes], request: Request) -> ev.GroupRead:
        self.offset += 1
        group, content = accept(value, headers, request.target, self.rules)
        return ev.GroupRead(group, 0, self.offset, headers["sha256"].decode(), content)

    def heartbeat(self, name: str) -> bytes:
        requests = self.in_hand[name].values()
        hand = [InHand(kind="rollout", target=r.target, slot=r.slot, draw=r.draw, attempt=r.attempt, tokens=3) for r in requests]
        held = self.core.state.roster.producers[name].held
        return make_heartbeat(name, held, hand, capacity=8, engine_tokens=self.tokens[name]).to_bytes()

    def group(self, request: Request) -> tuple[bytes, dict[str, bytes]]:
        held = self.core.state.roster.producers[request.producer].held
        trajectory = make_trajectory(held, tokens=np.arange(TOKENS, dtype="<u4"))
        assert request.sampling is not None
        group = make_group(
            request=request.key,
            row=request.row,
            incarnation=request.incarnation,
            min_version=request.min_version,
            producer=request.producer,
            prompt=range(7),
            sampling=request.sampling.model_dump(exclude_none=True),
            trajectories=(trajectory,) * TRAJECTORIES,
        )
        value = encode(group)
        return value, dict(of_group(group, value))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dispatcher_core", description=__doc__)
    parser.add_argument("--producers", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--age", type=int, default=1)
    args = parser.parse_args()
    fleet = Fleet(args.producers, args.slots, args.versions, args.age)
    fleet.run()
    print(f"{'message':<10} {'count':>8} {'CPU us each':>12}")
    for kind, (cost, count) in fleet.cost.items():
        print(f"{kind:<10} {count:>8} {1e6 * cost / count:>12.1f}")
    shares = {kind: 100_000 * cost / count for kind, (cost, count) in fleet.cost.items()}
    print(f"1,000 heartbeats a second: {shares['heartbeat']:.1f} % of a core; 1,000 groups a second: {shares['group']:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
