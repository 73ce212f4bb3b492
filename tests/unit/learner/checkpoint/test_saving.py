"""Checkpoint folders: whole or not there, whatever happens on the way."""

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from learner.checkpoint import folders as checkpoint
from learner.checkpoint.folders import Manifest, Offsets
from schemas.errors import FileError, WeirError
from tests.fakes import saved
from tests.fakes.facts import FACTS


def manifest(version: int, *, state: str = "s", incarnation: int = 3) -> Manifest:
    return Manifest(
        run="uuid",
        version=version,
        incarnation=incarnation,
        topic_ids={"r.control": "a"},
        next_offsets=Offsets(control=4, status=9, requests={0: 2, 1: 0}),
        state_digest=state,
        weights_digest="w",
        config_digest="c",
        determinism=FACTS,
    )


def alone(value: int) -> list[int]:
    return [value]


def write(folder: Path) -> None:
    (folder / "megatron").mkdir()
    (folder / "megatron" / "__0_0.distcp").write_bytes(b"weights")


def save(root: Path, version: int, **keys: object) -> Path:
    return saved.save(root, manifest(version, **keys), write)  # type: ignore[arg-type]


def test_a_saved_checkpoint_is_found_with_its_manifest(tmp_path: Path) -> None:
    folder = save(tmp_path / "checkpoints", 12)
    assert folder.name == "step_00000012"
    assert checkpoint.latest(tmp_path / "checkpoints") == (folder, checkpoint.read(folder))
    found = checkpoint.read(folder)
    assert found.files == {"megatron/__0_0.distcp": 7}
    assert found.model_copy(update={"files": {}, "created": ""}) == manifest(12).model_copy(update={"created": ""})
    assert [path.name for path in folder.parent.iterdir()] == ["step_00000012"]


def test_the_newest_is_taken_up_to_a_bound(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") is None
    for version in (10, 2, 0):
        save(tmp_path, version)
    assert [found[1].version for bound in (None, 9, 0) if (found := checkpoint.latest(tmp_path, at_most=bound))] == [10, 2, 0]


def damage(folder: Path, how: str) -> None:
    data = folder / "megatron" / "__0_0.distcp"
    match how:
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "half a manifest":
            (folder / "manifest.json").write_text((folder / "manifest.json").read_text()[:40])
        case "no data":
            data.unlink()
        case "short data":
            data.write_bytes(b"wei")
        case "another step's":
            record = json.loads((folder / "manifest.json").read_text())
            (folder / "manifest.json").write_text(json.dumps(record | {"version": 1}))


DAMAGES = ("no manifest", "half a manifest", "no data", "short data", "another step's")


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_named(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1)
    damage(save(tmp_path, 2), how)
    with caplog.at_level(logging.WARNING):
        found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found[1].version == 1
    assert "step_00000002" in caplog.text


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_makes_place_for_a_new_one(how: str, tmp_path: Path) -> None:
    damage(save(tmp_path, 2), how)
    save(tmp_path, 2, incarnation=8)
    assert checkpoint.read(tmp_path / "step_00000002").incarnation == 8
    assert (tmp_path / "step_00000002.bad.8").is_dir()


def test_a_whole_checkpoint_of_the_same_state_is_kept(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 2, incarnation=8)
    assert checkpoint.read(tmp_path / "step_00000002").incarnation == 3
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000002"]


def test_a_whole_checkpoint_of_another_state_is_never_replaced(tmp_path: Path) -> None:
    save(tmp_path, 2, state="one")
    with pytest.raises(WeirError, match="holds state one of run uuid, this learner has state other"):
        save(tmp_path, 2, state="other")
    assert checkpoint.read(tmp_path / "step_00000002").state_digest == "one"


@pytest.mark.parametrize("stage", ["write", "confirm"])
def test_a_save_that_fails_leaves_no_checkpoint_and_the_next_one_works(stage: str, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise WeirError("a higher claim")

    steps = {"write": write, "confirm": lambda: None} | {stage: fail}
    with pytest.raises(WeirError, match="a higher claim"):
        saved.save(tmp_path, manifest(2), steps["write"], confirm=steps["confirm"])  # type: ignore[arg-type]
    assert checkpoint.latest(tmp_path) is None
    save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000002"]


def test_other_ranks_write_their_part_and_no_manifest(tmp_path: Path) -> None:
    tmp = tmp_path / "step_00000002.3.tmp"
    tmp.mkdir()
    waited = []
    checkpoint.begin(tmp_path, 2, 3, write, rank=1, gather=lambda value: waited.append(value) or [0, value]).finish()  # type: ignore[func-returns-value]
    assert waited == [0, 0]
    assert not (tmp / "manifest.json").exists()
    assert (tmp / "megatron" / "__0_0.distcp").exists()


def test_prune_keeps_the_newest_whole_ones(tmp_path: Path) -> None:
    for version in range(5):
        save(tmp_path, version)
    damage(tmp_path / "step_00000004", "no manifest")
    assert checkpoint.prune(tmp_path, None) == []
    assert checkpoint.prune(tmp_path, 2) == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000002", "step_00000003", "step_00000004"]
    with pytest.raises(ValueError, match="at least one"):
        checkpoint.prune(tmp_path, 0)


def test_what_one_rank_cannot_write_fails_on_all(tmp_path: Path) -> None:
    saving = checkpoint.begin(tmp_path, 2, 3, write, rank=0, gather=alone)
    saving._gather = lambda value: [value, 1]  # the other rank has failed
    with pytest.raises(FileError, match="the checkpoint of version 2 was not written: rank 1 could not write its files"):
        saving.finish()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileError, match="rank 0 could not write"):
        checkpoint.begin(tmp_path, 2, 3, write, rank=1, gather=lambda value: [1, value])


class Slow:
    """A rank's files, written when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written = False
        self.error: OSError | None = None

    def wait(self, timeout_s: float) -> bool:
        return self.written

    def finish(self) -> None:
        if self.error is not None:
            raise self.error
        write(self.folder)


def begun(root: Path, version: int) -> tuple[checkpoint.Saving, Slow]:
    made: list[Slow] = []
    saving = checkpoint.begin(
        root,
        version,
        3,
        lambda folder: made.append(Slow(folder)) or made[-1],  # type: ignore[func-returns-value]
        rank=0,
        gather=alone,
    )
    return saving, made[0]


def test_a_checkpoint_that_is_being_written_is_none_until_it_is_finished(tmp_path: Path) -> None:
    save(tmp_path, 1)
    saving, slow = begun(tmp_path, 2)
    assert not saving.wait(0.0)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found[1].version == 1
    slow.written = True
    assert saving.wait(0.0)
    saving.finish()
    assert checkpoint.latest(tmp_path) == found
    assert checkpoint.read(saving.publish(manifest(2))).version == 2


@pytest.mark.parametrize("part", ["begin", "finish", "publish"])
def test_a_full_disk_is_one_error_with_folder_and_room_and_leaves_nothing(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(folder: Path) -> None:
        write(folder)
        raise full

    def fail_at_once(*_: object) -> None:
        raise full

    says = rf"the checkpoint of version 2 was not written: .*No space left on device; {tmp_path} has \d+ of \d+ MiB free"
    with pytest.raises(FileError, match=says):
        if part == "begin":
            checkpoint.begin(tmp_path, 2, 3, fail, rank=0, gather=alone)
        saving, slow = begun(tmp_path, 2)
        if part == "finish":
            slow.error = full
        saving.finish()
        monkeypatch.setattr(checkpoint, "_write_manifest", fail_at_once)
        saving.publish(manifest(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_what_earlier_incarnations_left_unfinished_is_removed_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path, 1)
    kept = ["step_00000002.7.tmp", "step_00000002.9.tmp", "step_00000001.bad.3", "notes.tmp"]
    for name in ("step_00000002.3.tmp", "step_00000000.deleted.tmp", *kept):
        (tmp_path / name).mkdir()
    assert checkpoint.sweep(tmp_path, 7) == ["step_00000000.deleted.tmp", "step_00000002.3.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["step_00000001", *kept])
    assert checkpoint.sweep(tmp_path / "none", 7) == []


def test_a_manifest_is_replaced_and_the_state_stays(tmp_path: Path) -> None:
    folder = save(tmp_path, 2)
    there = checkpoint.read(folder)
    checkpoint.rewrite_manifest(folder, there.model_copy(update={"topic_ids": {"r.control": "b"}}))
    assert checkpoint.read(folder) == there.model_copy(update={"topic_ids": {"r.control": "b"}})
