"""The main job, small: real broker, real vLLM and Megatron; the scripted engine where vLLM adds nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.pipeline import SCRIPTED, SMALL, FinishedRun, new_id, run_to_end

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def trained(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Five steps of the tiny task at A = 1 with two vLLM producers."""
    runs = tmp_path_factory.mktemp("runs")
    return run_to_end(broker.bootstrap, new_id(), runs, *SMALL, "grpo.max_num_steps=5", "grpo.max_val_samples=8")


def test_the_main_job_finishes_with_one_metrics_line_a_step(trained: FinishedRun) -> None:
    assert trained.code == 0, trained.output
    assert [line["step"] for line in trained.metrics()] == [0, 1, 2, 3, 4]


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
    assert len(gaps) >= 5
    assert max(gaps) <= 1e-4


def test_the_exported_model_loads_with_transformers(trained: FinishedRun) -> None:
    import transformers

    folder = trained.folder / "hf" / "step_00000005"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("3194>", return_tensors="pt").input_ids
    assert model.generate(ids, max_new_tokens=5, do_sample=False).shape[1] > ids.shape[1]


def test_stock_tools_show_groups_seals_and_committed_offsets(trained: FinishedRun, broker: Broker) -> None:
    topic = f"{trained.run_id}.trajectories.v00000003"
    shown = subprocess.run(
        [broker.tool("kafka-console-consumer.sh"), "--bootstrap-server", broker.bootstrap, "--topic", topic, "--from-beginning",
         "--timeout-ms", "5000", "--formatter-property", "print.value=false", "--formatter-property", "print.key=true",
         "--formatter-property", "print.headers=true"],
        stdout=subprocess.PIPE, text=True, timeout=60, check=False,
    ).stdout  # fmt: skip
    lines = [line for line in shown.splitlines() if line.startswith("gist:")]
    assert len([line for line in lines if "v00000003/s000" in line]) == 4
    assert [line.split("\t")[-1] for line in lines if "/seal" in line] == ["v00000003/seal"]
    described = subprocess.run(
        [broker.tool("kafka-consumer-groups.sh"), "--bootstrap-server", broker.bootstrap, "--describe", "--group",
         f"{trained.run_id}.learner"],
        stdout=subprocess.PIPE, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert topic in described


def test_validation_results_are_written(trained: FinishedRun) -> None:
    lines = (trained.folder / "validation.jsonl").read_text().splitlines()
    assert len(lines) == 2, lines  # version 0 and the last one


@pytest.fixture(scope="module")
def scripted(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_to_end(broker.bootstrap, new_id(), tmp_path_factory.mktemp("scripted"), *SCRIPTED)


def test_data_parallel_two_trains_to_the_same_figures(scripted: FinishedRun, broker: Broker, tmp_path: Path) -> None:
    """The scripted engine's output depends on the request alone, so both runs train the same data."""
    two = run_to_end(broker.bootstrap, new_id(), tmp_path, *SCRIPTED, "learner.nproc=2")
    assert scripted.code == two.code == 0, scripted.output + two.output
    for one, other in zip(scripted.metrics(), two.metrics(), strict=True):
        for name in ("train/reward", "train/loss", "train/grad_norm", "train/token_mult_prob_error", "train/global_valid_toks"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5), (one["step"], name)


def test_synchronous_training_has_no_old_token(broker: Broker, tmp_path: Path) -> None:
    run = run_to_end(broker.bootstrap, new_id(), tmp_path, *SCRIPTED, "grpo.max_trajectory_age_steps=0")
    assert run.code == 0, run.output
    assert {line["train/max_trajectory_age"] for line in run.metrics()} == {0.0}


def test_a_data_set_that_ends_ends_the_run(broker: Broker, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{n}>", "answer": "{n + 1}"}}\n' for n in range(10)))
    data = (f"data.train={rows}", "environment.name=exact_match", "grpo.max_num_epochs=1")
    run = run_to_end(broker.bootstrap, new_id(), tmp_path, *SCRIPTED, *data)
    assert run.code == 0, run.output
    assert len(run.metrics()) == 2  # 10 rows at 4 a step: the last two are dropped


def test_a_producer_that_dies_at_start_ends_the_run_with_its_name(broker: Broker, tmp_path: Path) -> None:
    run = run_to_end(broker.bootstrap, new_id(), tmp_path, *SCRIPTED, "producer.scripted={no_such_key: 1}")
    assert run.code != 0
    assert "producer-" in run.output


def test_a_run_id_that_is_taken_is_refused(scripted: FinishedRun, broker: Broker, tmp_path: Path) -> None:
    run = run_to_end(broker.bootstrap, scripted.run_id, tmp_path, *SCRIPTED)
    assert run.code == 2, run.output
    assert scripted.run_id in run.output
