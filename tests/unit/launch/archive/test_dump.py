"""Making a dump: whole or not at all, with one clear error."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from broker_config.clients.admin import TopicInfo
from broker_config.clients.stored import StoredRecord
from broker_config.topics import Topics
from launch.archive.dump import make_dump, plan_dump
from launch.folders import RunFolder
from learner.dump.index import Index, verify
from schemas import disk
from schemas.config.file import load_config as read
from schemas.disk import explain
from schemas.errors import ConfigError, WeirError
from schemas.records import group as groups
from schemas.records import seal as seals
from schemas.records.headers import of_group, of_seal
from schemas.records.metrics import StepMetrics
from schemas.records.seal import Seal, SealedSlot
from tests.fakes.learner.replays import run_folder
from tests.fakes.records.groups import make_group
from tests.fakes.records.make import UUID

SLOTS = 16


class TrainedLog:
    """A run that has trained version 4. `meanwhile` happens while its topics are read."""

    where = "the topics"

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.topics = Topics("r")
        self._meanwhile = meanwhile

    def step_metrics(self) -> Mapping[int, StepMetrics]:
        return {4: StepMetrics(uuid=UUID, incarnation=0, step=4, seal_offset=SLOTS, config_digest="c", metrics={})}

    def records(self, topic: str) -> list[StoredRecord]:
        self._meanwhile()
        if topic == self.topics.metrics:
            return [StoredRecord(topic, 0, 0, 1, b"k", self.step_metrics()[4].to_bytes())]
        found, entries = [], {}
        for slot in range(SLOTS):
            group = make_group(4, slot)
            value, headers = groups.encode(group), of_group(group, groups.encode(group))
            found.append(StoredRecord(topic, 0, slot, 1, b"k", value, tuple(headers)))
            entries[slot] = SealedSlot(0, 0, 0, slot, hashlib.sha256(value).hexdigest(), groups.content_sha256(group))
        seal = Seal(UUID, 0, "c", 4, entries)
        return [*found, StoredRecord(topic, 0, SLOTS, 1, b"seal", seals.encode(seal), tuple(of_seal(seal, seals.encode(seal))))]

    def topic(self, topic: str) -> TopicInfo:
        return TopicInfo(topic, f"id-{topic}", 1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run with a checkpoint of version 4 and a model."""
    folder = run_folder(tmp_path / "runs", {4: 1})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nowhere" / "tiny").mkdir(parents=True)
    (tmp_path / "nowhere" / "tiny" / "config.json").write_text("{}")
    return RunFolder(folder)


def dumped(run: RunFolder, out: Path, log: TrainedLog, steps: range = range(4, 5), asked: str = "4") -> Index:
    return make_dump(plan_dump(run, read(run.config), steps, asked, out), log)


def test_a_dump_is_whole_and_as_it_was_written(tmp_path: Path, run: RunFolder) -> None:
    index = dumped(run, tmp_path / "out", TrainedLog())
    assert verify(tmp_path / "out") == index
    assert (index.checkpoint, index.last, {name: topic.records for name, topic in index.topics.items()}) == (
        4,
        4,
        {"trajectories.v00000004": SLOTS + 1, "metrics": 1},
    )
    assert {"model/config.json", "config.yaml"} < index.files.keys()


def nothing_left(folder: Path) -> bool:
    return not [path for path in folder.iterdir() if "unfinished" in path.name or path.name == "out"]


def test_a_checkpoint_that_the_run_deletes_meanwhile_says_so(tmp_path: Path, run: RunFolder) -> None:
    log = TrainedLog(lambda: shutil.rmtree(run.path / "checkpoints", ignore_errors=True))
    with pytest.raises(WeirError, match=r"step_00000004 was deleted meanwhile \(checkpointing\.keep\); try again"):
        dumped(run, tmp_path / "out", log)
    assert nothing_left(tmp_path)


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path, run: RunFolder) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WeirError, match=r"file/out was not written: .*Not a directory"):
        dumped(run, tmp_path / "file" / "out", TrainedLog())


def test_a_full_disk_says_how_much_room_there_was(tmp_path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    def room(folder: Path) -> str:
        assert list(folder.glob(".out.unfinished"))  # afterwards there is more
        return f"{folder} has 0 of 9 MiB free"

    monkeypatch.setattr(shutil, "copyfile", full)
    monkeypatch.setattr(disk, "room", room)
    with pytest.raises(WeirError, match=r"out was not written: .*No space left on device.*; .* has 0 of 9 MiB free"):
        dumped(run, tmp_path / "out", TrainedLog())
    assert nothing_left(tmp_path)


def test_steps_that_were_not_trained_are_wrong_input(tmp_path: Path, run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"--steps='5\.\.6': the topics have no record of step 5: recorded are 4 to 4"):
        dumped(run, tmp_path / "out", TrainedLog(), range(5, 7), "5..6")  # 4 is on the way
    assert nothing_left(tmp_path)


def test_a_copy_that_failed_at_many_files_names_the_first() -> None:
    failed = shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'"), ("c", "d", "x")])
    assert explain(failed) == "[Errno 28] No space left on device: 'b' (and 1 more)"
    assert explain(OSError(28, "No space left on device", "b")) == "[Errno 28] No space left on device: 'b'"
