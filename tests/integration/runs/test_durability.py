"""Runs that go on after losses: checkpoints written while training goes on, disks that are full, topics that are gone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker_config.clients import admin
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline
from broker_config.topics import Topics, specs_for_run, version_spec
from learner.checkpoint import folders
from schemas.config.file import load_for_process
from schemas.config.kafka import KafkaConfig
from tests.brokers import Broker
from tests.fakes.learner.process_group import gloo  # noqa: F401 - a fixture
from tests.pipeline import SCRIPTED, FinishedRun, environment, main_job, resume_to_end, run_to_end
from tests.paths import ROOT

pytestmark = pytest.mark.timeout(600)

EVERY_STEP = ("checkpointing.save_period=1", "checkpointing.async_save=true")
KAFKA = KafkaConfig()


def roots(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def forget_checkpoints(folder: Path, above: int) -> None:
    """As if the run had died before it saved them."""
    for version in folders.versions(folder / "checkpoints"):
        if version > above:
            shutil.rmtree(folders.step_folder(folder / "checkpoints", version))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and "logs" not in p.parts}


def ends(bootstrap: str, run_id: str) -> dict[tuple[str, int], int]:
    """Where every topic of a run ends."""
    client = make_admin(KAFKA, bootstrap, "tests")
    found = admin.describe(client, admin.topics_of_run(client, run_id, Deadline(30)), Deadline(30))
    partitions = [(name, index) for name, info in found.items() for index in range(info.partitions)]
    return {where: bounds.end for where, bounds in admin.log_bounds(client, partitions, Deadline(30)).items()}


@pytest.fixture(scope="module")
def trained(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    run = run_to_end(broker.bootstrap, tmp_path_factory.mktemp("runs"), *SCRIPTED, *EVERY_STEP)
    assert run.code == 0, run.output
    return run


@pytest.mark.usefixtures("gloo")
def test_each_checkpoint_that_was_written_beside_training_holds_the_state_that_it_says(trained: FinishedRun) -> None:
    from learner.session import make_policy

    assert roots(trained.folder) == [f"step_{version:08d}" for version in range(5)]
    policy = make_policy(load_for_process(trained.folder / "config.yaml", []))
    digests = set()
    for version in range(5):
        folder = folders.step_folder(trained.folder / "checkpoints", version)
        policy.load(folder)
        assert policy.state_digest() == folders.read(folder).state_digest
        digests.add(policy.state_digest())
    assert len(digests) == 5


def test_a_learner_killed_while_its_checkpoint_is_written_goes_on_from_the_one_before(broker: Broker, tmp_path: Path) -> None:
    env = {"WEIR_FAILPOINTS": "learner.before_manifest=SIGKILL@3", "WEIR_FAILPOINTS_ONCE": str(tmp_path)}
    with main_job(broker.bootstrap, tmp_path, *SCRIPTED, *EVERY_STEP, env=env) as job:
        run = job.end()
    assert run.code == 0, run.output
    assert (tmp_path / "learner.before_manifest").exists()
    assert "learner-0 died (signal SIGKILL); it will be started again in 1 s (restart 1)" in run.output
    assert "restarts: learner-0 1\n" in run.output
    assert run.steps == [0, 1, 2, 3]
    assert roots(run.folder) == [f"step_{version:08d}" for version in range(5)]


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_one_clear_error(broker: Broker, tmp_path: Path) -> None:
    with main_job(broker.bootstrap, tmp_path, *SCRIPTED, file_bytes=300_000) as job:
        run = job.end()
    assert run.code == 1, run.output
    why = "the checkpoint of version 0 was not written: rank 0: [Errno 27] File too large"
    assert f"FAILED: the learner stopped the run: {why}" in run.output
    assert "MiB free; make room there" in run.output
    assert run.stop.reason.startswith(why) and run.stop.version == 0
    assert "Traceback" not in run.log("learner-0")
    assert roots(run.folder) == []


def learner(run: FinishedRun, *words: str) -> tuple[int, str]:
    """(exit code, log) of a learner that is started by hand and does not come to loading its model."""
    command = [sys.executable, "-m", "learner", "--config", str(run.folder / "config.yaml"), "--resume", *words]
    env = environment(run.bootstrap)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_checkpoint_whose_bytes_were_changed_is_named_and_not_tried_again(trained: FinishedRun) -> None:
    folder = folders.step_folder(trained.folder / "checkpoints", 4)
    (file, *_) = sorted(folder.rglob("*.distcp"), key=lambda path: path.stat().st_size, reverse=True)
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    code, errors = learner(trained)
    file.write_bytes(whole)
    assert code == 2  # the supervisor starts nothing again after wrong input
    assert f"checkpoint='{folder}': " in errors and "move the folder away to resume from the one before it" in errors


def test_a_checkpoint_of_another_run_is_named(trained: FinishedRun) -> None:
    manifest = folders.step_folder(trained.folder / "checkpoints", 4) / "manifest.json"
    own = manifest.read_text()
    manifest.write_text(json.dumps(json.loads(own) | {"run": "another"}))
    code, errors = learner(trained)
    manifest.write_text(own)
    assert code == 2
    assert (
        f"checkpoint='{manifest.parent}': it is of another run, uuid another; {trained.run_id} at {trained.bootstrap} has" in errors
    )


def test_lost_topics_are_named_and_nothing_is_changed_until_the_loss_is_accepted(trained: FinishedRun) -> None:
    client, topics = make_admin(KAFKA, trained.bootstrap, "tests"), Topics(trained.run_id)
    forget_checkpoints(trained.folder, above=1)
    lines = (trained.folder / "metrics.jsonl").read_text().splitlines()
    code, errors = learner(trained, "learner.optimizer.lr=0.5")
    assert code == 2
    assert "learner.optimizer.lr=0.5: cannot change in a resumed run: it was 0.002" in errors

    admin.delete_topics(client, [topics.trajectories(3)], Deadline(30))
    before = files(trained.folder), ends(trained.bootstrap, trained.run_id)
    code, errors = learner(trained)
    assert code == 1
    assert f"topic {topics.trajectories(3)} is gone" in errors
    assert "versions from 3 on are then generated and trained anew" in errors
    assert (files(trained.folder), ends(trained.bootstrap, trained.run_id)) == before

    admin.delete_topics(client, [topics.trajectories(2)], Deadline(30))
    (made,) = admin.create_topics(client, [version_spec(trained.run_id, "trajectories", 2, KAFKA)], Deadline(30)).values()
    code, errors = learner(trained)
    assert code == 1
    assert f"topic {topics.trajectories(2)} was deleted and made again: its id is {made}" in errors
    assert f"topic {topics.trajectories(3)} is gone" in errors

    run = resume_to_end(trained, "--accept-loss", "grpo.max_num_steps=5")
    assert run.code == 0, run.output
    assert run.log("learner-0").count("accepted loss: topic ") == 2
    steps = run.metrics()
    assert [line["step"] for line in steps] == [0, 1, 2, 3, 4]
    assert [json.dumps(line) for line in steps[:2]] == lines[:2]
    assert (trained.folder / "metrics.jsonl.lost.1").read_text().splitlines() == lines[2:]
    assert (steps[2]["resume/steps"], steps[2]["resume/differing"], steps[2]["resume/unrecorded"]) == (1.0, 0.0, 0.0)
    assert roots(trained.folder) == [f"step_{version:08d}" for version in range(6)]
    for version in range(2, 5):
        groups, seal = run.version_topic(version)
        assert len(seal.slots) == 4
        assert all(groups[entry.offset].oldest_version >= version - 1 for entry in seal.slots.values())


def test_a_run_whose_control_topic_is_empty_trains_what_came_after_its_checkpoint_anew(trained: FinishedRun) -> None:
    client, topics = make_admin(KAFKA, trained.bootstrap, "tests"), Topics(trained.run_id)
    forget_checkpoints(trained.folder, above=4)
    before, _ = trained.version_topic(4)
    admin.delete_topics(client, [topics.control], Deadline(30))
    admin.create_topics(client, [specs_for_run(trained.run_id, KAFKA)["control"]], Deadline(30))
    code, errors = learner(trained)
    assert code == 1
    assert f"topic {topics.control} holds no record of the run; of a run that was loaded from a dump only" in errors
    run = resume_to_end(trained, "--accept-loss", "grpo.max_num_steps=5")
    assert run.code == 0 and "started again" not in run.output, run.output
    assert [line["step"] for line in run.metrics()] == [0, 1, 2, 3, 4]
    assert (trained.folder / "metrics.jsonl.lost.2").exists()
    after, _ = run.version_topic(4)
    assert {group.run for group in after.values()} == {group.run for group in before.values()}
    assert {group.incarnation for group in after.values()} != {group.incarnation for group in before.values()}


@pytest.mark.nightly
def test_a_run_whose_whole_broker_is_lost_goes_on_from_its_checkpoint(trained: FinishedRun) -> None:
    client = make_admin(KAFKA, trained.bootstrap, "tests")
    forget_checkpoints(trained.folder, above=4)
    admin.delete_topics(client, admin.topics_of_run(client, trained.run_id, Deadline(30)), Deadline(30))
    code, errors = learner(trained)
    assert code == 1
    assert f"topic {trained.run_id}.control is gone" in errors
    assert ends(trained.bootstrap, trained.run_id) == {}
    run = resume_to_end(trained, "--accept-loss", "grpo.max_num_steps=6")
    assert run.code == 0, run.output
    assert [line["step"] for line in run.metrics()] == [0, 1, 2, 3, 4, 5]
    found = folders.read(folders.step_folder(trained.folder / "checkpoints", 4))
    assert found.next_offsets.control <= ends(trained.bootstrap, trained.run_id)[f"{trained.run_id}.control", 0]
