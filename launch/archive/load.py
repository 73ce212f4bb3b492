"""`weir load`: a run made from a dump, as topics of a broker and a folder, to be looked at, replayed, or forked from.

Nothing is made before the whole dump was checked. Topics come first, and are deleted again whatever cuts the load short; the
folder comes last, by a rename, and then the load is complete. Invariant: a topic that existed before is never deleted or written
to. Records of versions get the offsets that they had, because their seals name them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker_config.clients.admin import TopicExists, create_topics, delete_topics, topics_of_run
from broker_config.clients.settings import make_admin, make_producer
from broker_config.clients.stored import StoredRecord
from broker_config.deadline import Deadline
from broker_config.topics import TopicSpec, parse, specs_for_run, version_spec
from launch.archive.refill import TopicRefill
from learner.checkpoint.folders import step_folder
from learner.checkpoint.manifest import MANIFEST, Manifest
from learner.dump.index import CHECKPOINTS, CONFIG, Index, verify
from learner.metrics_log import line_of
from learner.replay.plan import places_in
from learner.replay.sources.dump import DumpSource
from schemas.config import file as config_file
from schemas.config.config import Config
from schemas.config.kafka import KafkaConfig
from schemas.disk import file_errors
from schemas.errors import ConfigError, Problem, WeirError

log = logging.getLogger(__name__)

OF_THE_PLACE = ("bootstrap_servers", "security", "replication_factor", "min_insync_replicas")
"""Keys of the kafka section that are about the broker and its replicas, not about what is in the topics."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A dump that was checked, and the run that it becomes."""

    folder: Path
    index: Index
    config: Config


class LoadTarget(Protocol):
    """The broker that a dump is loaded to, as far as one run is concerned. All methods raise `BrokerError` and
    `DeadlineExceeded`."""

    def topics(self) -> list[str]:
        """The topics of the run that exist."""

    def make(self, specs: Iterable[TopicSpec]) -> dict[str, str]:
        """Create topics; returns their ids by name. Raises TopicExists."""

    def fill(self, topic: str, records: Iterable[StoredRecord], *, same_offsets: bool) -> None: ...

    def delete(self, names: Sequence[str]) -> None: ...


class BrokerTarget:
    """A real broker."""

    def __init__(self, kafka: KafkaConfig, bootstrap: str, run_id: str) -> None:
        self._kafka, self._bootstrap, self._run_id = kafka, bootstrap, run_id
        self._client = make_admin(kafka, bootstrap, f"{run_id}.load-admin")

    def topics(self) -> list[str]:
        return topics_of_run(self._client, self._run_id, self._deadline())

    def make(self, specs: Iterable[TopicSpec]) -> dict[str, str]:
        return create_topics(self._client, specs, self._deadline())

    def fill(self, topic: str, records: Iterable[StoredRecord], *, same_offsets: bool) -> None:
        producer = make_producer(self._kafka, self._bootstrap, f"{topic}.load")
        TopicRefill(producer, topic, self._kafka.timeout_s, same_offsets=same_offsets).write(records)

    def delete(self, names: Sequence[str]) -> None:
        delete_topics(self._client, names, self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline(self._kafka.timeout_s)


def plan_load(folder: Path, run_id: str | None, overrides: Sequence[str]) -> LoadPlan:
    """
    Raises:
        ConfigError: the dump is damaged, or the run cannot be made here.
    """
    _check_overrides(overrides)
    index = verify(folder)
    raw = config_file.read(folder / CONFIG)
    raw["run"] = {**(raw.get("run") or {}), "id": run_id or index.run_id, "dir": "runs"}
    raw["kafka"] = {key: value for key, value in (raw.get("kafka") or {}).items() if key not in OF_THE_PLACE}
    config_file.apply_overrides(raw, overrides)
    home = config_file.build(raw).folder
    if home.exists():
        raise ConfigError([Problem("run.id", raw["run"]["id"], f"its folder {home} exists", "give another one: --run NEW_ID")])
    config_file.apply_overrides(raw, places_in(folder, home))  # the dump brings its model along
    config = config_file.build(raw)
    other = {topic.partitions for name, topic in index.topics.items() if name != "metrics"} - {config.kafka.partitions}
    if other:
        why = f"the dumped topics have {other.pop()}"
        raise ConfigError([Problem("kafka.partitions", config.kafka.partitions, why, "leave it as it is in the dump")])
    return LoadPlan(folder, index, config)


def load_dump(plan: LoadPlan, target: LoadTarget) -> None:
    """Make the topics and the folder.

    Raises:
        ConfigError: the broker has topics of that run. WeirError: something could not be made or filled.
    """
    config, index = plan.config, plan.index
    run_id, home = str(config.run.id), config.folder
    specs = _specs(plan)
    control = specs.pop(f"{run_id}.control")
    part = home.with_name(f".{home.name}.unfinished")
    _check_free(run_id, target.topics())
    placing = False
    asked_for = [control.name]  # from here on: the broker may create a topic even if the call is interrupted
    try:
        target.make([control])  # the lock of the run id
        _check_free(run_id, [name for name in target.topics() if name != control.name])
        asked_for += specs
        ids = target.make(specs.values())
        source = DumpSource(plan.folder, index)
        for name in index.topics:
            target.fill(f"{run_id}.{name}", source.records(name), same_offsets=name != "metrics")
        with file_errors(f"the folder {home} was not made", home.parent):
            _make_folder(plan, part, ids)
            placing = True
            part.rename(home)
    except BaseException as error:
        if placing and home.is_dir() and not part.exists():
            raise  # interrupted after the folder was put in place: everything is there
        foreign = error.names if isinstance(error, TopicExists) else ()
        _take_back(target, [name for name in asked_for if name not in foreign])
        shutil.rmtree(part, ignore_errors=True)
        if control.name in foreign:
            raise _taken(run_id, foreign) from error
        raise


def _specs(plan: LoadPlan) -> dict[str, TopicSpec]:
    run_id, kafka = str(plan.config.run.id), plan.config.kafka
    specs = {spec.name: spec for spec in specs_for_run(run_id, kafka).values()}
    for name in plan.index.topics:
        parsed = parse(f"{run_id}.{name}")
        if parsed is not None and parsed.version is not None and parsed.kind == "trajectories":
            specs[f"{run_id}.{name}"] = version_spec(run_id, "trajectories", parsed.version, kafka)
    return specs


def _check_overrides(overrides: Sequence[str]) -> None:
    """A loaded run keeps the config that its batches were sealed under; only where it is stored may change."""
    keys = [override.partition("=")[0] for override in overrides if "=" in override]
    why = "a loaded run keeps its config: the batches were sealed under it"
    fixes = {"run.id": "give --run NEW_ID", "kafka": "give single keys: kafka.KEY=value"}
    other = "leave it out; weir replay --set trains a loaded step with another one, run.fork_from starts a run with another one"
    problems = [
        Problem(key, None, why, fixes.get(key, other)) for key in keys if key != "run.dir" and not key.startswith("kafka.")
    ]
    if problems:
        raise ConfigError(problems)


def _check_free(run_id: str, names: Sequence[str]) -> None:
    if names:
        raise _taken(run_id, names)


def _taken(run_id: str, names: Sequence[str]) -> ConfigError:
    return ConfigError([Problem("run.id", run_id, f"the broker has {names[0]}", "give another one: --run NEW_ID")])


def _take_back(target: LoadTarget, names: Sequence[str]) -> None:
    """After a failure, which is the one to report. Topics that do not exist are no error."""
    try:
        if names:
            target.delete(names)
    except WeirError as error:
        log.error("topics that were created are left on the broker: %s: %s", ", ".join(names), error)
    except BaseException:
        log.error("interrupted again: topics that were created may be left on the broker: %s", ", ".join(names))
        raise


def _make_folder(plan: LoadPlan, part: Path, ids: Mapping[str, str]) -> None:
    config, index, source = plan.config, plan.index, plan.folder
    shutil.rmtree(part, ignore_errors=True)
    (part / "logs").mkdir(parents=True)
    (part / CONFIG).write_text(config.to_yaml(), encoding="utf-8")
    for name in ("model", "tokenizer", CHECKPOINTS):
        if (source / name).is_dir():
            shutil.copytree(source / name, part / name)
    manifest_file = step_folder(part / CHECKPOINTS, index.checkpoint) / MANIFEST
    manifest = Manifest.model_validate_json(manifest_file.read_text(encoding="utf-8"))
    own = {name: topic_id for name, topic_id in ids.items() if name.removeprefix(f"{config.run.id}.") in index.topics}
    manifest_file.write_text(manifest.model_copy(update={"topic_ids": own}).model_dump_json(indent=1), encoding="utf-8")
    recorded = DumpSource(source, index).step_metrics()
    lines = [line_of(step, recorded[step].metrics) for step in sorted(recorded)]
    (part / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
