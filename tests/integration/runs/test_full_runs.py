"""The figures that the shipped runs are held to. Too long for every run: `tests/run.sh integration -m nightly`."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from producer.environments.tiny_inc import TinyInc
from tests.brokers import Broker
from tests.pipeline import FinishedRun, run_to_end

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


def run(broker: Broker, runs: Path, *overrides: str) -> FinishedRun:
    finished = run_to_end(broker.bootstrap, runs, *overrides)
    assert finished.code == 0, finished.output
    return finished


def exact_share(model_folder: Path) -> float:
    """Share of the held-out prompts that transformers answers exactly, greedily, end token included."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    environment = TinyInc()
    rows = [environment.generate(row, "validation") for row in range(environment.rows("validation") or 0)]
    right = 0
    for row in rows:
        ids = tokenizer(row["prompt"], return_tensors="pt").input_ids
        answer = model.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
        right += tokenizer.decode(answer) == row["answer"] + tokenizer.eos_token
    return right / len(rows)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_tiny_run_learns_its_task(broker: Broker, tmp_path: Path, ranks: int) -> None:
    finished = run(broker, tmp_path, f"learner.nproc={ranks}")
    lines = finished.metrics()
    rewards = [line["train/reward"] for line in lines]
    assert [line["step"] for line in lines] == list(range(80))
    assert mean(rewards[:3]) < 0.4
    assert mean(rewards[-5:]) > 0.9
    assert max(line["train/max_trajectory_age"] for line in lines) <= 1
    assert exact_share(finished.folder / "hf" / "step_00000080") > 0.9
    for version in range(80):
        groups, seal = finished.version_topic(version)
        assert sorted(seal.slots) == list(range(16))
        assert {groups[entry.offset].request.slot for entry in seal.slots.values()} == set(range(16))


def test_synchronous_tokens_have_the_learners_log_probabilities(broker: Broker, tmp_path: Path) -> None:
    finished = run(broker, tmp_path, "grpo.max_trajectory_age_steps=0", "grpo.max_num_steps=20")
    assert max(line["train/gen_logprob_error_max_age_0"] for line in finished.metrics()) <= 1e-4


@pytest.mark.parametrize("age", [0, 1, 2, 4, 8, 16])
def test_every_age_trains_the_tiny_task_within_its_bound(broker: Broker, tmp_path: Path, age: int) -> None:
    """A is a bound and no habit: with producers that keep up, the mean age stays below it where it can."""
    finished = run(broker, tmp_path, f"grpo.max_trajectory_age_steps={age}", "checkpointing.save_period=80")
    lines = finished.metrics()
    rewards = [line["train/reward"] for line in lines]
    print(
        f"A={age}: reward {mean(rewards[:3]):.3f} -> {mean(rewards[-5:]):.3f}, "
        f"mean age {mean(line['train/avg_trajectory_age'] for line in lines):.2f} a group, "
        f"{mean(line['train/avg_token_age'] for line in lines):.2f} a token, "
        f"lead at most {max(line['dispatch/lead'] for line in lines):.0f}"
    )
    assert mean(rewards[-5:]) > 0.8
    assert max(line["train/max_trajectory_age"] for line in lines) <= age
    if age >= 2:
        assert mean(line["train/avg_trajectory_age"] for line in lines) < age
