"""`weir dump`: part of a run as one folder that needs no broker. The folder appears whole, by a rename, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from broker_config.stored import StoredRecord
from launch.config import RunFile
from launch.folders import RunFolder
from learner import checkpoint
from learner.checkpoint import Manifest
from learner.replay import dump
from learner.replay.dump import DumpedTopic, Index
from learner.replay.log import LogSource
from learner.replay.plan import CHECKPOINTS, CONFIG, nearest
from learner.replay.sealed import follow
from schemas.errors import ConfigError, Problem, RecordRefused, WeirError
from schemas.metrics import StepMetrics
from schemas.model_files import model_folder

MODEL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")


def make_dump(folder: RunFolder, file: RunFile, bootstrap: str, steps: range, out: Path) -> Index:
    """Write `steps` of a run, from the checkpoint at or below the first one on, to the folder `out`.

    Raises:
        ConfigError: `out` exists, or the run has not trained these steps.
        WeirError: no checkpoint, a topic that is gone, a record that is not the sealed one.
    """
    if out.exists():
        raise ConfigError([Problem("OUT", str(out), "exists", "give a folder that does not exist yet")])
    step, manifest, _ = nearest(folder.path / CHECKPOINTS, steps.start)
    n = file.grpo.num_prompts_per_step
    known = {name: topic_id for found in (*_manifests(folder), manifest) for name, topic_id in found.topic_ids.items()}
    source = LogSource(file.kafka, bootstrap, str(file.run.id), manifest.run, n, known)
    part = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        topics = _dump_topics(source, part, manifest, range(manifest.version, steps.stop), n)
        shutil.copyfile(folder.config, part / CONFIG)
        shutil.copytree(step, part / CHECKPOINTS / step.name)
        _copy_model(file, part)
        index = Index(
            run_id=str(file.run.id),
            uuid=manifest.run,
            config_digest=manifest.config_digest,
            prompts_per_step=n,
            checkpoint=manifest.version,
            last=steps.stop - 1,
            topics=topics,
        )
        whole = dump.seal_off(part, index)
        part.rename(out)
        return whole
    finally:
        source.close()
        shutil.rmtree(part, ignore_errors=True)


def _manifests(folder: RunFolder) -> Iterator[Manifest]:
    for path in folder.checkpoints:
        try:
            yield checkpoint.read(path)
        except WeirError:
            continue  # only topic ids are wanted of it


def _dump_topics(source: LogSource, part: Path, manifest: Manifest, steps: range, n: int) -> dict[str, DumpedTopic]:
    outcomes = source.outcomes()
    missing = [step for step in steps if step not in outcomes]
    if missing:
        have = f"recorded are {min(outcomes)} to {max(outcomes)}" if outcomes else "none is recorded"
        why = f"the run has not trained step {missing[0]}: {have}"
        raise ConfigError([Problem("--steps", f"{steps.start}..{steps.stop - 1}", why, "give steps that it has trained")])
    made = {}
    for version in steps:
        name = source.topics.trajectories(version)
        records = list(source.records(name))
        follow(records, name, run=manifest.run, version=version, prompts_per_step=n)  # what cannot be replayed is not dumped
        made[f"trajectories.v{version:08d}"] = _write(source, part, name, records)
    metrics = [record for record in source.records(source.topics.metrics) if _step(record) in steps]
    made["metrics"] = _write(source, part, source.topics.metrics, metrics)
    return made


def _write(source: LogSource, part: Path, name: str, records: Sequence[StoredRecord]) -> DumpedTopic:
    file = f"topics/{name.removeprefix(source.topics.prefix)}.msgpack"
    count = dump.write_records(part / file, name, records)
    info = source.topic(name)
    return DumpedTopic(file=file, topic_id=info.topic_id, partitions=info.partitions, records=count)


def _step(record: StoredRecord) -> int | None:
    try:
        return StepMetrics.from_bytes(record.value or b"").step
    except RecordRefused:
        return None


def _copy_model(file: RunFile, part: Path) -> None:
    """The model that the run started from: small beside a checkpoint, and nothing can be trained again without it."""
    _copy_files(model_folder(file.model.path), part / "model")
    if file.model.tokenizer is not None and Path(file.model.tokenizer).is_dir():
        _copy_files(Path(file.model.tokenizer), part / "tokenizer")


def _copy_files(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted({path for pattern in MODEL_FILES for path in source.glob(pattern)}):
        shutil.copyfile(path, target / path.name)  # the files of a hub's cache are links
