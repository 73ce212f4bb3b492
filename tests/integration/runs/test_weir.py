"""The `weir` command against a real broker: what it prints of records that lie there."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_config.clients.admin import create_topics
from broker_config.clients.reader import Record
from broker_config.clients.settings import make_admin, make_producer
from broker_config.deadline import Deadline
from broker_config.locate import ENVIRONMENT
from broker_config.topics import Topics, specs_for_run, version_spec
from launch.folders import make_run_folder
from launch.observe.watch import RunWatch
from schemas.config.file import build
from schemas.records.control import Claim, State, Stop
from schemas.records.metrics import StepMetrics
from schemas.records.status import Beat, Heartbeat, ProducerState
from tests.brokers import Broker
from tests.fakes.records.groups import make_group
from tests.fakes.records.make import UUID
from tests.fakes.records.runs import group_record, json_record, make_seal, raw_config, seal_record
from tests.pipeline import SCRIPTED, START_LIMIT_S, main_job
from tests.support import eventually
from tests.paths import ROOT

PRODUCER = "producer-0-abcd1234"
SEEN_S = 30.0

Weir = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def weir(broker: Broker, tmp_path: Path) -> Weir:
    """Runs the command in a folder of its own: `weir("show", "control")`."""

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, ENVIRONMENT: broker.bootstrap, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        script = "import sys; from launch.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run


def publish(broker: Broker, records: list[Record]) -> None:
    producer = make_producer(broker.kafka, broker.bootstrap, "test")
    failed: list[object] = []
    for record in records:
        producer.produce(
            record.topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers.items()),
            partition=record.partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert failed == []


@pytest.fixture
def run(broker: Broker, run_id: str) -> str:
    """A run of two versions: its topics, as its processes would have written them."""
    admin = make_admin(broker.kafka, broker.bootstrap, "test")
    specs = [
        *specs_for_run(run_id, broker.kafka).values(),
        *(version_spec(run_id, "trajectories", v, broker.kafka) for v in (0, 1)),
    ]
    create_topics(admin, specs, Deadline(30))
    records = [
        json_record("control", Claim(uuid=UUID, host="here", pid=7, config_digest="c0ffee"), run_id),
        json_record(
            "control",
            State(uuid=UUID, incarnation=0, config_digest="c0ffee", frontier=1, last_version=2, sealed_through=0),
            run_id,
        ),
        json_record(
            "status",
            Heartbeat(uuid=UUID, producer=PRODUCER, state=ProducerState.SERVING, held=1, engine_tokens=9, capacity=8),
            run_id,
        ),
        json_record(
            "metrics",
            StepMetrics(uuid=UUID, incarnation=0, step=0, seal_offset=2, config_digest="c", metrics={"train/reward": 0.5}),
            run_id,
        ),
        *(group_record(make_group(version=0, slot=slot, rewards=(1.0, 0.0)), run_id) for slot in (0, 1)),
        seal_record(make_seal(version=0), run_id),
        group_record(make_group(version=1, slot=0, rewards=(1.0, 1.0)), run_id),
    ]
    publish(broker, records)
    return run_id


@contextmanager
def watched(broker: Broker, run_id: str, **how: Any) -> Iterator[RunWatch]:
    watch = RunWatch(broker.kafka, broker.bootstrap, run_id, started=time.time(), **how)
    watch.start()
    try:
        yield watch
    finally:
        watch.close()


def beat_record(run_id: str, number: int) -> Record:
    beat = Beat(uuid=UUID, incarnation=0, number=number, counts={"late": 3})
    return dataclasses.replace(json_record("status", beat, run_id), key="beat")


def test_show_prints_a_line_a_record_in_the_order_of_the_log(weir: Weir, run: str) -> None:
    lines = weir("show", "trajectories", "--run", run).stdout.splitlines()
    topics = Topics(run)
    assert [line.split()[:2] for line in lines] == [
        ["==", topics.trajectories(0)],
        ["[0]@0", "v00000000/s0000/d0/a0"],
        ["[0]@1", "v00000000/s0001/d0/a0"],
        ["[0]@2", "v00000000/seal"],
        ["==", topics.trajectories(1)],
        ["[0]@0", "v00000001/s0000/d0/a0"],
    ]


def test_show_without_topics_prints_those_that_a_run_has_once(weir: Weir, run: str) -> None:
    out = weir("show", "--run", run).stdout
    for words in ("claim  by pid 7 on here", "state i0  F 1", f"heartbeat  {PRODUCER}", "step 0  reward 0.500"):
        assert words in out
    assert "seal" not in out.replace("sealed through", "")


def test_show_selects_by_version_key_and_number(weir: Weir, run: str) -> None:
    name = Topics(run).trajectories(0)
    assert len(weir("show", name, "--key", "/s0001/").stdout.splitlines()) == 1
    assert len(weir("show", name, "--limit", "2").stdout.splitlines()) == 2
    shown = [
        json.loads(line) for line in weir("show", "trajectories", "--version", "1", "--json", "--run", run).stdout.splitlines()
    ]
    assert [(record["topic"], record["value"]["request"]) for record in shown] == [
        (Topics(run).trajectories(1), "v00000001/s0000/d0/a0")
    ]


def test_the_latest_run_and_its_config_are_the_default(weir: Weir, run: str, tmp_path: Path) -> None:
    make_run_folder(build(raw_config(run={"name": "tiny", "dir": str(tmp_path / "runs")})).with_id(run))
    assert "claim  by pid 7" in weir("show", "control").stdout
    shown = weir("show", "trajectories", "--text", code=2).stderr
    assert "the tokenizer's folder is not here" in shown


def test_topics_lists_records_and_all_lists_runs(weir: Weir, run: str) -> None:
    lines = weir("topics", "--run", run).stdout.splitlines()
    assert f"{run}.trajectories.v00000000  1 partition(s)  3 records" in lines
    assert f"{run}.quarantine  1 partition(s)  0 records" in lines
    assert f"{run}  7 topics" in weir("topics", "--all").stdout.splitlines()


def test_status_is_a_snapshot_of_what_the_topics_hold(weir: Weir, run: str) -> None:
    out = weir("status", "--run", run).stdout
    for words in (f"{run}   step 1/2", "waiting for the groups of target version 1", PRODUCER, "serving", "0/8", "0.500"):
        assert words in out


def test_status_as_json_is_for_programs_and_shows_the_last_beat_of_a_run_that_is_over(
    weir: Weir, broker: Broker, run: str
) -> None:
    publish(broker, [beat_record(run, 41)])
    read = json.loads(weir("status", "--run", run, "--json").stdout)
    assert (read["run_id"], read["frontier"], read["sealed_through"], read["counts"]) == (run, 1, 0, {"late": 3})
    assert read["beat"]["number"] == 41


def test_nobody_is_asked_to_stop_a_run_that_has_no_learner_or_has_ended(weir: Weir, broker: Broker, run: str) -> None:
    shown = weir("stop", "--run", run, code=1).stderr
    assert f"no learner of run {run} is running" in shown and "--resume" in shown
    stop = Stop(reason="interrupted", version=1, resumable=True)
    publish(broker, [json_record("control", State(uuid=UUID, incarnation=0, config_digest="c0ffee", frontier=1, stop=stop), run)])
    assert "has stopped after 1 of ? steps: interrupted" in weir("stop", "--run", run).stdout
    assert "has stopped" in weir("drain", PRODUCER, "--run", run, code=1).stderr
    assert "operator" not in weir("show", "status", "--run", run).stdout


def test_a_run_that_only_has_its_topics_has_nobody_to_obey(weir: Weir, broker: Broker, run_id: str) -> None:
    admin = make_admin(broker.kafka, broker.bootstrap, "test")
    create_topics(admin, specs_for_run(run_id, broker.kafka).values(), Deadline(30))
    assert "no learner has claimed" in weir("stop", "--run", run_id, code=1).stderr


def reported_window(snapshot: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    return next(((snapshot, row) for row in snapshot["window"] if row["filled"] is not None), None)


@pytest.mark.timeout(600)
def test_a_running_run_is_looked_at_drained_and_stopped(weir: Weir, broker: Broker, tmp_path: Path) -> None:
    def snapshot() -> dict[str, Any]:
        read: dict[str, Any] = json.loads(weir("status", "--json").stdout)
        return read

    long = ("grpo.max_num_steps=100000", "producer.scripted={seconds_per_token: 0.2}")
    with main_job(broker.bootstrap, tmp_path / "runs", *SCRIPTED, *long) as job, watched(broker, job.run_id) as watch:
        # A command takes seconds, a minute on a busy machine: what is waited for is seen by a watch of the test's own.
        job.until(lambda: len(watch.snapshot().members) == 2, START_LIMIT_S, "two members")
        job.until_trained(1)
        # The beat and the state that one look finds may be of two moments; a second look is then needed.
        seen, row = job.until(lambda: reported_window(snapshot()), START_LIMIT_S, "an open version in the learner's last beat")
        first, second = seen["members"]
        assert row["unassigned"] + row["assigned"] + row["filled"] == 4
        assert seen["frontier"] in (row["version"], row["version"] - 1)
        assert {p["name"] for p in seen["producers"] if p["member"]} == {first, second}
        assert seen["rounds"][-1]["members"]
        assert (seen["uuid"], seen["beat"]["incarnation"]) == (watch.snapshot().uuid, seen["incarnation"])
        assert seen["beat"]["silent_s"] < 60

        # A learner that has only just claimed the run is waited for, which is shown.
        near = weir("drain", "nobody", code=2).stderr
        (error,) = [line for line in near.splitlines() if not line.startswith("waiting for ")]
        assert error.startswith("error: PRODUCER='nobody'") and f"members: {first}, {second}" in error
        drained = weir("drain", second).stdout
        assert f"producer {second} has left run {job.run_id}; members: {first}" in drained
        assert snapshot()["members"] == [first]

        stopped = weir("stop").stdout
        assert "steps: stopped by " in stopped and f"--resume {job.run_id}" in stopped
        run = job.end()
    assert run.code == 130 and f"run {run.run_id} stopped: stopped by " in run.output, run.output
    assert run.stop.reason.startswith("stopped by ") and run.stop.resumable and run.stop.ordered
    assert snapshot()["stop"]["resumable"]
    assert "has stopped" in weir("stop").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "control", "--run", "no-such-run"), "the broker does not have it"),
        (("show", "contrl", "--run", "no-such-run"), "not a topic of a run"),
        (("show", "control"), "start one with launch/run_cluster.sh"),
        (("topics", "--run", "no-such-run"), "the broker has no topics of it"),
        (("status", "--run", "no-such-run"), "the broker has no topics of it"),
        (("stop", "--run", "no-such-run"), "the broker has no topics of it"),
        (("drain", PRODUCER, "--run", "no-such-run"), "the broker has no topics of it"),
        (("check", "none.yaml"), "no such file"),
        (("export", "--step", "3", "out", "--run", "no-such-run"), "its folder is not on this machine"),
    ],
)
def test_wrong_input_is_one_plain_line(weir: Weir, arguments: tuple[str, ...], words: str) -> None:
    shown = weir(*arguments, code=2).stderr
    assert words in shown
    assert shown.startswith("error: ")


def test_a_check_needs_no_broker(weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw_config()))
    done = weir("check", "run.yaml", "grpo.max_num_steps=60")
    assert done.stdout == "run.yaml: ok\n"
    assert "grpo.num_prompts_per_step" in weir("check", "run.yaml", "learner.nproc=3", code=2).stderr


def test_the_watch_of_a_resumed_run_sees_nothing_of_its_earlier_end(broker: Broker, run_id: str) -> None:
    admin = make_admin(broker.kafka, broker.bootstrap, "test")
    create_topics(admin, specs_for_run(run_id, broker.kafka).values(), Deadline(30))
    stop = Stop(reason="interrupted", version=1, resumable=True)
    earlier = State(uuid=UUID, incarnation=0, config_digest="c", stop=stop)
    publish(broker, [json_record("control", earlier, run_id)])
    with watched(broker, run_id, resuming=True) as watch:
        watch.wait_for_control(SEEN_S)
        publish(broker, [json_record("control", Claim(uuid=UUID, host="h", pid=1, config_digest="c"), run_id)])
        eventually(lambda: watch.snapshot().claims, SEEN_S, "the claim to be seen")
        assert watch.snapshot().stop is None


def test_the_watch_finds_topics_that_are_made_later_and_follows_them(broker: Broker, run_id: str) -> None:
    with watched(broker, run_id) as watch:
        assert watch.snapshot().learner == "starting"
        create_topics(
            make_admin(broker.kafka, broker.bootstrap, "test"), specs_for_run(run_id, broker.kafka).values(), Deadline(30)
        )
        publish(broker, [json_record("control", Claim(uuid=UUID, host="h", pid=1, config_digest="c"), run_id)])
        eventually(lambda: watch.snapshot().claims, SEEN_S, "the claim to be seen")
        assert watch.caught_up.wait(SEEN_S)
        stop = Stop(reason="done", version=1, resumable=True, finished=True)
        publish(broker, [json_record("control", State(uuid=UUID, incarnation=0, config_digest="c", stop=stop), run_id)])
        eventually(lambda: watch.snapshot().stop == stop, SEEN_S, "the stop to be seen")
