"""One rank from its start to its end: process group, policy, then the loop (rank 0) or rank 0's commands (the others)."""

from __future__ import annotations

import logging
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from learner.checkpoint.fork import check_forked
from learner.checkpoint.manifest import Manifest, determinism
from learner.checkpoint.resume import differences
from learner.link.client import DispatcherClient
from learner.loop import Loop
from learner.model.policy import Policy
from learner.ranks import Ranks
from learner.worker import Worker
from schemas.config.config import Config
from schemas.errors import ConfigError, Problem, WeirError

log = logging.getLogger(__name__)

FIRST_COLLECTIVE_S = 600.0  # ranks on other hosts may still be loading the model


def run_rank(config: Config, dispatcher: DispatcherClient | None, checkpoint: Path | None, resumed: Manifest | None) -> int:
    """Run this rank to its end; returns the exit code.

    Args:
        dispatcher: None on all ranks but 0.
        checkpoint: the folder to load; None for a run that starts from its model.
        resumed: the checkpoint's manifest, if it is the run's own.

    Raises:
        ConfigError: the checkpoint cannot be loaded, or its state is not the one that was saved.
        WeirError
    """
    join_ranks(config)
    # The long deadline covers loading only. Training gets the configured one, in its own group: a group keeps its deadline.
    ranks = Ranks(max(FIRST_COLLECTIVE_S, config.learner.rank_timeout_s))
    policy = make_policy(config)
    if checkpoint is not None:
        load_checkpoint(policy, checkpoint, config, resumed)
    ranks.barrier()
    ranks = Ranks(config.learner.rank_timeout_s)
    worker = Worker(config, policy, ranks)
    if dispatcher is not None:
        return Loop(config, worker, ranks, dispatcher, resumed.version if resumed is not None else 0).run()
    # A signal goes to all ranks. Rank 0 decides what follows; one that ended by itself would break the others' collective.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return worker.obey()


def load_checkpoint(policy: Policy, folder: Path, config: Config, resumed: Manifest | None) -> None:
    """Load a checkpoint and compare its state with the saved one. `resumed`: its manifest, if it is the run's own.

    Raises:
        ConfigError: it cannot be loaded, or its state is not the one that was saved; trying again would not help.
    """
    try:
        policy.load(folder)
        # A file of the right size with other bytes loads without an error. The digest is the only thing that finds it.
        if resumed is not None:
            check_state(folder, resumed, config, policy.state_digest())
        else:
            check_forked(folder, config.learner, determinism(config.learner), policy.state_digest())
    except ConfigError:
        raise
    except WeirError as damage:
        fix = "move the folder away to resume from the one before it" if resumed is not None else "fork from another step"
        raise ConfigError([Problem("checkpoint", str(folder), str(damage), fix)]) from damage


def check_state(folder: Path, manifest: Manifest, config: Config, digest: str) -> None:
    """Check that the loaded state is the saved one, bit for bit. `digest`: of the loaded state.

    Raises:
        WeirError: it is another state.
    """
    if digest != manifest.state_digest:
        raise WeirError(f"its files were changed: it holds state {digest[:16]}, its manifest says {manifest.state_digest[:16]}")
    for difference in differences(manifest.determinism, determinism(config.learner)):
        log.warning("not as when the checkpoint was made: %s; steps may come out with other last bits", difference)


def join_ranks(config: Config) -> None:
    """Bring `torch.distributed` up; a process without torchrun is a world of one."""
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    # One process a GPU, chosen before the group is made: NCCL ties each rank to the device that is current then.
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, timeout=timedelta(seconds=max(FIRST_COLLECTIVE_S, config.learner.rank_timeout_s)))


def make_policy(config: Config) -> Policy:
    """The policy of this rank, with the weights of `model.path`."""
    return Policy(
        config.model,
        config.learner,
        config.loss_fn,
        seed=config.run.seed,
        total_steps=config.grpo.max_num_steps,
        temperature=config.generation.temperature,
    )
