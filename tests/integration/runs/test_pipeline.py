"""The main job, small: real broker, real vLLM and Megatron; the scripted engine where vLLM adds nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.pipeline import SCRIPTED, SMALL, FinishedRun, run_to_end

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def trained(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Five steps of the tiny task at A = 1 with two vLLM producers."""
    runs = tmp_path_factory.mktemp("runs")
    run = run_to_end(broker.bootstrap, runs, *SMALL, "grpo.max_num_steps=5", "grpo.max_val_samples=8")
    assert run.code == 0, run.output
    return run


def test_the_main_job_finishes_with_one_metrics_line_a_step(trained: FinishedRun) -> None:
    assert trained.steps == [0, 1, 2, 3, 4]
    assert (trained.stop.reason, trained.stop.version, trained.stop.finished) == ("all steps trained", 5, True)


def test_each_step_trains_exactly_n_slots_of_its_seal_and_no_token_is_too_old(trained: FinishedRun) -> None:
    for version in range(5):
        groups, seal = trained.version_topic(version)
        assert sorted(seal.slots) == [0, 1, 2, 3]
        assert len({entry.offset for entry in seal.slots.values()}) == 4
        for slot, entry in seal.slots.items():
            group = groups[entry.offset]
            assert (group.request.version, group.request.slot) == (version, slot)
            assert len(group.trajectories) == 4
            versions = {span.version for trajectory in group.trajectories for span in trajectory.spans}
            assert versions <= {version - 1, version}


def test_engine_and_learner_agree_on_fresh_tokens_and_on_the_probe(trained: FinishedRun) -> None:
    first = trained.metrics()[0]
    assert first["train/max_trajectory_age"] == 0
    assert first["train/gen_logprob_error_max_age_0"] <= 1e-4
    gaps = [float(word.split("=")[1]) for word in trained.log("dispatcher").split() if word.startswith("probe_gap=")]
    assert len(gaps) >= 6  # versions 0 to 5
    assert max(gaps) <= 1e-4


def test_the_exported_model_loads_with_transformers(trained: FinishedRun) -> None:
    import transformers

    folder = trained.folder / "hf" / "step_00000005"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("3194>", return_tensors="pt").input_ids
    assert model.generate(ids, min_new_tokens=5, max_new_tokens=5, do_sample=False).shape == (1, ids.shape[1] + 5)


def test_stock_tools_show_groups_seals_and_committed_offsets(trained: FinishedRun, broker: Broker) -> None:
    topic = f"{trained.run_id}.trajectories.v00000003"
    groups, _ = trained.version_topic(3)
    records = len(groups) + 1
    shown = broker.run_tool(
        "kafka-console-consumer.sh",
        *("--topic", topic, "--from-beginning", "--max-messages", str(records), "--timeout-ms", "30000"),
        *("--formatter-property", "print.value=false", "--formatter-property", "print.key=true"),
        *("--formatter-property", "print.headers=true"),
    )
    lines = [line.split("\t") for line in shown.splitlines()]
    assert all(headers.startswith("gist:") for headers, _ in lines)
    assert [key for _, key in lines] == [str(groups[at].request) if at in groups else "v00000003/seal" for at in range(records)]
    described = broker.run_tool("kafka-consumer-groups.sh", "--describe", "--group", f"{trained.run_id}.learner")
    (row,) = [line.split() for line in described.splitlines() if topic in line]
    assert row[3:6] == [str(records), str(records), "0"], "committed offset, end of the log, lag"


def test_validation_results_are_written(trained: FinishedRun) -> None:
    lines = [json.loads(line) for line in (trained.folder / "validation.jsonl").read_text().splitlines()]
    assert [line["version"] for line in lines] == [0, 5]


@pytest.fixture(scope="module")
def scripted(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    run = run_to_end(broker.bootstrap, tmp_path_factory.mktemp("scripted"), *SCRIPTED)
    assert run.code == 0, run.output
    return run


def test_data_parallel_two_trains_to_the_same_figures(scripted: FinishedRun, broker: Broker, tmp_path: Path) -> None:
    """The scripted engine's output depends on the request alone, so both runs train the same data."""
    two = run_to_end(broker.bootstrap, tmp_path, *SCRIPTED, "learner.nproc=2")
    assert two.code == 0, two.output
    assert scripted.steps == two.steps == [0, 1, 2, 3]
    for one, other in zip(scripted.metrics(), two.metrics(), strict=True):
        for name in ("train/reward", "train/loss", "train/grad_norm", "train/token_mult_prob_error", "train/global_valid_toks"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5), (one["step"], name)


def test_synchronous_training_has_no_old_token(broker: Broker, tmp_path: Path) -> None:
    run = run_to_end(broker.bootstrap, tmp_path, *SCRIPTED, "grpo.max_trajectory_age_steps=0")
    assert run.code == 0, run.output
    assert [line["train/max_trajectory_age"] for line in run.metrics()] == [0.0] * 4


def test_the_run_ends_with_its_data_set(broker: Broker, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{n}>", "answer": "{n + 1}"}}\n' for n in range(10)))
    data = (f"data.train={rows}", "environment.name=exact_match", "grpo.max_num_epochs=1")
    run = run_to_end(broker.bootstrap, tmp_path, *SCRIPTED, *data)
    assert run.code == 0, run.output
    assert run.steps == [0, 1]  # 10 rows at 4 a step: the last two are dropped
    assert (run.stop.reason, run.stop.version, run.stop.finished) == ("all steps trained", 2, True)


def test_a_producer_that_dies_at_its_start_ends_the_run_with_its_name_and_its_error(broker: Broker, tmp_path: Path) -> None:
    run = run_to_end(broker.bootstrap, tmp_path, *SCRIPTED, "producer.scripted={no_such_key: 1}")
    assert run.code == 1, run.output
    (verdict,) = [line for line in run.output.splitlines() if line.startswith(f"run {run.run_id} FAILED: ")]
    # Both producers fail; whichever is first is blamed.
    cause = re.fullmatch(rf"run {run.run_id} FAILED: (producer-[01]) ended with exit code 1 before the run was finished", verdict)
    assert cause is not None, verdict
    assert "no_such_key\n    Extra inputs are not permitted" in run.output, "the end of the blamed log"
    assert "no_such_key\n  Extra inputs are not permitted" in run.log(cause[1])
    assert "restarts: " not in run.output
    assert not (run.folder / "metrics.jsonl").exists()


def test_a_run_id_that_is_taken_is_refused_before_anything_starts(scripted: FinishedRun, broker: Broker, tmp_path: Path) -> None:
    before = scripted.stop
    run = run_to_end(broker.bootstrap, tmp_path, *SCRIPTED, run_id=scripted.run_id)
    assert run.code == 2, run.output
    assert f"error: run.id='{scripted.run_id}': a run of this id has topics at {broker.bootstrap}" in run.output
    assert not (run.folder / "logs").exists(), "a process was started"
    assert scripted.stop == before
