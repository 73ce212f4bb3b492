"""One rank of `test_policy_parallel.py`: trains the same batch under each layout and writes down what came out.

torchrun --nproc-per-node 2 tests/integration/learner/policy_worker.py MODEL OUT
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from learner.model.policy import Policy
from schemas.config.learner import LearnerConfig
from schemas.config.loss import ClippedPgConfig
from schemas.config.model import ModelConfig
from tests.fakes.learner.tiny_models import make_batch, share

Layout = dict[str, Any]
LAYOUTS: dict[str, Layout] = {
    "dp": {},
    "dp-distopt": {"use_distributed_optimizer": True},
    "tp": {"tensor_model_parallel_size": 2},
    "tp-sp": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp": {"pipeline_model_parallel_size": 2},
}


def policy(model: Path, layout: Layout) -> Policy:
    learner = LearnerConfig(nproc=2, train_micro_batch_size=3, optimizer={"lr": 1e-3, "adam_eps": 1e-4}, **layout)
    return Policy(ModelConfig(path=str(model), dtype="float32"), learner, ClippedPgConfig(), seed=0, total_steps=10)


def run(model: Path, layout: Layout, out: Path) -> dict[str, Any]:
    trained = policy(model, layout)
    batch = share(make_batch(), trained.dp_rank, trained.dp_size)
    metrics = [trained.train_step(batch) for _ in range(2)]
    writing = trained.begin_save(out, background=True)
    metrics.append(trained.train_step(batch))  # while the state before it is written
    writing.finish()
    digest, weights = trained.state_digest(), {name: tensor.clone() for name, tensor in trained.export()}

    resumed = policy(model, layout)
    resumed.load(out)
    again = resumed.train_step(batch)
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, (digest, resumed.state_digest(), metrics, again))
    torch.save((weights, trained.logprobs(batch).cpu()), out / f"weights-{dist.get_rank()}.pt")
    return {"ranks": everyone, "probe": trained.probe_logprobs([5, 6, 7, 8])}


def main() -> None:
    model, out = Path(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo")
    results = {}
    for name, layout in LAYOUTS.items():
        folder = out / name
        folder.mkdir(exist_ok=True)
        results[name] = run(model, layout, folder)
    if dist.get_rank() == 0:
        (out / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
