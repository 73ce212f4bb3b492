"""The dispatcher's and the producers' cores, coupled through simulated logs, under everything that may happen to a run.

Safety is asserted by the world at every move (`tests/fakes/simulation/world.py`). Liveness: with one healthy producer from some
point on, every version up to the last is sealed and trained, within a bounded time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from producer.events import Leave
from schemas.records.status import FailureKind
from tests.fakes.simulation.learner import Fenced
from tests.fakes.simulation.logs import Published, Settings
from tests.fakes.simulation.producer import SimProducer
from tests.fakes.simulation.world import World

Move = Callable[[World, int], object]
FAILURES = list(FailureKind)


def with_producer(move: Callable[[SimProducer, int], object]) -> Move:
    def moved(world: World, which: int) -> object:
        live = world.live()
        return move(live[which % len(live)], which // 4) if live else None

    return moved


def kill(world: World, which: int) -> None:
    live = world.live()
    if live:
        live[which % len(live)].killed = True


def freeze(world: World, which: int) -> None:
    live = world.live()
    if live:
        live[which % len(live)].frozen = True


def hang(world: World, which: int) -> None:
    live = world.live()
    if live:
        live[which % len(live)].hung = True


def thaw(world: World, which: int) -> None:
    for producer in world.producers:
        producer.frozen = producer.hung = False


def join(world: World, which: int) -> None:
    if len(world.live()) < 4:
        world.join()


def restart_if_stopped(world: World, which: int) -> None:
    if world.learner.over and not world.learner.finished:
        world.kill_learner()


def fair(world: World, which: int) -> None:
    for _ in range(1 + which % 3):
        world.fair_round()


def publish_corrupt(producer: SimProducer, which: int) -> None:
    rollouts = list(producer.rollouts)
    if rollouts:
        producer.publish(rollouts[which % len(rollouts)], corrupt=True)


def leave(producer: SimProducer, which: int) -> None:
    producer.on(Leave("SIGTERM", 0))


# How often each thing happens: most moves let the run go on, so that the faults hit it everywhere.
MOVES: list[tuple[int, Move]] = [
    (8, lambda world, which: world.learner.read(which)),
    (8, with_producer(lambda producer, which: producer.read(which))),
    (8, with_producer(lambda producer, which: producer.work(which))),
    (3, with_producer(lambda producer, which: producer.engine())),
    (3, with_producer(lambda producer, which: producer.heartbeat())),
    (3, lambda world, which: world.learner.rank0()),
    (3, lambda world, which: world.learner.worker()),
    (3, lambda world, which: world.learner.beat()),
    (5, fair),
    (1, kill),
    (2, freeze),
    (1, hang),
    (2, thaw),
    (2, join),
    (1, with_producer(leave)),
    (1, lambda world, which: world.drain(which)),
    (2, with_producer(lambda producer, which: producer.fail(which, FAILURES[which % 3]))),
    (1, with_producer(publish_corrupt)),
    (2, lambda world, which: world.duplicate(which)),
    (2, lambda world, which: world.transfer_faults.append(1 + which % 2)),
    (1, lambda world, which: world.kill_learner(zombie_moves=which % 12 if which % 3 == 0 else 0)),
    (1, restart_if_stopped),
]
TABLE = [move for weight, move in MOVES for _ in range(weight)]

worlds = st.builds(
    Settings,
    max_age=st.sampled_from([0, 1, 2, 4]),
    mode=st.sampled_from(["keep", "keep", "drain"]),
    producers=st.integers(1, 3),
    steps=st.integers(2, 10),
    slots=st.integers(1, 4),
    val_period=st.sampled_from([0, 0, 2]),
    partitions=st.integers(1, 2),
    save_period=st.integers(1, 3),
    group_size=st.sampled_from([None, None, 1]),
    dynamic_sampling=st.sampled_from([False, False, True]),
    same_weights_again=st.booleans(),
)


def noise(seed: int, length: int) -> bytes:
    """A long script; a shorter one of the same seed is its beginning."""
    source = random.Random(seed)
    return bytes(source.randrange(256) for _ in range(length))


# Found scripts are short and shrink well, drawn ones go deep.
scripts = st.binary(max_size=100) | st.builds(noise, st.integers(0, 2**32), st.integers(200, 900))


def bound(world: World) -> int:
    """Rounds that suffice: some to settle what the faults left (leases, deadlines, validations), and some a version."""
    return 80 + 8 * world.settings.steps


def act(world: World, script: bytes) -> None:
    for what, which in zip(script[::2], script[1::2], strict=False):
        try:
            TABLE[what % len(TABLE)](world, which)
        except Fenced:
            raise AssertionError("the newest learner was fenced") from None


def survive(settings_: Settings, script: bytes) -> None:
    world = World(settings_)
    act(world, script)
    # From here on nothing new goes wrong. Frozen producers stay frozen; one that is healthy there is, and suffices.
    world.transfer_faults.clear()
    world.run_on(bound(world))
    assert sorted(world.batches) == list(range(world.settings.steps))
    assert world.learner.version == world.settings.steps


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(worlds, scripts)
def test_a_run_survives_whatever_happens_and_one_healthy_producer_finishes_it(settings_: Settings, script: bytes) -> None:
    survive(settings_, script)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@seed(int(os.environ.get("WEIR_SEED", "1")))
@settings(max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds, st.builds(noise, st.integers(0, 2**32), st.integers(0, 1500)))
def test_a_run_survives_whatever_happens_ten_thousand_times(settings_: Settings, script: bytes) -> None:
    survive(settings_, script)


@pytest.mark.parametrize("max_age", [0, 1, 2, 4])
@pytest.mark.parametrize("mode", ["keep", "drain"])
@pytest.mark.parametrize("val_period", [0, 2])
def test_an_undisturbed_run_trains_every_version_once_and_makes_nothing_twice(max_age: int, mode: str, val_period: int) -> None:
    world = World(Settings(max_age=max_age, mode=mode, val_period=val_period))
    rounds = world.run_on(200)
    counters = world.learner.core.state.counters
    assert sorted(world.batches) == [0, 1, 2, 3, 4]
    assert (counters.reissued, counters.duplicates, counters.late, counters.failures) == (0, 0, 0, {})
    assert rounds < 80
    if val_period:
        assert world.validated == {0: [0], 2: [0], 4: [0]}


@pytest.mark.parametrize("max_age", [0, 1, 4])
@pytest.mark.parametrize("rounds", range(1, 30, 2))
def test_a_new_learner_goes_on_without_making_anything_twice(max_age: int, rounds: int) -> None:
    """It trains the sealed versions again, adopts what producers have in hand, and issues the rest."""
    world = World(Settings(max_age=max_age, steps=8, save_period=3))
    for _ in range(rounds):
        world.fair_round()
    world.kill_learner()
    world.run_on(bound(world))
    counters = world.learner.core.state.counters
    assert (counters.duplicates, counters.failures) == (0, {})
    published = [r for (topic, _), log in world.logs.partitions.items() if topic[0] == "rollout" for r in log]
    groups = [record.group.request for record in published if isinstance(record, Published)]
    assert len(groups) == len({(at.version, at.slot) for at in groups}) == 8 * 3


@pytest.mark.parametrize("rounds", range(1, 30, 2))
def test_a_producer_that_stood_still_for_longer_than_its_lease_is_of_use_again(rounds: int) -> None:
    world = World(Settings(producers=1, steps=8))
    for _ in range(rounds):
        world.fair_round()
    world.producers[0].frozen = True
    while world.learner.core.state.roster.producers and world.learner.beat_number < 100:
        world.learner_round()
    world.producers[0].frozen = False
    world.run_on(bound(world))
    assert [p.name for p in world.producers] == ["p0"]


def test_with_dynamic_sampling_no_group_of_equal_rewards_is_trained_while_there_are_other_draws() -> None:
    world = World(Settings(dynamic_sampling=True, steps=8))
    world.run_on(bound(world))
    draws = {(version, slot): entry.draw for version, (seal, _) in world.batches.items() for slot, entry in seal.slots.items()}
    assert draws == {(v, s): 1 if (v + s) % 3 == 0 else 0 for v in range(8) for s in range(3)}
    assert world.learner.core.state.counters.filtered == sum(draws.values())


def test_a_drained_producer_ends_by_itself_with_nothing_in_hand_and_nothing_is_made_twice() -> None:
    world = World(Settings(producers=2, steps=8))
    for _ in range(6):
        world.fair_round()
    world.drain(0)
    world.run_on(bound(world))
    assert world.producers[0].gone is not None and world.producers[0].gone.code == 0
    assert world.producers[1].alive or world.learner.finished
    assert (world.learner.core.state.counters.reissued, world.learner.core.state.counters.failures) == (0, {})


def test_a_world_is_reproducible() -> None:
    script = bytes(range(256)) * 2
    stories = []
    for _ in range(2):
        world = World(Settings(producers=3, val_period=2))
        act(world, script)
        stories.append("\n".join(world.story()))
    assert stories[0] == stories[1]
