"""A dump that an earlier version of this program wrote (`tests/data/dump-1`): every format in it is still read, and written
alike.

Three steps of a model of three thousand parameters with the scripted engine. A test that fails here says that runs and dumps of
users can no longer be read: then the schema needs a new number, and the old one a reader. The dump itself is never made again.
"""

from __future__ import annotations

import hashlib
import math

import pytest

from broker_config.clients.stored import StoredRecord
from learner.checkpoint import folders
from learner.dispatcher.serving.intake import rules_of
from learner.dump.index import CONFIG, verify
from learner.dump.records import read_records
from learner.replay.sources.dump import DumpSource
from schemas.config.config import Config
from schemas.config.file import load_for_process
from schemas.records import group, seal
from schemas.records.control import DatasetFacts
from schemas.records.headers import as_mapping
from schemas.records.metrics import StepMetrics
from schemas.records.validity import accept
from tests.paths import ROOT

DUMP = ROOT / "tests" / "data" / "dump-1"
STEPS = range(3)


@pytest.fixture(scope="module")
def config() -> Config:
    return load_for_process(DUMP / CONFIG, [])


def records_of(version: int) -> list[StoredRecord]:
    return list(read_records(DUMP / "topics" / f"trajectories.v{version:08d}.msgpack"))


def test_every_file_is_as_it_was_written() -> None:
    index = verify(DUMP)
    assert (index.checkpoint, index.last, index.run_id) == (STEPS[0], STEPS[-1], "kept")


def test_its_config_is_the_same_config(config: Config) -> None:
    assert config.digest == verify(DUMP).config_digest


def test_its_checkpoint_is_read() -> None:
    manifest = folders.read(folders.step_folder(DUMP / "checkpoints", 0))
    assert (manifest.run, manifest.version) == (verify(DUMP).uuid, 0)


@pytest.mark.parametrize("version", STEPS)
def test_its_groups_are_fit_and_encoded_to_the_same_bytes(version: int, config: Config) -> None:
    rules = rules_of(config, verify(DUMP).uuid, DatasetFacts(rows=None, digest=""), vocab_size=1000)
    found = [record for record in records_of(version) if record.header("kind") == b"rollout"]
    assert len(found) == config.grpo.num_prompts_per_step
    for record in found:
        assert record.value is not None
        decoded, content = accept(record.value, as_mapping(record.headers), version, rules)
        assert group.encode(decoded) == record.value
        assert content.encode() == record.header("content_sha256")
        assert record.header("sha256") == hashlib.sha256(record.value).hexdigest().encode()
        assert str(decoded.request).encode() == record.key


@pytest.mark.parametrize("version", STEPS)
def test_its_seals_are_encoded_to_the_same_bytes(version: int, config: Config) -> None:
    (record,) = (record for record in records_of(version) if record.header("kind") == b"seal")
    assert record.value is not None
    n = config.grpo.num_prompts_per_step
    decoded = seal.decode(record.value, run=verify(DUMP).uuid, version=version, prompts_per_step=n)
    assert seal.encode(decoded) == record.value
    batch = DumpSource(DUMP, verify(DUMP)).batch(version)
    assert [hashlib.sha256(value).hexdigest() for value in batch.records] == [decoded.slots[slot].sha256 for slot in range(n)]


def test_its_metrics_are_encoded_to_the_same_bytes() -> None:
    found = list(read_records(DUMP / "topics" / "metrics.msgpack"))
    assert len(found) == len(STEPS)
    for step, record in zip(STEPS, found, strict=True):
        assert record.value is not None
        outcome = StepMetrics.from_bytes(record.value)
        assert (outcome.step, outcome.to_bytes()) == (step, record.value)
        assert math.isfinite(outcome.metrics["train/loss"]) and outcome.state_digest
