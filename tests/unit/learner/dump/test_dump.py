"""The files of a dump: what is written is read back, and any change is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config.clients.stored import StoredRecord
from learner.dump.index import DumpedTopic, Index, seal_off, verify
from learner.dump.records import read_records, write_records
from learner.replay.sources.dump import DumpSource
from schemas.errors import ConfigError, WeirError
from schemas.records import group as groups
from schemas.records.headers import of_group
from tests.fakes.records.groups import make_group
from tests.fakes.records.make import UUID

NAME = "trajectories.v00000012"
TOPIC = f"r.{NAME}"
FILE = f"topics/{NAME}.msgpack"

RECORDS = st.builds(
    StoredRecord,
    topic=st.just(TOPIC),
    partition=st.integers(0, 255),
    offset=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(-1, 2**62),
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3).map(tuple),
)


@given(st.lists(RECORDS, max_size=5))
def test_records_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, records: list[StoredRecord]) -> None:
    path = tmp_path_factory.mktemp("dump") / "topic.msgpack"
    assert write_records(path, TOPIC, records) == len(records)
    assert list(read_records(path)) == records


def make_dump(folder: Path) -> Path:
    """A dump of one topic of two groups."""
    records = []
    for slot in (0, 1):
        group = make_group(12, slot)
        value = groups.encode(group)
        records.append(StoredRecord(TOPIC, 0, slot, 1, str(group.request).encode(), value, tuple(of_group(group, value))))
    write_records(folder / FILE, TOPIC, records)
    (folder / "config.yaml").write_text("run: {}\n")
    topics = {NAME: DumpedTopic(file=FILE, topic_id="id", partitions=1, records=2)}
    index = Index(run_id="r", uuid=UUID, config_digest="c", prompts_per_step=2, checkpoint=12, last=12, topics=topics)
    seal_off(folder, index)
    return folder


def test_a_whole_dump_is_verified_and_read(tmp_path: Path) -> None:
    folder = make_dump(tmp_path / "d")
    index = verify(folder)
    assert sorted(index.files) == ["config.yaml", FILE]
    assert [record.offset for record in DumpSource(folder, index).records(NAME)] == [0, 1]
    with pytest.raises(WeirError, match=r"holds versions 12 to 12, no topic trajectories\.v00000013"):
        DumpSource(folder, index).batch(13)


def problems(folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        verify(folder)
    return [str(problem) for problem in caught.value.problems]


def test_one_other_byte_in_a_record_is_found_and_the_record_named(tmp_path: Path) -> None:
    folder = make_dump(tmp_path / "d")
    data = bytearray((folder / FILE).read_bytes())
    data[-len(data) // 4] ^= 1
    (folder / FILE).write_bytes(data)
    (found,) = problems(folder)
    assert f"{FILE}: has sha256" in found
    assert f"the record {TOPIC}[0] offset 1 (v00000012/s0001/d0/a0) does not hash to its header sha256" in found


def test_every_damaged_or_missing_file_is_named_at_once(tmp_path: Path) -> None:
    folder = make_dump(tmp_path / "d")
    (folder / "config.yaml").write_text("run: {seed: 1}\n")
    (folder / FILE).unlink()
    found = problems(folder)
    assert len(found) == 2
    assert "config.yaml: has sha256" in found[0] and f"{FILE}: is missing" in found[1]


def test_a_file_that_was_not_dumped_is_named(tmp_path: Path) -> None:
    folder = make_dump(tmp_path / "d")
    (folder / "checkpoints" / "step_00000012").mkdir(parents=True)
    (folder / "checkpoints" / "step_00000012" / "common.pt").write_bytes(b"a pickle")
    (folder / "model").symlink_to(tmp_path)
    found = problems(folder)
    assert len(found) == 2
    assert "step_00000012/common.pt: is not named in index.json; move it away" in found[0] and "model: is not named" in found[1]


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret", "topics/../../secret", "topics//x"])
def test_an_index_that_names_what_lies_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    folder = make_dump(tmp_path / "d")
    index = json.loads((folder / "index.json").read_text())
    for change in (
        {"files": {**index["files"], name: index["files"][FILE]}},
        {"topics": {NAME: {**index["topics"][NAME], "file": name}}},
    ):
        (folder / "index.json").write_text(json.dumps({**index, **change}))
        (found,) = problems(folder)
        assert f"index.json names {name!r}, which is no file of the dump" in found


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "has no index.json"), ("{", "index.json is not readable"), ('{"format": "weir.dump/9"}', "format Input should be")],
)
def test_a_folder_of_another_form_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    folder = make_dump(tmp_path / "d")
    (folder / "index.json").unlink()
    if text is not None:
        (folder / "index.json").write_text(text)
    (found,) = problems(folder)
    assert words in found


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert "no such folder" in problems(tmp_path / "none")[0]


def test_a_file_that_holds_no_records_says_so(tmp_path: Path) -> None:
    path = tmp_path / "topic.msgpack"
    for data in (b"", b"\x01", b"\xc1", b"\x82\xa6schema\xa1x\xa5topic\xa1t"):
        path.write_bytes(data)
        with pytest.raises(WeirError, match=r"topic\.msgpack"):
            list(read_records(path))
