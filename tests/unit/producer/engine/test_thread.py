"""The thread that owns an engine: work between steps, and an end that reaches every caller."""

import threading
from collections.abc import Iterator

import pytest

from producer.engine.protocol import EngineDead
from producer.engine.thread import EngineThread
from schemas.errors import TransferError


class CountingEngine:
    """Steps while `work` is above 0; `fails` is raised by the step that finds it."""

    def __init__(self) -> None:
        self.work = 0
        self.steps = 0
        self.fails: Exception | None = None
        self.threads: set[int] = set()
        self.deaths: list[EngineDead] = []
        self.closed = 0

    def open(self) -> None:
        self.threads.add(threading.get_ident())

    def has_steps(self) -> bool:
        return self.work > 0

    def step(self) -> None:
        self.threads.add(threading.get_ident())
        if self.fails is not None:
            raise self.fails
        self.work -= 1
        self.steps += 1

    def add(self, work: int) -> None:
        self.threads.add(threading.get_ident())
        self.work += work

    def dead(self, error: EngineDead) -> None:
        self.deaths.append(error)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine()


@pytest.fixture
def thread(engine: CountingEngine) -> Iterator[EngineThread]:
    thread = EngineThread(engine)
    thread.start(10)
    yield thread
    assert thread.stop(10)
    assert len(engine.deaths) == engine.closed == 1


def test_everything_happens_in_one_thread_and_steps_follow_work(engine: CountingEngine, thread: EngineThread) -> None:
    for _ in range(3):
        thread.call(lambda: engine.add(5)).result(10)
    assert thread.stop(10)
    assert engine.steps + engine.work == 15
    assert len(engine.threads) == 1
    assert threading.get_ident() not in engine.threads


@pytest.mark.parametrize("error", [ValueError("no"), TransferError("broke")])
def test_an_error_of_a_call_that_harms_nothing_is_the_callers_alone(thread: EngineThread, error: Exception) -> None:
    def refuse() -> None:
        raise error

    with pytest.raises(type(error)):
        thread.call(refuse).result(10)
    assert thread.call(lambda: 7).result(10) == 7


def test_a_failed_step_ends_the_engine_with_its_cause(engine: CountingEngine, thread: EngineThread) -> None:
    engine.fails = MemoryError("no blocks")
    thread.call(lambda: engine.add(1)).result(10)
    thread.stop(10)
    assert str(engine.deaths[0]) == "MemoryError: no blocks"
    with pytest.raises(EngineDead, match="no blocks"):
        thread.call(lambda: 1).result(10)


def test_a_call_that_breaks_the_engine_ends_it(engine: CountingEngine, thread: EngineThread) -> None:
    def break_it() -> None:
        raise KeyError("half loaded")

    with pytest.raises(EngineDead, match="half loaded"):
        thread.call(break_it).result(10)
    thread.stop(10)
    assert "half loaded" in str(engine.deaths[0])


def test_calls_that_wait_behind_the_end_fail_with_its_cause(thread: EngineThread) -> None:
    go = threading.Event()

    def break_it() -> None:
        assert go.wait(10)
        raise KeyError("half loaded")

    first, waiting = thread.call(break_it), thread.call(lambda: "never")
    go.set()
    for future in (first, waiting):
        with pytest.raises(EngineDead, match="half loaded"):
            future.result(10)


def test_stopping_lets_no_further_call_in(thread: EngineThread) -> None:
    assert thread.stop(10)
    with pytest.raises(EngineDead, match="closed"):
        thread.call(lambda: 1).result(10)


def test_what_open_raises_is_raised_by_start() -> None:
    class Unopened(CountingEngine):
        def open(self) -> None:
            raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        EngineThread(Unopened()).start(10)
