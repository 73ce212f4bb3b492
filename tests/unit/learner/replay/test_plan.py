"""Replays without a model: following seals, comparing, planning."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker_config.clients.stored import StoredRecord
from learner.checkpoint.determinism import different_facts
from learner.replay.changes import FREE_KEYS, FREE_SECTIONS, check_changes
from learner.replay.compare import OF_DTYPE, StepFigures, StepVerdict, changes, compare, reasons_for_tolerance
from learner.replay.plan import GroupKey, ReplayRequest, places_in, plan_replay
from learner.replay.sources.sealed import SealedBatch, check_trained, config_note, follow, last_step_metrics
from learner.replay.tokens import lines, record_of
from schemas.config.config import key_paths
from schemas.config.file import apply_overrides
from schemas.config.grpo import GrpoConfig
from schemas.config.loss import ClippedPgConfig
from schemas.errors import ConfigError, WeirError
from schemas.records import group as groups
from schemas.records import seal as seals
from schemas.records.headers import of_group, of_seal
from schemas.records.metrics import StepMetrics
from schemas.records.seal import Seal, SealedSlot
from tests.fakes.learner.facts import FACTS
from tests.fakes.learner.replays import run_folder
from tests.fakes.records.groups import make_group, make_multi_turn
from tests.fakes.records.make import UUID

TOPIC = "r.trajectories.v00000012"


# --- following a seal --------------------------------------------------------------------------------------------------------


def stored(offset: int, value: bytes, headers: Sequence[Any] = (), key: str = "k", partition: int = 0) -> StoredRecord:
    return StoredRecord(TOPIC, partition, offset, 1, key.encode(), value, tuple(headers))


def version_log(slots: int = 2) -> list[StoredRecord]:
    """Groups of all slots in reverse order, a late one of slot 0, the seal, and a second seal that names the late one."""
    records = []
    entries = {}
    for offset, slot in enumerate(reversed(range(slots))):
        group = make_group(12, slot)
        value = groups.encode(group)
        records.append(stored(offset, value, of_group(group, value), str(group.request)))
        entries[slot] = SealedSlot(0, 0, 0, offset, hashlib.sha256(value).hexdigest(), groups.content_sha256(group))
    late = make_group(12, 0, attempt=1)
    value = groups.encode(late)
    records.append(stored(slots, value, of_group(late, value), str(late.request)))
    other = {**entries, 0: SealedSlot(0, 1, 0, slots, hashlib.sha256(value).hexdigest(), groups.content_sha256(late))}
    for offset, sealed in ((slots + 1, entries), (slots + 2, other)):
        seal = Seal(UUID, 4, "c0ffee", 12, sealed)
        records.append(stored(offset, seals.encode(seal), of_seal(seal, seals.encode(seal))))
    return records


def batch_of(records: Sequence[StoredRecord], slots: int = 2) -> SealedBatch:
    return follow(records, TOPIC, run=UUID, version=12, prompts_per_step=slots)


def test_the_first_seal_is_followed_in_slot_order() -> None:
    batch = batch_of(version_log())
    assert batch.seal_offset == 3
    assert [groups.decode(record).request.slot for record in batch.records] == [0, 1]
    assert groups.decode(batch.records[0]).request.attempt == 0


def test_a_seal_that_is_not_well_formed_is_passed_over() -> None:
    records = version_log()
    records[3] = stored(3, b"\x80", records[3].headers)
    assert batch_of(records).seal_offset == 4


def test_a_topic_without_a_seal_says_what_stood_in_its_place() -> None:
    with pytest.raises(WeirError, match=r"v00000012 has no seal: version 12 was not trained"):
        batch_of(version_log()[:3])
    with pytest.raises(WeirError, match=r"no well-formed seal \(offset 3: .*\)"):
        batch_of([*version_log()[:3], stored(3, b"\x80", [("kind", b"seal")])])


def test_a_record_with_another_byte_is_named_with_its_place_and_slot() -> None:
    records = version_log()
    value = bytearray(records[1].value or b"")
    value[len(value) // 2] ^= 1
    records[1] = stored(1, bytes(value), records[1].headers)
    with pytest.raises(WeirError, match=r"v00000012\[0\] offset 1 \(v00000012/s0000/d0/a0\) is not the record that was sealed"):
        batch_of(records)


def test_a_record_that_is_gone_is_named() -> None:
    with pytest.raises(WeirError, match=r"v00000012\[0\] offset 0 \(v00000012/s0001/d0/a0\) is gone"):
        batch_of(version_log()[1:])


def step_record(step: int, uuid: str = UUID, **metrics: float) -> StepMetrics:
    return StepMetrics(uuid=uuid, incarnation=0, step=step, seal_offset=4, config_digest="c", metrics=metrics)


def test_the_last_record_of_each_step_of_the_run_counts() -> None:
    all_steps = [
        step_record(0, "f" * 32, loss=9.0),
        step_record(0, loss=1.0),
        step_record(1, loss=2.0),
        step_record(0, loss=3.0),
    ]
    found = last_step_metrics([stored(at, one.to_bytes()) for at, one in enumerate(all_steps)], UUID)
    assert {step: one.metrics["loss"] for step, one in found.items()} == {0: 3.0, 1: 2.0}


def test_steps_that_were_not_trained_are_named_with_those_that_were() -> None:
    check_trained(range(2, 4), {2: step_record(2), 3: step_record(3)}, "--steps", "2..3", "x")
    with pytest.raises(ConfigError, match=r"--steps='2\.\.4': the topics have no record of step 4: recorded are 2 to 3"):
        check_trained(range(2, 5), {2: step_record(2), 3: step_record(3)}, "--steps", "2..4", "the topics")


def test_a_batch_that_was_sealed_under_another_config_is_noted(tmp_path: Path) -> None:
    batch = batch_of(version_log())
    assert config_note(batch, "c0ffee", tmp_path) is None
    note = "note: step 12 was sealed under the config of digest c0ffee, it is trained under decaf"
    assert config_note(batch, "decaf", tmp_path) == note
    (tmp_path / "config.c0ffee.yaml").touch()
    assert config_note(batch, "decaf", tmp_path) == f"{note}; {tmp_path / 'config.c0ffee.yaml'} is what it was then"


# --- comparing ---------------------------------------------------------------------------------------------------------------


def figures(loss: float = 0.5, state: str | None = "aa" * 32, weights: str = "ww", **metrics: float) -> StepFigures:
    return StepFigures({"loss": loss, "grad_norm": 2.0, **metrics}, state, weights)


def test_equal_to_the_last_bit_is_equal() -> None:
    found = compare(12, figures(), figures(), None)
    assert (found.verdict, found.line) == (
        StepVerdict.EQUAL,
        "step 12  equal    loss 0.5  grad_norm 2.0  state aaaaaaaaaaaa  weights ww",
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (figures(loss=math.nextafter(0.5, 1)), "loss 0.5000000000000001, recorded 0.5"),
        (figures(state="bb" * 32), "state bbbbbbbbbbbb, recorded aaaaaaaaaaaa"),
        (figures(weights="xx"), "weights xx, recorded ww"),
        (figures(reward=0.25), "reward 0.25, recorded 0.5"),
    ],
)
def test_any_difference_is_named_with_both_values(other: StepFigures, words: str) -> None:
    found = compare(12, figures(reward=0.5), other, None)
    assert found.verdict is StepVerdict.DIFFERS
    assert words in found.line


def test_what_only_the_record_has_does_not_count() -> None:
    assert compare(0, figures(waited=1.0), figures(), None).verdict is StepVerdict.EQUAL


@pytest.mark.parametrize(
    ("recorded", "replayed", "words"),
    [
        (figures(), figures(kl=3.0), "kl 3.0, recorded not finite"),
        (
            figures(kl=3.0),
            StepFigures.of({"loss": 0.5, "grad_norm": 2.0, "train/kl": math.nan}, "aa" * 32, "ww"),
            "kl not finite, rec",
        ),
        (figures(state=None), figures(), "state aaaaaaaaaaaa, recorded none"),
        (figures(), figures(state=None), "state none, recorded aaaaaaaaaaaa"),
    ],
)
def test_what_only_one_side_has_of_what_a_replay_makes_is_a_difference(
    recorded: StepFigures, replayed: StepFigures, words: str
) -> None:
    found = compare(0, recorded, replayed, None)
    assert found.verdict is StepVerdict.DIFFERS and not found.verdict.good
    assert words in found.line


def test_a_step_without_a_record_is_not_good() -> None:
    found = compare(0, None, figures(), None)
    assert (found.verdict, found.verdict.good) == (StepVerdict.UNRECORDED, False)


def test_a_loss_that_is_not_finite_must_be_so_again() -> None:
    skipped = StepFigures.of({"train/loss": float("nan"), "grad_norm": float("inf")}, None, None)
    assert compare(0, skipped, skipped, None).verdict is StepVerdict.EQUAL
    assert "loss 0.5, recorded not finite" in compare(0, skipped, figures(), None).line


def test_within_a_tolerance_digests_and_lesser_metrics_do_not_count() -> None:
    tolerance = OF_DTYPE["float32"]
    near = figures(loss=0.5004, state="bb" * 32, reward=1.0)
    assert compare(0, figures(reward=0.5), near, tolerance).verdict is StepVerdict.CLOSE
    assert "loss 0.5004 (recorded 0.5)" in compare(0, figures(), near, tolerance).line
    assert compare(0, figures(), figures(loss=0.51), tolerance).verdict is StepVerdict.DIFFERS


def test_a_counterfactual_lists_what_moved_the_loss_first() -> None:
    moved = changes(3, figures(clip=0.1, lr=0.002), figures(loss=0.25, state="bb" * 32, clip=0.2, lr=0.002))
    assert moved == [
        "step 3  2 of 4 metrics differ, the state after it is another one",
        "  loss  0.5 -> 0.25  -0.25",
        "  clip  0.1 -> 0.2  +0.1",
    ]


def test_a_state_that_was_not_recorded_is_not_called_the_same() -> None:
    assert changes(3, figures(state=None), figures(state=None)) == [
        "step 3  0 of 2 metrics differ, the state after it was not recorded"
    ]


def test_facts_that_differ_are_named_with_both_values() -> None:
    here = FACTS.model_copy(update={"cpu_capability": "AVX512", "threads": 2})
    assert different_facts([FACTS], FACTS) == []
    assert different_facts([FACTS, FACTS], here) == ["cpu_capability AVX512, recorded AVX2", "threads 2, recorded 1"]


def test_bits_are_compared_on_an_unchanged_cpu_only() -> None:
    gpu = FACTS.model_copy(update={"device": "H200"})
    loose = FACTS.model_copy(update={"deterministic": False})
    assert reasons_for_tolerance([FACTS], FACTS) == []
    assert reasons_for_tolerance([gpu], gpu) == ["sums on a GPU (H200) have no fixed order"]
    assert reasons_for_tolerance([loose], loose) == ["learner.deterministic is false"]


# --- planning ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "runs", {0: 1, 4: 1, 8: 2})


def test_a_replay_starts_at_the_nearest_checkpoint_and_knows_the_facts_up_to_the_next(folder: Path) -> None:
    plan = plan_replay(ReplayRequest(folder, 6))
    assert (plan.manifest.version, plan.first, plan.last, plan.changed) == (4, 6, 6, None)
    assert [facts.threads for facts in plan.facts] == [1, 2]
    assert plan_replay(ReplayRequest(folder, 2)).manifest.version == 0
    assert [facts.threads for facts in plan_replay(ReplayRequest(folder, 2, 3)).facts] == [1, 1]
    assert plan.topic_ids == {"r.trajectories.v00000004": "id-4", "r.trajectories.v00000008": "id-8"}


def test_a_damaged_checkpoint_is_passed_over_with_a_note_that_names_it(folder: Path) -> None:
    (folder / "checkpoints" / "step_00000004" / "manifest.json").write_text("{")
    plan = plan_replay(ReplayRequest(folder, 6))
    assert plan.manifest.version == 0
    assert len(plan.notes) == 1 and "step_00000004/manifest.json cannot be read" in plan.notes[0]


def test_without_a_whole_checkpoint_the_damaged_ones_are_named(folder: Path) -> None:
    (folder / "checkpoints" / "step_00000000" / "data").unlink()
    with pytest.raises(WeirError, match=r"no whole checkpoint of version 3 or lower: .*step_00000000/data is missing"):
        plan_replay(ReplayRequest(folder, 3))


def test_a_step_below_all_checkpoints_names_the_lowest(folder: Path) -> None:
    for version in (0, 4):
        (folder / "checkpoints" / f"step_{version:08d}").rename(folder / f"away-{version}")
    with pytest.raises(WeirError, match="give --step 8 or higher"):
        plan_replay(ReplayRequest(folder, 3))


def test_changes_that_a_step_depends_on_make_a_counterfactual_and_others_do_not(folder: Path) -> None:
    clip = "loss_fn.ratio_clip_max=0.28"
    plan = plan_replay(ReplayRequest(folder, 4, overrides=[clip, "logger.wandb=true"]))
    assert plan.changed is not None and plan.changed.loss_fn == ClippedPgConfig(ratio_clip_max=0.28)
    assert plan.config.loss_fn == ClippedPgConfig()
    assert plan.config.logger.wandb and plan.changed.logger.wandb
    assert list(plan.notes) == ["logger.wandb=true changes nothing that a step depends on"]
    assert plan.start_config is plan.changed
    assert plan_replay(ReplayRequest(folder, 5, overrides=[clip])).start_config.loss_fn == ClippedPgConfig()
    assert plan_replay(ReplayRequest(folder, 4, overrides=["grpo.val_period=7"])).changed is None


SEALED = (
    *("grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=2", "grpo.use_dynamic_sampling=true", "grpo={}"),
    *("run.seed=1", "run.id=x", "run={id: x}", "model.dtype=bfloat16", "model.build=null"),
    *("data.train=x", "producer.count=7", "generation.temperature=2", "environment.name=x", "dispatch.max_draws=1"),
)


@pytest.mark.parametrize("change", SEALED)
def test_a_key_under_which_the_batch_would_be_another_is_refused(folder: Path, change: str) -> None:
    with pytest.raises(ConfigError, match="the batch is the sealed one") as caught:
        plan_replay(ReplayRequest(folder, 4, overrides=["loss_fn.ratio_clip_max=0.28", change]))
    assert [problem.key for problem in caught.value.problems] == [change.partition("=")[0]]


def test_every_key_is_free_or_of_the_sealed_batch() -> None:
    def free(key: str) -> bool:
        try:
            check_changes([f"{key}=1"])
        except ConfigError:
            return False
        return True

    keys = [key for key in key_paths() if free(key) and key.partition(".")[0] not in FREE_SECTIONS]
    assert keys == sorted(FREE_KEYS)


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({}, "--step"),
        ({"step": 6, "to": 5}, "--to"),
        ({"group": "v12"}, "--group"),
        ({"group": "v00000004/s0001", "step": 5}, "--step"),
        ({"group": "v00000004/s0016"}, "--group"),
        ({"group": "v00000004/s0001", "overrides": ["loss_fn.ratio_clip_max=0.3"]}, "--set"),
        ({"step": 5, "overrides": ["learner.nproc=2"]}, "--set"),
        ({"step": 5, "overrides": ["loss_fn.ratio_clip_maxx=0.3"]}, "loss_fn.ratio_clip_maxx"),
        ({"step": 5, "overrides": ["loss_fn"]}, "loss_fn"),
    ],
)
def test_wrong_input_names_what_is_wrong(folder: Path, asked: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_replay(ReplayRequest(folder, **asked))
    assert [problem.key for problem in caught.value.problems] == [key]


def test_wrong_input_is_reported_as_it_was_typed() -> None:
    trained = dict.fromkeys(range(13), step_record(0))
    for request, words in (
        (ReplayRequest(Path(), 20), "--step=20: T have no record of step 20: recorded are 0 to 12"),
        (ReplayRequest(Path(), 12, 20), "--to=20: T have no record of step 13: recorded are 0 to 12"),
        (
            ReplayRequest(Path(), group="v00000022/s0000"),
            "--group='v00000022/s0000': T have no record of step 22: recorded are 0 to 12",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            for option, value, steps in request.steps:
                check_trained(steps, trained, option, value, "T")
        assert str(caught.value) == f"{words}; give steps that the run has trained"


def test_another_layout_is_fine_from_a_checkpoint_on(folder: Path) -> None:
    assert plan_replay(ReplayRequest(folder, 4, overrides=["learner.nproc=2"])).start_config.learner.nproc == 2


# --- one group ---------------------------------------------------------------------------------------------------------------


def test_a_group_is_shown_token_by_token() -> None:
    group = make_group(12, trajectories=(make_multi_turn(12), make_multi_turn(12, rewards=0.25)))
    learner = [[-0.5, -1.5, -0.5, -2.0, 0.0, 0.0, -0.125]] * 2
    shown = list(lines(group, learner, GrpoConfig(normalize_rewards=False), lambda ids: f"<{' '.join(map(str, ids))}>"))
    assert shown[0].startswith("v00000012/s0003/d0/a0  row ")
    assert shown[1] == 'prompt "<1 5 6>"  3 tokens'
    assert shown[3].startswith("trajectory 0  reward 1.25  advantage +0.5000  stop")
    assert shown[7].split() == ["2", "9", '"<9>"', "1", "12", "-0.25000", "-0.50000", "0.77880"]
    assert shown[9].split() == ["4", "50", '"<50>"', "0", "-", "-", "-", "-"]


def test_the_group_that_is_meant_must_have_been_trained() -> None:
    batch = batch_of(version_log())
    assert record_of(batch, GroupKey.parse("v00000012/s0001")) == batch.records[1]
    assert record_of(batch, GroupKey.parse("v00000012/s0000/d0/a0")) == batch.records[0]
    with pytest.raises(ConfigError, match="slots are 0 to 1"):
        record_of(batch, GroupKey.parse("v00000012/s0002"))
    with pytest.raises(ConfigError, match="the seal names v00000012/s0000/d0/a0"):
        record_of(batch, GroupKey.parse("v00000012/s0000/d0/a1"))


@pytest.mark.parametrize("name", ["plain", "a: b", "a #1", "{x", "übermodel 😀", 'a"b'])
def test_the_model_of_a_dump_is_found_whatever_its_folder_is_called(tmp_path: Path, name: str) -> None:
    folder, raw = tmp_path / name, {"model": {"path": "x", "build": "tiny"}}
    for part in ("model", "tokenizer"):
        (folder / part).mkdir(parents=True)
    apply_overrides(raw, places_in(folder))
    assert raw["model"] == {"path": str(folder / "model"), "build": None, "tokenizer": str(folder / "tokenizer")}
    apply_overrides(raw, places_in(folder, Path("runs/new")))
    assert raw["model"]["path"] == "runs/new/model"
