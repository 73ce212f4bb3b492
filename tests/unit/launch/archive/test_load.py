"""Loading a dump: what its config becomes, and which topics are taken back when something fails."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from broker_config.clients.admin import TopicExists
from broker_config.clients.stored import StoredRecord
from broker_config.topics import TopicSpec
from launch.archive.load import LoadPlan, load_dump, plan_load
from learner.checkpoint.folders import read as read_manifest
from learner.dump.index import DumpedTopic, Index, seal_off
from learner.dump.records import write_records
from schemas.config.file import build
from schemas.config.file import load_config as read
from schemas.errors import BrokerError, ConfigError, WeirError
from tests.fakes.learner.replays import save_checkpoint
from tests.fakes.records.make import UUID
from tests.fakes.records.runs import raw_config

VERSION = "trajectories.v00000004"


def make_dump(folder: Path, **changes: object) -> Path:
    """A dump of version 4 of a run `r`, with its model."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(build(raw_config(run={"name": "tiny", "id": "r"}, **changes)).to_yaml())
    save_checkpoint(folder, 4)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({"hidden_size": 64}))
    topics = {}
    for name in (VERSION, "metrics"):
        record = StoredRecord(f"r.{name}", 0, 0, 1, b"k", b"\x80" if name == VERSION else b"{}")
        write_records(folder / "topics" / f"{name}.msgpack", f"r.{name}", [record] if name == VERSION else [])
        topics[name] = DumpedTopic(file=f"topics/{name}.msgpack", topic_id="id", partitions=1, records=1)
    index = Index(run_id="r", uuid=UUID, config_digest="c", prompts_per_step=16, checkpoint=4, last=4, topics=topics)
    seal_off(folder, index)
    return folder


class Broker:
    """Topics in memory. `fails`: what goes wrong, by the name of the call; a `make` fails when all is made."""

    def __init__(self, *existing: str, fails: Mapping[str, BaseException] | None = None) -> None:
        self.there = set(existing)
        self.filled: list[str] = []
        self._fails = fails or {}

    def topics(self) -> list[str]:
        return sorted(name for name in self.there if name.startswith("new."))

    def make(self, specs: Iterable[TopicSpec]) -> dict[str, str]:
        names = [spec.name for spec in specs]
        existing = [name for name in names if name in self.there]
        self.there.update(names)
        if existing:
            raise TopicExists(existing)
        self._fail("make versions" if f"new.{VERSION}" in names else "make control")
        return {name: f"id-{name}" for name in names}

    def fill(self, topic: str, records: Iterable[StoredRecord], *, same_offsets: bool) -> None:
        self._fail("fill")
        assert topic in self.there
        self.filled += [f"{topic} {record.offset} {same_offsets}" for record in records]

    def delete(self, names: Sequence[str]) -> None:
        self._fail("delete")
        self.there -= set(names)

    def _fail(self, call: str) -> None:
        if call in self._fails:
            raise self._fails[call]


@pytest.fixture
def plan(tmp_path: Path) -> LoadPlan:
    return plan_load(make_dump(tmp_path / "dump"), "new", [f"run.dir={tmp_path / 'runs'}"])


def test_a_dump_becomes_topics_and_a_folder(tmp_path: Path, plan: LoadPlan) -> None:
    broker = Broker("other.control")
    load_dump(plan, broker)
    assert broker.filled == [f"new.{VERSION} 0 True"]
    home = tmp_path / "runs" / "new"
    assert read(home / "config.yaml").model.path == str(home / "model")
    ids = read_manifest(home / "checkpoints" / "step_00000004").topic_ids
    assert ids == {f"new.{VERSION}": f"id-new.{VERSION}", "new.metrics": "id-new.metrics"}


@pytest.mark.parametrize("name", ["here", "model", "a: b", "a #1", "[x", "über", 'a"b', "r"])
@pytest.mark.parametrize("dot", [False, True])
def test_the_model_comes_along_whatever_the_dump_and_the_runs_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dot: bool
) -> None:
    folder = make_dump(tmp_path / name)
    monkeypatch.chdir(folder)
    runs = json.dumps(str(tmp_path / name / "runs"), ensure_ascii=False)
    made = plan_load(Path(".") if dot else folder, "new", [f"run.dir={runs}"])
    assert made.config.model.path == str(tmp_path / name / "runs" / "new" / "model")
    assert made.config.model.build is None


def test_a_topic_that_was_there_is_neither_written_to_nor_deleted(plan: LoadPlan) -> None:
    broker = Broker(f"new.{VERSION}", "new.status", "other.control")
    with pytest.raises(ConfigError, match=r"run\.id='new': the broker has new\.status"):
        load_dump(plan, broker)
    assert (broker.there, broker.filled) == ({f"new.{VERSION}", "new.status", "other.control"}, [])


def test_a_taken_run_id_leaves_all_as_it_was(plan: LoadPlan) -> None:
    broker = Broker("new.control")
    with pytest.raises(ConfigError, match=r"the broker has new\.control"):
        load_dump(plan, broker)
    assert broker.there == {"new.control"}


def test_a_topic_that_somebody_makes_meanwhile_is_his(plan: LoadPlan) -> None:
    class Raced(Broker):
        def topics(self) -> list[str]:
            found = super().topics()
            if found:
                self.there.add("new.metrics")
            return found

    broker = Raced()
    with pytest.raises(TopicExists):
        load_dump(plan, broker)
    assert broker.there == {"new.metrics"}


def test_what_was_made_is_taken_back_when_it_cannot_be_filled(tmp_path: Path, plan: LoadPlan) -> None:
    broker = Broker("other.control", fails={"fill": BrokerError("no room")})
    with pytest.raises(BrokerError, match="no room"):
        load_dump(plan, broker)
    assert broker.there == {"other.control"}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("call", ["make control", "make versions", "fill"])
def test_whatever_is_interrupted_nothing_that_was_made_stays(tmp_path: Path, plan: LoadPlan, call: str) -> None:
    broker = Broker("other.control", fails={call: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        load_dump(plan, broker)
    assert broker.there == {"other.control"}
    assert not (tmp_path / "runs").exists()


def test_an_interrupt_after_the_last_move_takes_nothing_back(
    tmp_path: Path, plan: LoadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def cut(part: Path, home: Path) -> None:
        rename(part, home)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", cut)
    broker = Broker()
    with pytest.raises(KeyboardInterrupt):
        load_dump(plan, broker)
    assert f"new.{VERSION}" in broker.there and (tmp_path / "runs" / "new" / "config.yaml").is_file()


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("grpo.num_prompts_per_step=8", "grpo.num_prompts_per_step"),
        ("grpo={num_prompts_per_step: 8}", "grpo"),
        ("model.path=elsewhere", "model.path"),
        ("run.id=other", "run.id"),
        ("run.seed=1", "run.seed"),
        ("kafka={partitions: 1}", "kafka"),
    ],
)
def test_a_loaded_run_keeps_its_config(tmp_path: Path, override: str, key: str) -> None:
    with pytest.raises(ConfigError, match="a loaded run keeps its config") as caught:
        plan_load(make_dump(tmp_path / "dump"), "new", [f"run.dir={tmp_path / 'runs'}", "kafka.timeout_s=7", override])
    assert [problem.key for problem in caught.value.problems] == [key]


def test_a_dump_is_not_loaded_as_the_latest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.id='latest': latest is the link to the newest"):
        plan_load(make_dump(tmp_path / "dump"), "latest", [])


def test_the_first_failure_is_reported_even_when_nothing_can_be_taken_back(
    plan: LoadPlan, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(fails={"fill": BrokerError("no room"), "delete": BrokerError("the broker is away")})
    with caplog.at_level(logging.ERROR), pytest.raises(BrokerError, match="no room"):
        load_dump(plan, broker)
    assert "are left on the broker" in caplog.text and "the broker is away" in caplog.text


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path, plan: LoadPlan) -> None:
    (tmp_path / "runs").write_text("a file")
    broker = Broker()
    with pytest.raises(WeirError, match=r"the folder .*runs/new was not made: .* MiB free"):
        load_dump(plan, broker)
    assert broker.there == set()
