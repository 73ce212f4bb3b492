"""Steps of a real run trained again, from its topics, from a dump, and after a dump was loaded elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker_config.clients.admin import create_topics, delete_topics
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.topics import Topics, version_spec
from learner.checkpoint.folders import read, step_folder
from learner.dump.index import seal_off, verify
from learner.dump.records import read_records, write_records
from schemas.config.kafka import KafkaConfig
from tests.brokers import Broker
from tests.pipeline import SCRIPTED, FinishedRun, run_to_end, weir
from tests.support import new_id

pytestmark = pytest.mark.timeout(600)

GROUPS = ("grpo.num_generations_per_prompt=16", "learner.train_micro_batch_size=16")  # some of them get a reward


@pytest.fixture(scope="module")
def trained(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Four steps with checkpoints of versions 0, 2 and 4."""
    runs = tmp_path_factory.mktemp("runs")
    run = run_to_end(broker.bootstrap, runs, *SCRIPTED, *GROUPS, "checkpointing.save_period=2")
    assert run.code == 0, run.output
    return run


@pytest.fixture(scope="module")
def dumped(trained: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dump") / "steps-3"
    shown = weir(trained.bootstrap, "dump", "--run", trained.folder, "--steps", "3..3", out).stdout
    assert "steps 2 to 3 from checkpoint 2" in shown
    return out


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def compared(out: str) -> dict[int, tuple[str, str]]:
    """(verdict, state digest) by step."""
    rows = [line.split() for line in out.splitlines() if line.startswith("step ")]
    return {int(row[1]): (row[2], row[row.index("state") + 1]) for row in rows}


def test_every_step_comes_out_as_recorded_and_nothing_of_the_run_is_touched(trained: FinishedRun) -> None:
    before = files(trained.folder)
    out = weir(trained.bootstrap, "replay", "--run", trained.folder, "--step", "1", "--to", "3").stdout
    found = compared(out)
    assert [found[step][0] for step in range(4)] == ["equal"] * 4  # step 0 on the way
    saved = {version: read(step_folder(trained.folder / "checkpoints", version)).state_digest for version in (2, 4)}
    assert found[1][1] == saved[2][:12]
    assert found[3][1] == saved[4][:12]
    assert any("grad_norm 0.0" not in line for line in out.splitlines() if line.startswith("step "))
    assert files(trained.folder) == before


def test_a_changed_config_shows_what_moves_from_its_step_on(trained: FinishedRun) -> None:
    change = "learner.optimizer.lr=0.004"
    out = weir(trained.bootstrap, "replay", "--run", trained.folder, "--step", "3", "--set", change).stdout
    before, _, after = out.partition("step 3  ")
    assert compared(before).keys() == {2}  # as it was, up to the step
    assert "the state after it is another one" in after
    assert [line.split()[1:4] for line in after.splitlines() if line.split()[0] == "lr"] == [["0.002", "->", "0.004"]]


def test_a_group_is_shown_with_text_versions_and_both_log_probabilities(trained: FinishedRun) -> None:
    groups, seal = trained.version_topic(3)
    group = groups[seal.slots[1].offset]
    out = weir(trained.bootstrap, "replay", "--run", trained.folder, "--group", "v00000003/s0001").stdout
    assert f"v00000003/s0001/d{seal.slots[1].draw}/a{seal.slots[1].attempt}  row {group.row}" in out
    rows = [line.split() for line in out.splitlines() if len(line.split()) == 8 and line.split()[0].isdigit()]
    assert len(rows) == sum(len(t.tokens) for t in group.trajectories)
    assert [int(row[1]) for row in rows] == [token for t in group.trajectories for token in t.tokens.tolist()]
    assert {int(row[4]) for row in rows} == {span.version for t in group.trajectories for span in t.spans}


def test_a_dump_is_replayed_without_a_broker(dumped: Path) -> None:
    out = weir("127.0.0.1:1", "replay", "--from", dumped, "--step", "3").stdout
    assert [verdict for verdict, _ in compared(out).values()] == ["equal", "equal"]


def test_a_dump_with_one_other_byte_is_refused_by_name(trained: FinishedRun, dumped: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(dumped, bad)
    topic = bad / "topics" / "trajectories.v00000003.msgpack"
    data = bytearray(topic.read_bytes())
    data[len(data) // 2] ^= 1
    topic.write_bytes(data)
    runs = tmp_path / "runs"
    for words in (("replay", "--from", bad, "--step", "3"), ("load", bad, "--run", new_id(), f"run.dir={runs}")):
        errors = weir(trained.bootstrap, *words, code=2).stderr
        assert "trajectories.v00000003.msgpack: has sha256" in errors
        assert f"{trained.run_id}.trajectories.v00000003[0] offset" in errors
    assert not runs.exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--step", "9"), "have no record of step 9: recorded are 0 to 3"),
        (("--step", "2", "--set", "loss_fn.ratio_clip_maxx=1"), "did you mean ratio_clip_max?"),
    ],
)
def test_what_is_not_there_is_one_plain_line(trained: FinishedRun, words: tuple[str, ...], why: str) -> None:
    assert why in weir(trained.bootstrap, "replay", "--run", trained.folder, *words, code=2).stderr


@pytest.fixture
def loaded(own_broker: Callable[..., LocalBroker], dumped: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(bootstrap, folder): the dump on a fresh broker, under another id."""
    bootstrap = own_broker().start(Deadline(120))
    run_id, runs = new_id(), tmp_path / "runs"
    weir(bootstrap, "load", dumped, "--run", run_id, f"run.dir={runs}")
    yield bootstrap, runs / run_id


def test_a_loaded_run_is_replayed_and_its_missing_topics_are_named(
    loaded: tuple[str, Path], dumped: Path, tmp_path: Path
) -> None:
    bootstrap, folder = loaded
    assert "v00000003/seal" in weir(bootstrap, "show", "trajectories", "--version", "3", "--run", folder).stdout
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [2, 3]
    out = weir(bootstrap, "replay", "--run", folder, "--step", "3").stdout
    assert [verdict for verdict, _ in compared(out).values()] == ["equal", "equal"]
    again = weir(bootstrap, "load", dumped, "--run", folder.name, f"run.dir={tmp_path / 'others'}", code=2).stderr
    assert f"the broker has {folder.name}.control" in again
    replays = ("replay", "--run", folder, "--step", "3")
    admin, topic = make_admin(KafkaConfig(), bootstrap, "test"), Topics(folder.name).trajectories(2)
    delete_topics(admin, [topic], Deadline(30))
    assert f"the broker has no topic {topic}" in weir(bootstrap, *replays, code=1).stderr
    create_topics(admin, [version_spec(folder.name, "trajectories", 2, KafkaConfig())], Deadline(30))
    assert f"topic {topic} is another one than the run's" in weir(bootstrap, *replays, code=1).stderr


def test_a_loaded_record_that_is_not_the_sealed_one_is_named(trained: FinishedRun, dumped: Path, tmp_path: Path) -> None:
    """As if a broker gave other bytes: the files of the dump are in order, a record in them is not."""
    bad = tmp_path / "bad"
    shutil.copytree(dumped, bad)
    topic = bad / "topics" / "trajectories.v00000002.msgpack"
    records = list(read_records(topic))
    value = records[1].value or b""
    records[1] = replace(records[1], value=value[:50] + bytes([value[50] ^ 1]) + value[51:])
    write_records(topic, records[1].topic, records)
    (bad / "index.json").unlink()
    seal_off(bad, verify(dumped))
    run_id, runs = new_id(), tmp_path / "runs"
    weir(trained.bootstrap, "load", bad, "--run", run_id, f"run.dir={runs}")
    errors = weir(trained.bootstrap, "replay", "--run", runs / run_id, "--step", "2", code=1).stderr
    assert f"{run_id}.trajectories.v00000002[0] offset 1 (v00000002/s" in errors
    assert "is not the record that was sealed" in errors


def test_a_fork_starts_with_the_state_of_the_other_run(trained: FinishedRun, tmp_path: Path) -> None:
    fork = f"run.fork_from={{run: {trained.folder}, step: 2}}"
    changed = ("learner.optimizer.lr=0.004", "grpo.max_num_steps=1", fork)
    run = run_to_end(trained.bootstrap, tmp_path, *SCRIPTED, *GROUPS, *changed)
    assert run.code == 0, run.output
    first = read(step_folder(run.folder / "checkpoints", 0))
    there = read(step_folder(trained.folder / "checkpoints", 2))
    assert (first.state_digest, first.weights_digest) == (there.state_digest, there.weights_digest)
    assert first.run != there.run
    assert [line["train/lr"] for line in run.metrics()] == [0.004]


@pytest.mark.nightly
def test_two_processes_are_replayed_by_two(broker: Broker, tmp_path: Path) -> None:
    run = run_to_end(broker.bootstrap, tmp_path, *SCRIPTED, *GROUPS, "learner.nproc=2", "grpo.max_num_steps=2")
    assert run.code == 0, run.output
    out = weir(broker.bootstrap, "replay", "--run", run.folder, "--step", "0", "--to", "1").stdout
    assert [verdict for verdict, _ in compared(out).values()] == ["equal", "equal"]
