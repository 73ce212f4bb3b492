"""The dispatcher's shell, with everything that it talks to kept in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from learner.dispatcher.deciding import commands as cmd
from learner.dispatcher.deciding import events as ev
from learner.link.channel import ANSWER_S
from learner.link.messages import (
    CheckpointSaved,
    Done,
    EndRun,
    FenceQuestion,
    KeepWaiting,
    LearnerReady,
    NextAnswer,
    NextQuestion,
    StepOutcome,
    StopRequest,
    TrainVersion,
    ValidationFigures,
)
from schemas.config.file import load_for_process
from schemas.errors import LostData, ProtocolError, RunStopped
from schemas.records import control
from schemas.records.control import State
from schemas.records.metrics import StepMetrics
from schemas.records.seal import Seal, SealedSlot
from schemas.records.status import Beat
from tests.fakes.dispatcher.driver import make_group_read
from tests.fakes.dispatcher.shells import MemoryShell
from tests.fakes.records.make import PLAN_DIGEST, UUID, digest_of, key, make_heartbeat, make_report

CONFIG = load_for_process("launch/configs/tiny.yaml", ["run.id=t-shell", "run.dir=nowhere"])
OUTCOME = StepOutcome(4, 9, {0: 3}, "state", "weights", {"train/loss": 0.5})


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryShell]:
    monkeypatch.setattr("learner.dispatcher.serving.shell.commit_offsets", lambda *_: None)
    memory = MemoryShell(CONFIG)
    yield memory
    memory.close()


def states(shell: MemoryShell) -> list[State]:
    found = [control.decode(value) for value in shell.writer.of(shell.topics.control)]
    return [record for record in found if isinstance(record, State)]


def test_closing_a_topic_gives_back_all_that_is_kept_for_it(shell: MemoryShell) -> None:
    topic = shell.topics.trajectories(3)
    shell.shell._accepted.keep(topic, 0, 7, b"seven")
    shell.shell._carry_out(cmd.CloseTopic("rollout", 3))
    assert shell.versions.left == [topic]
    with pytest.raises(LostData):
        shell.shell._accepted.of_seal(topic, Seal(UUID, 0, "c", 3, {0: SealedSlot(0, 0, 0, 7, digest_of("seven"), "c")}))


def test_records_of_other_runs_and_other_bytes_are_counted_and_change_nothing(shell: MemoryShell) -> None:
    shell.status(b"{")
    shell.status(make_report("p0").model_copy(update={"uuid": "another run"}).to_bytes())
    shell.status(make_heartbeat("p0").to_bytes())  # of nobody that is known
    assert shell.core.state.counters.ignored_status == 3
    assert shell.core.state.roster.producers == {}


def test_only_this_incarnations_beats_are_its_clock(shell: MemoryShell) -> None:
    shell.status(Beat(uuid=UUID, incarnation=1, number=7).to_bytes())
    assert (shell.core.state.clock.beat, shell.control.fences) == (0, 0)
    shell.status(Beat(uuid=UUID, incarnation=0, number=7).to_bytes())
    assert (shell.core.state.clock.beat, shell.control.fences) == (7, 1)


def test_a_state_is_written_once_until_it_changes_or_somebody_wrote_over_it(shell: MemoryShell) -> None:
    shell.states.write()
    shell.states.write()
    assert len(states(shell)) == 1
    shell.status(make_report("p0").to_bytes())
    shell.states.turn(idle=True)
    assert [list(state.members) for state in states(shell)] == [[], ["p0"]]
    shell.control.lower_wrote = True
    shell.status(Beat(uuid=UUID, incarnation=0, number=1).to_bytes())
    shell.states.turn(idle=True)
    assert states(shell)[-1] == states(shell)[-2]


def test_a_burst_of_records_makes_one_state_but_does_not_hold_it_back_for_long(shell: MemoryShell) -> None:
    shell.states.turn(idle=False)
    assert states(shell) == []
    shell.now += 0.06
    shell.states.turn(idle=False)
    assert len(states(shell)) == 1


def test_rank_0_is_answered_in_time_though_there_is_nothing_to_do(shell: MemoryShell) -> None:
    shell.rank0.send(NextQuestion())
    shell.turn()
    shell.shell._keep_rank0_waiting_if_due()
    shell.now += ANSWER_S
    shell.shell._keep_rank0_waiting_if_due()
    work = shell.rank0.answer(NextAnswer).work
    assert isinstance(work, KeepWaiting) and "producers to join" in work.reason
    assert not shell.core.state.learner.asked
    shell.now += 10 * ANSWER_S
    shell.shell._keep_rank0_waiting_if_due()  # nothing is owed now
    shell.rank0_saves.send(FenceQuestion())
    shell.turn()
    assert shell.rank0_saves.answer(Done) == Done()


def test_a_sealed_batch_is_handed_over_in_slot_order_with_the_validations_that_ended(shell: MemoryShell) -> None:
    topic = shell.topics.trajectories(5)
    for offset, value in ((3, b"one"), (8, b"zero")):
        shell.shell._accepted.keep(topic, 0, offset, value)
    shell.reader.at = {(topic, 0): 9, (shell.topics.status, 0): 4}
    entries = {0: SealedSlot(0, 0, 0, 8, digest_of("zero"), "c"), 1: SealedSlot(0, 0, 0, 3, digest_of("one"), "c")}
    shell.shell._carry_out(cmd.ValidationDone(4, {0: 1.0, 1: 0.0}, {0: 5, 1: 7}, missing=1))
    shell.shell._carry_out(cmd.HandOverBatch(5, Seal(UUID, 0, "c", 5, entries), 9, catch_up=False))
    answer = shell.rank0.answer(NextAnswer)
    assert isinstance(answer.work, TrainVersion)
    assert (answer.work.records, answer.work.offsets, answer.work.recorded_state) == ([b"zero", b"one"], {0: 9}, None)
    (validation,) = answer.validations
    assert isinstance(validation, ValidationFigures) and validation.version == 4
    assert validation.metrics["validation/accuracy"] == 0.5 and validation.metrics["validation/missing"] == 1.0


def test_a_step_is_committed_when_its_record_is_written_and_never_recorded_twice(shell: MemoryShell) -> None:
    shell.rank0.send(OUTCOME)
    shell.turn()
    shell.turn()  # the broker has the record
    assert shell.rank0.answer(Done) == Done()
    (value,) = shell.writer.of(shell.topics.metrics)
    record = StepMetrics.from_bytes(value)
    assert (record.step, record.state_digest, record.metrics) == (4, "state", {"train/loss": 0.5})


def test_a_step_that_an_earlier_incarnation_recorded_is_committed_without_a_second_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("learner.dispatcher.serving.shell.commit_offsets", lambda *_: None)
    recorded = StepMetrics(uuid=UUID, incarnation=0, step=4, seal_offset=9, config_digest="c", state_digest="s", metrics={})
    memory = MemoryShell(CONFIG, recorded={4: recorded})
    memory.rank0.send(OUTCOME)
    memory.turn()
    assert memory.rank0.answer(Done) == Done()
    assert memory.writer.of(memory.topics.metrics) == []
    memory.close()


def test_a_learner_that_lost_the_run_commits_and_retires_nothing(shell: MemoryShell) -> None:
    shell.control.newer = RunStopped("another learner took the run over")
    for question in (OUTCOME, CheckpointSaved(4, {"control": 1, "status": 2}, {})):
        shell.rank0.send(question)
        with pytest.raises(RunStopped):
            shell.turn()
    assert shell.writer.written == [] and shell.retired.calls == []


def test_what_no_checkpoint_needs_is_retired_but_not_the_last_state(shell: MemoryShell) -> None:
    shell.rank0_saves.send(CheckpointSaved(4, {"control": 90, "status": 2}, {}))
    shell.turn()
    assert shell.rank0_saves.answer(Done) == Done()
    assert shell.retired.calls == [(4, shell.control.state_offset)]


def test_a_stop_is_in_the_log_before_rank_0_hears_that_it_is(shell: MemoryShell) -> None:
    shell.rank0.send(LearnerReady(0, PLAN_DIGEST, "w0"))
    shell.turn()
    assert shell.rank0.answer(Done) == Done()
    shell.rank0.send(StopRequest("interrupted by SIGINT"))
    shell.turn()
    assert shell.rank0.answer(Done) == Done()
    stop = states(shell)[-1].stop
    assert stop is not None and (stop.reason, stop.ordered, stop.resumable) == ("interrupted by SIGINT", True, True)
    shell.rank0.send(NextQuestion())
    shell.turn()
    assert shell.rank0.answer(NextAnswer).work == EndRun("interrupted by SIGINT", finished=False, ordered=True)


def test_the_end_of_rank_0_ends_the_loop(shell: MemoryShell) -> None:
    shell.rank0.close()
    shell.turn()
    assert shell.shell._over


def test_an_answer_is_no_question(shell: MemoryShell) -> None:
    shell.rank0.send(Done())
    with pytest.raises(ProtocolError, match="rank 0 sent Done, which is no question"):
        shell.turn()


def test_requests_follow_the_state_that_opened_their_version(shell: MemoryShell) -> None:
    """A producer judges a request by the control state, so it must find the version open."""
    shell.rank0.send(LearnerReady(0, PLAN_DIGEST, "w0"))
    shell.turn()
    before = len(shell.writer.written)
    shell.core.state.slots.open("rollout", 0)
    event = make_group_read(key(0))
    shell.shell._on(ev.GroupRefused("rollout", 0, str(event.group.request), "p0", "digest"))
    assert len(shell.writer.written) == before, "nothing was issued"
    shell.shell._do([cmd.MakeTopic("rollout", 0)])
    assert shell.writer.written[before][0] == shell.topics.control
