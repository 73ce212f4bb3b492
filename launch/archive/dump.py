"""`weir dump`: part of a run as a folder that needs no broker. The folder appears whole, by a rename, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker_config.clients.admin import TopicInfo
from broker_config.clients.stored import StoredRecord
from broker_config.topics import Topics
from launch.folders import RunFolder
from learner.checkpoint import folders
from learner.checkpoint.manifest import MANIFEST, Manifest
from learner.dump.index import CHECKPOINTS, CONFIG, DumpedTopic, Index, seal_off
from learner.dump.records import write_records
from learner.replay.plan import nearest
from learner.replay.sources.log import LogSource
from learner.replay.sources.sealed import check_trained, follow
from schemas.config.config import Config
from schemas.disk import explain, file_errors
from schemas.errors import ConfigError, Problem, RecordRefused, WeirError
from schemas.model_files import model_folder
from schemas.records.metrics import StepMetrics

MODEL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")


class DumpedLog(Protocol):
    """A run's topics; `learner.replay.sources.log.LogSource` is the real one."""

    topics: Topics
    where: str

    def step_metrics(self) -> Mapping[int, StepMetrics]: ...

    def records(self, topic: str) -> Iterable[StoredRecord]: ...

    def topic(self, topic: str) -> TopicInfo: ...


@dataclass(frozen=True, slots=True)
class DumpPlan:
    """What to dump: `steps` of a run, and all steps before them from the nearest checkpoint on. `asked`: the steps as a person
    wrote them."""

    folder: RunFolder
    config: Config
    steps: range
    asked: str
    out: Path
    checkpoint: Path
    manifest: Manifest

    @property
    def prompts_per_step(self) -> int:
        return self.config.grpo.num_prompts_per_step

    def open_log(self, bootstrap: str) -> LogSource:
        """The run's topics at its broker; the caller closes them."""
        known = {
            name: topic_id for found in (*_manifests(self.folder), self.manifest) for name, topic_id in found.topic_ids.items()
        }
        return LogSource(self.config.kafka, bootstrap, str(self.config.run.id), self.manifest.run, self.prompts_per_step, known)


def plan_dump(folder: RunFolder, config: Config, steps: range, asked: str, out: Path) -> DumpPlan:
    """
    Raises:
        ConfigError: `out` exists. WeirError: there is no checkpoint to start from.
    """
    if out.exists():
        raise ConfigError([Problem("OUT", str(out), "exists", "give a folder that does not exist yet")])
    step, manifest, _ = nearest(folder.path / CHECKPOINTS, steps.start)
    return DumpPlan(folder, config, steps, asked, out, step, manifest)


def make_dump(plan: DumpPlan, source: DumpedLog) -> Index:
    """Write the dump.

    Raises:
        ConfigError: the run has not trained these steps.
        WeirError: a topic that is gone, a record that is not the sealed one, a file that cannot be read or written.
    """
    out, manifest, n = plan.out, plan.manifest, plan.prompts_per_step
    part = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with file_errors(f"{out} was not written", out.parent):  # an error names the room before the part is deleted
            part.mkdir(parents=True)
            topics = _dump_topics(source, part, plan)
            shutil.copyfile(plan.folder.config, part / CONFIG)
            _copy_checkpoint(plan.checkpoint, part / CHECKPOINTS / plan.checkpoint.name)
            _copy_model(plan.config, part)
            index = Index(
                run_id=str(plan.config.run.id),
                uuid=manifest.run,
                config_digest=manifest.config_digest,
                prompts_per_step=n,
                checkpoint=manifest.version,
                last=plan.steps.stop - 1,
                topics=topics,
            )
            whole = seal_off(part, index)
            part.rename(out)
            return whole
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _manifests(folder: RunFolder) -> Iterator[Manifest]:
    for path in folder.checkpoints:
        try:
            yield folders.read(path)
        except WeirError:
            continue  # only its topic ids are wanted


def _dump_topics(source: DumpedLog, part: Path, plan: DumpPlan) -> dict[str, DumpedTopic]:
    steps = range(plan.manifest.version, plan.steps.stop)
    check_trained(steps, source.step_metrics(), "--steps", plan.asked, source.where)
    run, n = plan.manifest.run, plan.prompts_per_step
    made = {}
    for version in steps:
        name = source.topics.trajectories(version)
        records = list(source.records(name))
        follow(records, name, run=run, version=version, prompts_per_step=n)  # what cannot be replayed is not dumped
        made[f"trajectories.v{version:08d}"] = _write(source, part, name, records)
    metrics = [record for record in source.records(source.topics.metrics) if _step(record) in steps]
    made["metrics"] = _write(source, part, source.topics.metrics, metrics)
    return made


def _write(source: DumpedLog, part: Path, name: str, records: Sequence[StoredRecord]) -> DumpedTopic:
    file = f"topics/{name.removeprefix(source.topics.prefix)}.msgpack"
    count = write_records(part / file, name, records)
    info = source.topic(name)
    return DumpedTopic(file=file, topic_id=info.topic_id, partitions=info.partitions, records=count)


def _step(record: StoredRecord) -> int | None:
    try:
        return StepMetrics.from_bytes(record.value or b"").step
    except RecordRefused:
        return None


def _copy_checkpoint(source: Path, target: Path) -> None:
    """
    Raises:
        WeirError: the run, which continues, has deleted it meanwhile. OSError: it cannot be copied.
    """
    try:
        shutil.copytree(source, target)
    except OSError as error:
        if (source / MANIFEST).is_file():
            raise
        why = f"the checkpoint {source} was deleted meanwhile (checkpointing.keep); try again"
        raise WeirError(f"{why}: {explain(error)}") from error


def _copy_model(config: Config, part: Path) -> None:
    """The model that the run started from: small compared with a checkpoint, and no step can be trained again without it."""
    _copy_files(model_folder(config.model.path), part / "model")
    if config.model.tokenizer is not None and Path(config.model.tokenizer).is_dir():
        _copy_files(Path(config.model.tokenizer), part / "tokenizer")


def _copy_files(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted({path for pattern in MODEL_FILES for path in source.glob(pattern)}):
        shutil.copyfile(path, target / path.name)  # in a hub's cache, files are links
