"""Rank 0's checkpoints while training goes on: begun, agreed on, named by a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from learner.checkpoint import folders, saves
from learner.checkpoint.saves import Saves
from learner.checkpoint.saving import Saving, begin_saving
from learner.commands import BeginCheckpoint, FinishCheckpoint, Idle, TrainingCommand
from learner.link.messages import CheckpointSaved, ClaimWon, ManifestFacts, SaveQuestion
from schemas.errors import FileError, RunStopped
from tests.fakes.learner.facts import FACTS
from tests.support import eventually

WITHIN_S = 10.0


class Files:
    """This rank's files: on disk once the test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        return self.written.wait(timeout_s)

    def finish(self) -> None:
        (self.folder / "data").write_bytes(b"weights")


class Worker:
    """The only rank. A checkpoint is written at once unless `background`."""

    def __init__(self, root: Path, *, background: bool) -> None:
        self.root, self.background = root, background
        self.saving: Saving | None = None
        self.files: Files

    def begin_save(self, version: int, incarnation: int) -> None:
        def write(folder: Path) -> Files:
            self.files = Files(folder)
            if not self.background:
                self.files.written.set()
            return self.files

        self.saving = begin_saving(self.root, version, incarnation, write, rank=0, gather=lambda value: [value])

    def finish_save(self) -> Saving:
        assert self.saving is not None
        saving, self.saving = self.saving, None
        saving.finish()
        return saving


class Dispatcher:
    """The fence waits until the test lets it go on, as while the broker is away."""

    claim = ClaimWon("u", 3)

    def __init__(self) -> None:
        self.free = threading.Event()
        self.failure: Exception | None = None
        self.retired: list[int] = []

    def ask_manifest_facts(self) -> None:
        """Answered at once."""

    def manifest_facts(self) -> ManifestFacts:
        return ManifestFacts("u", 3, control=1, status=2, requests={}, metrics=0, topic_ids={})

    def ask_save(self, question: SaveQuestion) -> None:
        if isinstance(question, CheckpointSaved):
            self.retired.append(question.oldest)
            return
        assert self.free.wait(WITHIN_S)
        if self.failure is not None:
            raise self.failure


class Rank0:
    """The commands that the other ranks were given."""

    keepalive_s = 0.02

    def __init__(self) -> None:
        self.given: list[type[TrainingCommand]] = []

    def send(self, command: TrainingCommand) -> None:
        self.given.append(type(command))


class Stand:
    def __init__(self, folder: Path, *, background: bool = True, keep: int | None = None) -> None:
        self.root = folder / "checkpoints"
        self.worker, self.dispatcher, self.ranks = Worker(self.root, background=background), Dispatcher(), Rank0()
        checkpointing = SimpleNamespace(async_save=background, keep=keep)
        run = SimpleNamespace(folder=folder, checkpointing=checkpointing, digest="c", learner=None)
        make = cast(Callable[..., Saves], Saves)
        self.saves = make(run, self.worker, self.ranks, self.dispatcher, 0)

    def begin(self, version: int) -> None:
        self.saves.begin(version, state_digest=f"s{version}", weights_digest="w")

    def named(self) -> list[int]:
        return sorted(folders.versions(self.root))


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "determinism", lambda learner: FACTS)


def test_training_goes_on_while_files_are_written_and_while_the_broker_is_asked(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.begin(2)
    stand.saves.turn()
    assert stand.worker.saving is not None, "not all files are written"
    stand.worker.files.written.set()
    stand.saves.turn()
    assert stand.worker.saving is None and stand.ranks.given == [BeginCheckpoint, FinishCheckpoint]
    stand.saves.turn()
    assert stand.named() == []
    stand.dispatcher.free.set()
    eventually(lambda: stand.named() == [2], WITHIN_S, "the checkpoint to have its name")
    assert folders.read(folders.step_folder(stand.root, 2)).state_digest == "s2"
    stand.saves.finish()
    assert stand.ranks.given == [BeginCheckpoint, FinishCheckpoint]


def test_the_next_one_and_the_end_wait_for_it_and_the_other_ranks_hear_something_meanwhile(tmp_path: Path) -> None:
    stand = Stand(tmp_path, keep=1)
    stand.begin(2)
    stand.worker.files.written.set()
    beginning = threading.Thread(target=stand.begin, args=(4,), daemon=True)
    beginning.start()
    eventually(lambda: stand.ranks.given.count(Idle) > 2, WITHIN_S, "the ranks to be kept waiting")
    assert stand.named() == [] and stand.ranks.given[:2] == [BeginCheckpoint, FinishCheckpoint]
    stand.dispatcher.free.set()
    beginning.join(WITHIN_S)
    assert stand.named() == [2] and stand.ranks.given[-1] is BeginCheckpoint
    stand.worker.files.written.set()
    stand.saves.finish()
    assert stand.named() == [4] and stand.dispatcher.retired == [4]


@pytest.mark.parametrize("background", [True, False])
def test_a_learner_that_lost_the_run_names_nothing(tmp_path: Path, background: bool) -> None:
    stand = Stand(tmp_path, background=background)
    stand.dispatcher.failure = RunStopped("another learner took the run over")
    stand.dispatcher.free.set()
    with pytest.raises(RunStopped, match="took the run over"):
        stand.begin(2)
        stand.worker.files.written.set()
        stand.saves.finish()
    assert stand.named() == []
    stand.saves.finish()  # reported once


def test_what_fails_beside_training_is_reported_at_the_next_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(root: Path, keep: int | None) -> list[int]:
        raise TimeoutError(110, "Connection timed out")

    monkeypatch.setattr(folders, "prune", broken)
    stand = Stand(tmp_path, keep=1)
    stand.begin(2)
    stand.worker.files.written.set()
    stand.dispatcher.free.set()

    def turned() -> bool:
        stand.saves.turn()
        return False

    with pytest.raises(FileError, match=r"checkpoints beyond checkpointing\.keep were not deleted: .*Connection timed out"):
        eventually(turned, WITHIN_S)
    assert stand.named() == [2]
