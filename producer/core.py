"""The producer's state machine. No I/O, no clock.

    JOINING --first weights--> SERVING <--round's end-- PAUSED
                                  `--pause--------------^

| waits for | unblocked by | deadline |
|---|---|---|
| a state after joining | the learner's control state | `dispatch.start_timeout_s`, kept by the shell |
| its first weights | a round with it as a member | the learner's (`refit.max_tries`) |
| the end of a round | a state without that round, or a claim | the learner's phase deadlines |

Invariants: a rollout starts only when the engine's version is at least the request's `min_version` and at most its target; the
version that it reports is the one its engine serves; a request in hand ends once: published, failed, cancelled or handed back;
the engine is asked for one thing at a time (`EngineState`), and rounds that begin or end meanwhile wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, assert_never

from producer import events as ev
from producer.engine.protocol import TransferOffer
from producer.events import Command, Event, Key, Note
from schemas.config.dispatch import RefitConfig
from schemas.records.control import Claim, Round, State, Stop
from schemas.records.requests import Request
from schemas.records.status import Ack, Failed, FailureKind, InHand, Left, ProducerState
from schemas.weights.transports.protocol import Rendezvous


class Freeze(Enum):
    """How far this producer has come in a round."""

    NONE = "none"
    DRAINING = "draining"
    """Running rollouts end, no new one starts (mode drain)."""
    PAUSING = "pausing"
    """The engine is to stop as soon as it can; then the pause is acknowledged."""
    PAUSED = "paused"
    RECEIVING = "receiving"
    RECEIVED = "received"
    """Its part of the round is over, successful or not; the state that ends the round thaws it."""


class EngineState(Enum):
    """What the engine was last asked for. While it is busy it is asked for nothing else, whatever becomes of the round."""

    MOVING = "moving"
    STOPPING = "stopping"
    """Busy: `Pause`."""
    STILL = "still"
    RECEIVING = "receiving"
    """Busy: `Receive`."""


@dataclass(slots=True)
class Work:
    """A request in hand."""

    request: Request
    running: bool = False
    aborted: bool = False

    @property
    def order(self) -> tuple[bool, int, int]:
        """Validation first, then the lowest target."""
        return (self.request.kind != "validation", self.request.target, self.request.slot)


@dataclass(frozen=True, slots=True)
class CoreSnapshot:
    """What other threads and records may know of the core; replaced whole after every event."""

    state: ProducerState = ProducerState.JOINING
    held: int = -1
    digest: str | None = None
    uuid: str | None = None
    in_hand: Sequence[InHand] = field(default_factory=tuple)


class ProducerCore:
    """`on(event)` returns the commands that follow, in order."""

    def __init__(self, name: str, capacity: int, refit: RefitConfig) -> None:
        self.name = name
        self.capacity = capacity
        self.refit = refit
        self.uuid: str | None = None
        self.incarnation = -1
        self.reported = False
        self.partition: int | None = None
        self.held = -1
        self.digest: str | None = None
        self.sealed_through = -1
        self.member_of = -1
        """The incarnation that last named this producer as a member."""
        self.was_member = False
        self.freeze = Freeze.NONE
        self.engine = EngineState.MOVING
        self.round: Round | None = None
        """The round that it takes part in, as last announced."""
        self.work: dict[Key, Work] = {}
        self.dismissed = False
        """An operator wants it to leave, and the learner has no more requests for it."""
        self.leaving: ev.Leave | None = None
        self.found: Stop | None = None
        """The stop that it found before it had joined."""
        self.exited = False
        self.snapshot = CoreSnapshot()
        self.out: list[Command] = []

    # --- events -------------------------------------------------------------------------------------------------------------

    def on(self, event: Event) -> list[Command]:
        self.out = []
        if self.exited:
            return []
        match event:
            case ev.ControlRead(record, offset):
                if isinstance(record, Claim):
                    self._on_claim(record, offset)
                else:
                    self._on_state(record)
            case ev.RequestRead(request):
                self._on_request(request)
            case ev.Published(key):
                self.work.pop(key, None)
            case ev.RolloutEnded(key, failure, reason):
                self._on_ended(key, failure, reason)
            case ev.Paused():
                self.engine = EngineState.STILL
            case ev.Received():
                self._on_received(event)
            case ev.Leave():
                self._on_leave(event)
            case ev.StartOver(waited):
                self._on_start_over(waited)
            case _:
                assert_never(event)
        if self.dismissed and not self.exited:
            self._on_leave(ev.Leave("drained", 0))
        if not self.exited:
            self._proceed()
        self.snapshot = self._snapshot()
        return self.out

    def _on_claim(self, claim: Claim, offset: int) -> None:
        if offset <= self.incarnation or self.uuid not in (None, claim.uuid):
            return
        self.incarnation = offset
        self.uuid = claim.uuid
        self.sealed_through = -1  # a learner that resumes without lost data takes seals back; its state says which hold
        self._thaw()
        if self.reported:
            self.out.append(ev.SendReport(offset))

    def _on_state(self, state: State) -> None:
        if state.incarnation < self.incarnation or (self.uuid is not None and state.uuid != self.uuid):
            return
        self.incarnation, self.uuid = state.incarnation, state.uuid
        if self.name in state.refused:
            # A member is expelled for what it did, and a new producer may do better; anybody else is refused for wrong input.
            code, word = (1, "expelled") if self.was_member else (2, "refused")
            self._exit(code, f"{word} by the learner:\n  " + "\n  ".join(state.refused[self.name]))
            return
        if state.stop is not None:
            self._on_stop(state.stop)
            return
        if not self.reported:
            self.reported = True
            self.out.append(ev.SendReport(None))
        self._on_membership(state)
        self.sealed_through = max(self.sealed_through, state.sealed_through)
        self._drop_void()
        self._follow(state.round)

    def _on_stop(self, stop: Stop) -> None:
        """A stop binds producers that have joined. A newcomer waits for a learner that resumes, perhaps with more steps."""
        if self.reported or not (stop.resumable or stop.finished):
            self._exit(0 if stop.finished or stop.ordered else 1, f"the run has ended: {stop.reason}")
        else:
            self.found = stop
            self.out.append(Note(f"the run has stopped ({stop.reason}); waiting for a learner that resumes it"))

    def _on_start_over(self, waited: str) -> None:
        """No state that can be joined: the learner has ended, or never got that far."""
        if not self.reported and self.found is not None and self.found.finished:
            self._exit(0, f"the run has ended: {self.found.reason}")
        elif not self.reported:
            self._exit(1, f"waited {waited} for a learner of the run; is it running?")

    def _on_membership(self, state: State) -> None:
        member = state.members.get(self.name)
        if member is not None:
            self.member_of = state.incarnation
            self.was_member = True
            self.dismissed = member.dismissed
            if self.partition is None:
                self.partition = member.requests_partition
                self.out.append(ev.ReadRequests(self.partition))
        elif self.member_of == state.incarnation:
            # It stood still for longer than its lease and was taken for lost: it reports once that it is here, and what it has.
            self.member_of = -1
            self.out.append(ev.SendReport(state.incarnation))

    def _follow(self, round_: Round | None) -> None:
        """Take part in the round, or end what is left of an earlier one."""
        mine = round_ if round_ is not None and self.name in round_.members else None
        if self.round is not None and (mine is None or mine.number != self.round.number):
            self._thaw()
        if mine is not None and self.round is None:
            self.freeze = Freeze.DRAINING if mine.mode == "drain" else Freeze.PAUSING
        self.round = mine

    def _on_request(self, request: Request) -> None:
        if request.producer != self.name or request.uuid != self.uuid or request.incarnation < self.incarnation:
            return
        if request.kind == "cancel":
            key: Key = (request.cancels or "rollout", request.key)
            work = self.work.get(key)
            if work is not None:
                self._abandon(key, work)
            return
        key = (request.kind, request.key)
        if key not in self.work:
            self.work[key] = Work(request)
            self._drop_void()

    def _on_ended(self, key: Key, failure: FailureKind | None, reason: str) -> None:
        work = self.work.pop(key, None)
        if work is None or work.aborted or failure is None or self.uuid is None:
            return
        failed = Failed(uuid=self.uuid, producer=self.name, request=_in_hand(work), failure=failure, reason=reason[:2000])
        self.out.append(ev.Say(failed))

    def _on_received(self, event: ev.Received) -> None:
        if event.loaded is not None:
            self.held, self.digest = event.loaded.version, event.loaded.digest
        self.engine = EngineState.STILL
        self._drop_void()
        if self.freeze is not Freeze.RECEIVING:
            return  # the round was given up meanwhile; weights that were loaded late are served, and loaded again if asked for
        self.freeze = Freeze.RECEIVED
        if event.loaded is None:
            self._ack("loaded", error=event.error or "no reason given", seconds=event.seconds)
        else:
            self._ack("loaded", digest=event.loaded.digest, probe_gap=event.loaded.probe_gap, seconds=event.seconds)

    def _on_leave(self, event: ev.Leave) -> None:
        if self.leaving is None:
            self.leaving = event
            unfinished = [_in_hand(work) for work in self.work.values()]
            for key, work in list(self.work.items()):
                self._abandon(key, work)
            if self.uuid is not None and self.reported:
                self.out.append(ev.Say(Left(uuid=self.uuid, producer=self.name, reason=event.reason, unfinished=unfinished)))
            self._exit(event.code, event.reason)

    # --- what follows -------------------------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        running = sum(work.running for work in self.work.values())
        if self.freeze is Freeze.DRAINING and running == 0:
            self.freeze = Freeze.PAUSING
        self._ask_engine()
        # Drained means that no rollout crosses a version: none starts before the round is over.
        if self.held < 0 or (self.round is not None and self.round.mode == "drain"):
            return
        for work in sorted(self.work.values(), key=lambda work: work.order):
            request = work.request
            if work.running or not request.min_version <= self.held <= request.target:
                continue
            # The learner may exceed the capacity by one request if its next step would otherwise wait.
            if running > self.capacity:
                break
            work.running = True
            running += 1
            self.out.append(ev.Start(request))

    def _ask_engine(self) -> None:
        """Take the engine one step towards the state that the round wants, unless it is busy."""
        if self.engine is EngineState.MOVING and self.freeze is Freeze.PAUSING:
            assert self.round is not None
            self.engine = EngineState.STOPPING
            self.out.append(ev.Pause(self.round.number, self.refit.recompute_kv_cache_after_weight_updates))
        elif self.engine is EngineState.STILL and self.freeze in (Freeze.NONE, Freeze.DRAINING):
            self.engine = EngineState.MOVING
            self.out.append(ev.Resume())
        elif self.engine is EngineState.STILL and self.freeze is Freeze.PAUSING:
            self.freeze = Freeze.PAUSED
            self._ack("pause")
        elif self.engine is EngineState.STILL and self.freeze is Freeze.PAUSED:
            assert self.round is not None
            offer = self._offer(self.round)
            if offer is not None:
                self.freeze, self.engine = Freeze.RECEIVING, EngineState.RECEIVING
                self.out.append(ev.Receive(self.round.number, offer))

    def _offer(self, round_: Round) -> TransferOffer | None:
        """This producer's transfer, once the learner is listening."""
        if round_.phase != "transfer":
            return None
        for group in round_.groups:
            if self.name in group.members:
                return TransferOffer(
                    version=round_.version,
                    at=Rendezvous(group.host, group.port, group.prefix, group.nccl_id),
                    world=group.world,
                    rank_offset=group.members[self.name],
                    timeout_s=self.refit.phase_timeout_s / 2,
                )
        return None

    def _thaw(self) -> None:
        """Leave the round, whatever its phase: weights that are whole stay in use."""
        self.freeze, self.round = Freeze.NONE, None

    def _drop_void(self) -> None:
        """Abandon what nobody can use any more: rollouts of sealed versions, validations of weights that are gone."""
        for key, work in list(self.work.items()):
            target = work.request.target
            if target <= self.sealed_through if key[0] == "rollout" else target < self.held:
                self._abandon(key, work)

    def _abandon(self, key: Key, work: Work) -> None:
        if not work.running:
            del self.work[key]
        elif not work.aborted:
            work.aborted = True
            self.out.append(ev.Abort(key))

    def _ack(
        self,
        phase: Literal["pause", "loaded"],
        *,
        digest: str | None = None,
        probe_gap: float | None = None,
        error: str | None = None,
        seconds: float = 0.0,
    ) -> None:
        assert self.uuid is not None and self.round is not None
        ack = Ack(
            uuid=self.uuid,
            producer=self.name,
            incarnation=self.incarnation,
            round=self.round.number,
            phase=phase,
            version=self.round.version,
            ok=error is None,
            digest=digest,
            probe_gap=probe_gap,
            error=error,
            seconds=seconds,
        )
        self.out.append(ev.Say(ack))

    def _exit(self, code: int, reason: str) -> None:
        self.exited = True
        self.out.append(Note(reason, "info" if code == 0 else "error"))
        self.out.append(ev.Exit(code, reason))

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        assert (self.round is None) == (self.freeze is Freeze.NONE), (self.round, self.freeze)
        if not self.exited and self.engine is EngineState.MOVING:
            assert self.freeze in (Freeze.NONE, Freeze.DRAINING), self.freeze
        if not self.exited and self.engine is EngineState.STILL:
            assert self.freeze in (Freeze.PAUSED, Freeze.RECEIVED), self.freeze
        assert sum(work.running for work in self.work.values()) <= self.capacity + 1
        for (kind, key), work in self.work.items():
            assert (work.request.kind, work.request.key) == (kind, key)
            void = key.version <= self.sealed_through if kind == "rollout" else key.version < self.held
            assert work.aborted or not void, (key, self.sealed_through, self.held)
        assert self.exited or self.snapshot == self._snapshot()

    def _snapshot(self) -> CoreSnapshot:
        state = ProducerState.SERVING
        if self.leaving is not None or self.exited:
            state = ProducerState.LEAVING
        elif self.freeze is not Freeze.NONE:
            state = ProducerState.PAUSED
        elif self.held < 0:
            state = ProducerState.JOINING
        in_hand = tuple(_in_hand(work) for work in self.work.values() if not work.aborted)
        return CoreSnapshot(state, self.held, self.digest, self.uuid, in_hand)


def _in_hand(work: Work) -> InHand:
    request = work.request
    kind = "validation" if request.kind == "validation" else "rollout"
    return InHand(kind=kind, target=request.target, slot=request.slot, draw=request.draw, attempt=request.attempt)
