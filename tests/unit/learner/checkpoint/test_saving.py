"""Writing a checkpoint: whole or not there, whatever happens on the way."""

import errno
import os
from pathlib import Path

import pytest

from learner.checkpoint import folders, saving
from learner.checkpoint.saving import Saving, begin_saving, sweep
from schemas.errors import FileError, WeirError
from tests.fakes.learner import saved
from tests.fakes.learner.checkpoints import DAMAGES, damage, manifest, save, write


def alone(value: int) -> list[int]:
    return [value]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_makes_room_for_a_new_one(how: str, tmp_path: Path) -> None:
    damage(save(tmp_path, 2), how)
    save(tmp_path, 2, incarnation=8)
    assert folders.read(tmp_path / "step_00000002").incarnation == 8
    assert (tmp_path / "step_00000002.bad.8").is_dir()


def test_a_whole_checkpoint_of_the_same_state_is_kept(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 2, incarnation=8)
    assert folders.read(tmp_path / "step_00000002").incarnation == 3
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000002"]


def test_a_whole_checkpoint_of_another_state_is_never_replaced(tmp_path: Path) -> None:
    save(tmp_path, 2, state="one")
    with pytest.raises(WeirError, match="holds state one of run uuid, this learner has state other"):
        save(tmp_path, 2, state="other")
    assert folders.read(tmp_path / "step_00000002").state_digest == "one"


@pytest.mark.parametrize("stage", ["write", "confirm"])
def test_a_save_that_fails_leaves_no_checkpoint_and_the_next_one_works(stage: str, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise WeirError("a higher claim")

    steps = {"write": write, "confirm": lambda: None} | {stage: fail}
    with pytest.raises(WeirError, match="a higher claim"):
        saved.save(tmp_path, manifest(2), steps["write"], confirm=steps["confirm"])  # type: ignore[arg-type]
    assert folders.latest(tmp_path) is None
    save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000002"]


def test_other_ranks_write_their_part_and_no_manifest(tmp_path: Path) -> None:
    tmp = tmp_path / "step_00000002.3.tmp"
    tmp.mkdir()
    waited = []
    begin_saving(tmp_path, 2, 3, write, rank=1, gather=lambda value: waited.append(value) or [0, value]).finish()  # type: ignore[func-returns-value]
    assert waited == [0, 0]
    assert not (tmp / "manifest.json").exists()
    assert (tmp / "megatron" / "__0_0.distcp").exists()


def test_what_one_rank_cannot_write_fails_on_all(tmp_path: Path) -> None:
    one = begin_saving(tmp_path, 2, 3, write, rank=0, gather=alone)
    one._gather = lambda value: [value, 1]  # the other rank has failed
    with pytest.raises(FileError, match="the checkpoint of version 2 was not written: rank 1 could not write its files"):
        one.finish()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileError, match="rank 0 could not write"):
        begin_saving(tmp_path, 2, 3, write, rank=1, gather=lambda value: [1, value])


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


def begun(root: Path, version: int) -> tuple[Saving, Slow]:
    made: list[Slow] = []
    one = begin_saving(
        root,
        version,
        3,
        lambda folder: made.append(Slow(folder)) or made[-1],  # type: ignore[func-returns-value]
        rank=0,
        gather=alone,
    )
    return one, made[0]


def test_a_checkpoint_that_is_being_written_is_none_until_it_is_finished(tmp_path: Path) -> None:
    save(tmp_path, 1)
    one, slow = begun(tmp_path, 2)
    assert not one.wait(0.0)
    found = folders.latest(tmp_path)
    assert found is not None
    assert found[1].version == 1
    slow.written = True
    assert one.wait(0.0)
    one.finish()
    assert folders.latest(tmp_path) == found
    assert folders.read(one.publish(manifest(2))).version == 2


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
            begin_saving(tmp_path, 2, 3, fail, rank=0, gather=alone)
        one, slow = begun(tmp_path, 2)
        if part == "finish":
            slow.error = full
        one.finish()
        monkeypatch.setattr(saving, "write_manifest", fail_at_once)
        one.publish(manifest(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_what_earlier_incarnations_left_unfinished_is_removed_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path, 1)
    kept = ["step_00000002.7.tmp", "step_00000002.9.tmp", "step_00000001.bad.3", "notes.tmp"]
    for name in ("step_00000002.3.tmp", "step_00000000.deleted.tmp", *kept):
        (tmp_path / name).mkdir()
    assert sweep(tmp_path, 7) == ["step_00000000.deleted.tmp", "step_00000002.3.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["step_00000001", *kept])
    assert sweep(tmp_path / "none", 7) == []
