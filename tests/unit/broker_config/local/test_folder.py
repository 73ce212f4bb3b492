"""What a local broker keeps on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_config.deadline import Deadline
from broker_config.local.folder import BrokerFolder, Instance
from broker_config.processes import ProcessId
from schemas.errors import FileError

INSTANCE = Instance(ProcessId(7, "boot/123"), 29092, 29093)
FAILED = """\
[2026-01-01 10:00:01,000] ERROR Error while appending records to r.control-0 in dir /data (o.a.k.LogDirFailureChannel)
java.io.IOException: No space left on device
"""


def test_the_process_that_was_started_last_is_remembered(tmp_path: Path) -> None:
    folder = BrokerFolder(tmp_path)
    assert folder.last_instance() is None
    folder.record(INSTANCE)
    assert folder.last_instance() == INSTANCE
    assert folder.bootstrap_file.read_text() == "127.0.0.1:29092\n"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 7}'])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "broker.json").write_text(text)
    assert BrokerFolder(tmp_path).last_instance() is None


def test_the_log_of_the_former_start_is_kept(tmp_path: Path) -> None:
    folder = BrokerFolder(tmp_path)
    folder.begin_log()
    folder.log_file.write_text("one\ntwo\n")
    assert folder.log_lines() == ["one", "two"]
    folder.begin_log()
    assert folder.log_lines() == []
    assert (tmp_path / "broker.log.1").read_text() == "one\ntwo\n"


def test_a_fault_is_shown_with_the_room_that_is_left(tmp_path: Path) -> None:
    folder = BrokerFolder(tmp_path)
    assert folder.fault() is None, "never started"
    folder.begin_log()
    assert folder.fault() is None
    folder.log_file.write_text(FAILED)
    fault = folder.fault()
    assert fault is not None
    assert fault.startswith("appending records to r.control-0 in dir /data: No space left on device; ")
    assert fault.endswith(" MiB free")


def test_a_folder_is_locked_while_a_broker_is_started_on_it(tmp_path: Path) -> None:
    folder = BrokerFolder(tmp_path)
    assert not folder.locked()
    with folder.lock(Deadline(0)):
        assert folder.locked()
    assert not folder.locked()


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="the local broker's folder cannot be written"):
        BrokerFolder(tmp_path / "file" / "broker").make()
