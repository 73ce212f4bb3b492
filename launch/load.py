"""`weir load`: a dump back as topics of a broker and a run's folder, to be looked at, replayed, or forked from.

Nothing is made before the whole dump was checked. Topics come first and are deleted again if something fails; the folder comes
last, by a rename. Records of versions get the offsets that they had, which their seals name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from broker_config.admin import TopicExists, create_topics, delete_topics
from broker_config.clients import make_admin, make_producer
from broker_config.deadline import Deadline
from broker_config.kafka_errors import broker_error, explain
from broker_config.stored import StoredRecord
from broker_config.topics import parse, specs_for_run, version_spec
from launch import config as run_config
from launch.config import RunFile
from learner.checkpoint import MANIFEST, Manifest, step_folder
from learner.replay import dump
from learner.replay.dump import DumpSource, Index
from learner.replay.plan import CHECKPOINTS, CONFIG, places_in
from schemas import config_file
from schemas.config import KafkaConfig
from schemas.errors import BrokerError, ConfigError, DeadlineExceeded, Problem

OF_THE_PLACE = ("bootstrap_servers", "security", "replication_factor", "min_insync_replicas")
"""Keys of the kafka section that say where a broker is and how it keeps its copies, not what is in the topics."""
WAITING = 1000  # records that are on their way at a time


@dataclass(frozen=True, slots=True)
class Loading:
    """A dump that was checked, and the run that it becomes."""

    folder: Path
    index: Index
    file: RunFile


def plan_load(folder: Path, run_id: str | None, overrides: Sequence[str]) -> Loading:
    """
    Raises:
        ConfigError: the dump is not as it was written, or the run cannot be made here.
    """
    index = dump.verify(folder)
    raw = config_file.read(folder / CONFIG)
    raw["run"] = {**(raw.get("run") or {}), "id": run_id or index.run_id, "dir": "runs"}
    raw["kafka"] = {key: value for key, value in (raw.get("kafka") or {}).items() if key not in OF_THE_PLACE}
    config_file.apply_overrides(raw, overrides)
    home = run_config.parse(raw).run_dir
    if home.exists():
        raise ConfigError([Problem("run.id", raw["run"]["id"], f"its folder {home} exists", "give another one: --run NEW_ID")])
    # The model comes along; where a key of it was given, that one holds.
    config_file.apply_overrides(raw, [one.replace(str(folder), str(home)) for one in places_in(folder)])
    config_file.apply_overrides(raw, overrides)
    file = run_config.parse(raw)
    other = {topic.partitions for name, topic in index.topics.items() if name != "metrics"} - {file.kafka.partitions}
    if other:
        why = f"the dumped topics have {other.pop()}"
        raise ConfigError([Problem("kafka.partitions", file.kafka.partitions, why, "leave it as it is in the dump")])
    return Loading(folder, index, file)


def load(loading: Loading, bootstrap: str) -> None:
    """Make the topics and the folder.

    Raises:
        ConfigError: the broker has topics of that run. BrokerError, DeadlineExceeded: they could not be made or filled.
    """
    file, index = loading.file, loading.index
    run_id, kafka = str(file.run.id), file.kafka
    client = make_admin(kafka, bootstrap, f"{run_id}.load-admin")
    specs = {spec.name: spec for spec in specs_for_run(run_id, kafka).values()}
    for name in index.topics:
        parsed = parse(f"{run_id}.{name}")
        if parsed is not None and parsed.version is not None and parsed.kind == "trajectories":
            specs[f"{run_id}.{name}"] = version_spec(run_id, "trajectories", parsed.version, kafka)
    control = specs.pop(f"{run_id}.control")
    home = file.run_dir
    part = home.with_name(f".{home.name}.unfinished")
    try:
        create_topics(client, [control], Deadline(kafka.timeout_s))  # the lock of the run id
    except TopicExists as taken:
        why = f"the broker has {taken.names[0]}"
        raise ConfigError([Problem("run.id", run_id, why, "give another one: --run NEW_ID")]) from taken
    try:
        ids = create_topics(client, specs.values(), Deadline(kafka.timeout_s))
        source = DumpSource(loading.folder, index)
        for name in index.topics:
            _fill(kafka, bootstrap, f"{run_id}.{name}", source.records(name), same_offsets=name != "metrics")
        _make_folder(loading, part, ids)
        part.rename(home)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        _take_back(client, [control.name, *specs], kafka.timeout_s)
        raise


def _take_back(client: AdminClient, names: Sequence[str], timeout_s: float) -> None:
    delete_topics(client, names, Deadline(timeout_s))


def _fill(kafka: KafkaConfig, bootstrap: str, topic: str, records: Iterable[StoredRecord], *, same_offsets: bool) -> None:
    """Write records in their order; each must get the offset that it had, unless only some of a topic's were dumped."""
    producer = make_producer(kafka, bootstrap, f"{topic}.load")
    failed: list[str] = []
    for record in records:

        def delivered(error: KafkaError | None, message: Message, record: StoredRecord = record) -> None:
            if error is not None:
                failed.append(f"{topic}[{record.partition}] offset {record.offset}: {explain(error)}")
            elif same_offsets and message.offset() != record.offset:
                failed.append(f"{topic}[{record.partition}]: offset {record.offset} became {message.offset()}")

        try:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                on_delivery=delivered,
            )
        except KafkaException as error:
            raise broker_error(f"writing {record.where} to {topic}", error) from error
        if len(producer) >= WAITING:
            _flush(kafka, topic, producer)
    _flush(kafka, topic, producer)
    if failed:
        raise BrokerError(f"{topic} could not be filled: {failed[0]}; does somebody else write to it?")


def _flush(kafka: KafkaConfig, topic: str, producer: object) -> None:
    left = producer.flush(kafka.timeout_s)  # type: ignore[attr-defined]
    if left:
        raise DeadlineExceeded(f"waited {kafka.timeout_s:g} s for {left} records of {topic} to be written; is the broker up?")


def _make_folder(loading: Loading, part: Path, ids: Mapping[str, str]) -> None:
    file, index, source = loading.file, loading.index, loading.folder
    shutil.rmtree(part, ignore_errors=True)
    (part / "logs").mkdir(parents=True)
    (part / CONFIG).write_text(run_config.dump(file), encoding="utf-8")
    for name in ("model", "tokenizer", CHECKPOINTS):
        if (source / name).is_dir():
            shutil.copytree(source / name, part / name)
    manifest_file = step_folder(part / CHECKPOINTS, index.checkpoint) / MANIFEST
    manifest = Manifest.model_validate_json(manifest_file.read_text(encoding="utf-8"))
    own = {name: topic_id for name, topic_id in ids.items() if name.removeprefix(f"{file.run.id}.") in index.topics}
    manifest_file.write_text(manifest.model_copy(update={"topic_ids": own}).model_dump_json(indent=1), encoding="utf-8")
    outcomes = DumpSource(source, index).outcomes()
    lines = [json.dumps({"step": step, **outcomes[step].metrics}) + "\n" for step in sorted(outcomes)]
    (part / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
