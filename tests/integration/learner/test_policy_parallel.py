"""Two processes train as one does, whichever way they share the work. One torchrun for all layouts: imports are the cost."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.learner.process_group import gloo  # noqa: F401 - a fixture
from tests.fakes.learner.tiny_models import make_batch, make_model
from tests.paths import ROOT

LAYOUTS = ("dp", "dp-distopt", "tp", "tp-sp", "pp")
pytestmark = pytest.mark.timeout(400)
Outcome = tuple[dict[str, Any], Path, Path]
"""Results by layout, the folder of all that was written, the model's folder."""
Alone = tuple[list[dict[str, float]], dict[str, torch.Tensor], torch.Tensor, list[float]]
"""Of one process: metrics of its steps, weights, log-probabilities, those of the probe."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    out = tmp_path_factory.mktemp("parallel")
    model = make_model(out / "model")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    command += [str(ROOT / "tests/integration/learner/policy_worker.py"), str(model), str(out)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=380)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads((out / "results.json").read_text()), out, model


@pytest.fixture(scope="module")
def alone(outcome: Outcome, gloo: None) -> Alone:  # noqa: F811 - the fixture
    from learner.model.policy import Policy
    from schemas.config.learner import LearnerConfig
    from schemas.config.loss import ClippedPgConfig
    from schemas.config.model import ModelConfig

    learner = LearnerConfig(train_micro_batch_size=3, optimizer={"lr": 1e-3, "adam_eps": 1e-4})
    model = ModelConfig(path=str(outcome[2]), dtype="float32")
    policy = Policy(model, learner, ClippedPgConfig(), seed=0, total_steps=10)
    batch = make_batch()
    metrics = [policy.train_step(batch) for _ in range(3)]
    return metrics, dict(policy.export()), policy.logprobs(batch), policy.probe_logprobs([5, 6, 7, 8])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_processes_train_as_one(layout: str, outcome: Outcome, alone: Alone) -> None:
    results, out, _ = outcome
    metrics, weights, logprobs, probe = alone
    for found, expected in zip(results[layout]["ranks"][0][2], metrics, strict=True):
        assert found == pytest.approx(expected, rel=2e-5, abs=2e-6)
    theirs, their_logprobs = torch.load(out / layout / "weights-0.pt")
    assert list(theirs) == list(weights)
    for name, tensor in weights.items():
        torch.testing.assert_close(theirs[name], tensor, atol=2e-6, rtol=0, msg=name)
    torch.testing.assert_close(their_logprobs, logprobs[: len(their_logprobs)], atol=2e-5, rtol=0)
    assert results[layout]["probe"] == pytest.approx(probe, abs=2e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_ranks_hold_the_same_metrics_weights_and_digest(layout: str, outcome: Outcome) -> None:
    results, out, _ = outcome
    first, second = results[layout]["ranks"]
    assert first == second
    one, other = (torch.load(out / layout / f"weights-{rank}.pt")[0] for rank in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(layout: str, outcome: Outcome) -> None:
    digest, resumed_digest, metrics, again = outcome[0][layout]["ranks"][0]
    assert resumed_digest == digest
    assert again == metrics[-1]
