"""A run without Kafka, processes or weights: real cores, coupled by simulated logs that every reader reads at its own pace.

Order is kept within a partition and nowhere else. Everything that can happen is a method that moves one thing a little; whoever
drives the world chooses. After every event of a core its invariants are asserted, and the world keeps its own books of what a
log may never show: a token outside its group's ages, a version trained with two batches, a seal of something that is not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from learner.dispatcher.deciding.dispatcher import Dispatcher
from learner.dispatcher.deciding.reporting import waits_for
from learner.dispatcher.state.plan import Plan
from schemas.draws import row_of
from schemas.identity import Attempt
from schemas.records.control import Claim, DatasetFacts, State
from schemas.records.requests import Request
from schemas.records.seal import Seal
from schemas.records.status import Beat
from tests.fakes.dispatcher.plans import make_plan
from tests.fakes.records.groups import make_group, make_trajectory
from tests.fakes.records.make import make_operator
from tests.fakes.simulation.learner import Fenced, SimLearner
from tests.fakes.simulation.logs import CONTROL, REQUESTS, STATUS, Logs, Published, Settings
from tests.fakes.simulation.producer import SimProducer

_RIGHT, _WRONG = (make_trajectory(0, tokens=[1], rewards=reward) for reward in (1.0, 0.0))


class World:
    """The run. `faults` of transfers are queued by the driver and used up by the next sends."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.logs = Logs()
        self.plan = self.plan_of(0)
        self.capacity = 2
        self.dataset = DatasetFacts(rows=7, digest="data", validation_rows=2 if settings.val_period else None)
        self.logs.make(CONTROL, 1)
        self.logs.make(STATUS, 1)
        self.logs.make(REQUESTS, self.plan.request_partitions)
        self.producers: list[SimProducer] = []
        self.transfer_faults: deque[int] = deque()
        self.batches: dict[int, tuple[Seal, int]] = {}
        self.validated: dict[int, list[int]] = {}
        self.highest: int | None = None
        self.checkpoint = (0, "w0")
        self.learners = 1
        self.learner = SimLearner(self, *self.checkpoint)
        for _ in range(settings.producers):
            self.join()

    def plan_of(self, incarnation: int) -> Plan:
        s = self.settings
        return make_plan(
            incarnation=incarnation,
            grpo={
                "num_prompts_per_step": s.slots,
                "max_num_steps": s.steps,
                "max_trajectory_age_steps": s.max_age,
                "val_period": s.val_period,
                "val_at_start": s.val_period > 0,
                "val_timeout_s": 20,
                "use_dynamic_sampling": s.dynamic_sampling,
            },
            refit={"mode": s.mode, "phase_timeout_s": 6, "group_size": s.group_size},
            dispatch={
                "lease_beats": 4,
                "stall_timeout_s": 12,
                "start_timeout_s": 5,
                "no_progress_timeout_s": 10**6,
                "no_producer_timeout_s": 10**6,
                "max_draws": 3,
                "hedge_below": 0.5,
            },
            producer_count=s.producers,
            request_partitions=2,
        )

    # --- happenings ---------------------------------------------------------------------------------------------------------

    def join(self) -> SimProducer:
        producer = SimProducer(self, f"p{len(self.producers)}")
        self.producers.append(producer)
        return producer

    def kill_learner(self, zombie_moves: int = 0) -> None:
        """The learner dies, or is taken for dead and goes on for some moves; another goes on from the last checkpoint."""
        old = self.learner
        self.learners += 1
        self.learner = SimLearner(self, *self.checkpoint)
        try:
            for which in range(zombie_moves):
                old.read(which)
                old.rank0()
        except Fenced:
            pass

    def publish(self, producer: str, request: Request, versions: tuple[int, ...], *, corrupt: bool) -> None:
        kind = "validation" if request.kind == "validation" else "rollout"
        age = 0 if kind == "validation" else self.settings.max_age
        assert all(request.target - age <= v <= request.target for v in versions), (request, versions)
        assert self.settings.mode == "keep" or len(set(versions)) <= 1, (request, versions)
        if kind == "rollout":
            row = row_of(self.plan.seed, self.dataset.rows, self.settings.slots, request.target, request.slot, request.draw)
            assert request.row == row
        group = make_group(
            kind=kind,
            request=request.key,
            row=request.row,
            incarnation=request.incarnation,
            min_version=request.min_version,
            producer=producer,
            trajectories=(_RIGHT, _RIGHT if self.reward(request) else _WRONG),
        )
        partition = request.slot % self.settings.partitions
        self.logs.append((kind, request.target), Published(group, versions, corrupt), partition)

    def reward(self, request: Request) -> float:
        """Of the second trajectory; the first has 1.0."""
        return 1.0 if (request.target + request.slot + request.draw) % 3 == 0 else 0.0

    def drain(self, which: int) -> None:
        """An operator wants a producer to leave."""
        live = self.live()
        if live:
            self.logs.append(STATUS, make_operator(action="drain", producer=live[which % len(live)].name))

    def duplicate(self, which: int) -> None:
        """A record that lies in `status` or in a version's topic comes again."""
        partitions = [p for p in self.logs.partitions if p[0] not in (CONTROL, REQUESTS) and self.logs.partitions[p]]
        if partitions:
            partition = partitions[which % len(partitions)]
            records = self.logs.partitions[partition]
            record = records[(which * 7) % len(records)]
            if not isinstance(record, Beat):
                records.append(record)

    # --- what others see ----------------------------------------------------------------------------------------------------

    def state(self) -> State | None:
        """The last state on `control` that exists: not written by an incarnation below an earlier claim."""
        found, claim = None, -1
        for offset, record in enumerate(self.logs.partitions[CONTROL, 0]):
            if isinstance(record, Claim):
                claim = offset
            elif record.incarnation >= claim:
                found = record
        return found

    def live(self) -> list[SimProducer]:
        return [p for p in self.producers if p.alive and not p.frozen]

    def sending(self, prefix: str) -> bool:
        """Whether rank 0 will still send to the group of this rendezvous."""
        learner = self.learner
        if learner.listening is None or learner.over:
            return False
        return any(learner.prefix(index) == prefix for index in range(len(learner.listening.groups)))

    def receiver(self, name: str, prefix: str) -> SimProducer | None:
        for producer in self.producers:
            offer = producer.receiving if producer.healthy else None
            if producer.name == name and offer is not None and offer.at.prefix == prefix:
                return producer
        return None

    def take_transfer_fault(self) -> int:
        """0: none; 1: nobody got anything; 2: it failed, but some members got all."""
        return self.transfer_faults.popleft() if self.transfer_faults else 0

    # --- the books ----------------------------------------------------------------------------------------------------------

    def check_state(self, state: State) -> None:
        if state.incarnation == self.learner_incarnation():
            assert self.highest is None or (state.frontier is not None and state.frontier >= self.highest), (
                state.frontier,
                self.highest,
            )
            self.highest = state.frontier
        assert len(state.window) <= self.settings.max_age + 1
        for version in state.window:
            assert state.frontier is not None and state.frontier <= version <= state.frontier + self.settings.max_age
            assert version < self.settings.steps

    def learner_incarnation(self) -> int:
        claims = [o for o, record in enumerate(self.logs.partitions[CONTROL, 0]) if isinstance(record, Claim)]
        return claims[-1]

    def check_request(self, request: Request, core: Dispatcher) -> None:
        if request.kind == "cancel":
            return
        held = core.state.roster.producers[request.producer].held
        assert request.target - self.settings.max_age <= held <= request.target, (request, held)
        if request.kind == "validation":
            assert held == request.target
        else:
            assert request.target in core.state.window and request.target > core.state.sealed_through

    def check_batch(self, version: int, seal: Seal, offset: int) -> None:
        """The first seal of the log is the batch of every learner; each of its slots is a whole group of that slot."""
        first = next((o, r) for o, r in enumerate(self.logs.partitions[("rollout", version), 0]) if isinstance(r, Seal))
        assert (offset, seal) == first
        assert self.batches.setdefault(version, (seal, offset)) == (seal, offset)
        assert sorted(seal.slots) == list(range(self.settings.slots))
        for slot, entry in seal.slots.items():
            record = self.logs.partitions[("rollout", version), entry.partition][entry.offset]
            assert isinstance(record, Published) and not record.corrupt
            assert record.group.request == Attempt(version, slot, entry.draw, entry.attempt)
            assert all(version - self.settings.max_age <= v <= version for v in record.versions)

    # --- a fair driver ------------------------------------------------------------------------------------------------------

    def fair_round(self) -> None:
        """About a second in which everybody that can does what is to be done."""
        self.learner_round()
        for producer in self.live():
            while producer.read(0):
                pass
            producer.engine()
            for _ in range(2 * len(producer.rollouts) + len(producer.local)):
                producer.work(self.learner.beat_number)
            producer.heartbeat()

    def learner_round(self) -> None:
        """The learner's part of it."""
        learner = self.learner
        learner.beat()
        for move in (learner.worker, lambda: learner.read(0)):
            while move():
                pass
        learner.rank0()

    def run_on(self, rounds: int) -> int:
        """Fair rounds until the run is finished; returns how many it took.

        Raises:
            AssertionError: not within `rounds`.
        """
        for done in range(rounds):
            if self.learner.finished:
                return done
            if self.learner.over:  # stopped: somebody starts it again
                self.kill_learner()
            if not any(p.healthy for p in self.producers):
                self.join()
            self.fair_round()
        raise AssertionError(f"not finished after {rounds} rounds:\n" + "\n".join(self.story()))

    def story(self) -> Iterator[str]:
        s = self.learner.core.state
        yield f"version={s.version} frontier={s.frontier} sealed_through={s.sealed_through} window={s.window} round={s.round}"
        yield f"stop={s.stop} takeover={s.takeover} validation={s.validation.version}"
        yield f"rank 0: {self.learner.answer}, waits for {waits_for(s)}"
        for slots in s.slots.open_versions.values():
            for slot in slots.slots:
                yield f"{slots.kind} {slot.next_key} {slot.state.value} {slot.holders} {list(slot.history)[-6:]}"
        for p in self.producers:
            known = s.roster.producers.get(p.name)
            where = f"alive={p.alive} frozen={p.frozen} hung={p.hung} gone={p.gone}"
            yield f"{p.name} {where} {p.core.freeze} {p.core.engine} held={p.version}"
            yield f"    work={ {k: w.running for k, w in p.core.work.items()} } roster={known}"
