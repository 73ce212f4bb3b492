"""The learner. One process a rank, started by torchrun; rank 0 starts the dispatcher process beside itself.

torchrun --nproc-per-node K -m learner --config RUN.yaml [--resume [--accept-loss]] [key=value ...]
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from importlib import import_module

from broker_config import logs
from broker_config.lifeline import die_with_parent
from learner.checkpoint.fork import find_fork
from learner.checkpoint.resume import find_checkpoint
from schemas.config.config import Config
from schemas.config.file import load_for_process
from schemas.errors import ConfigError, Problem, WeirError

log = logging.getLogger("learner")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node K -m learner", description="The learner of a Weir run: one process a rank."
    )
    parser.add_argument("--config", required=True, help="the run's YAML file")
    parser.add_argument("--resume", action="store_true", help="resume from the newest checkpoint of the run")
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="with --resume: generate and train anew what the broker has lost, after naming it",
    )
    parser.add_argument("overrides", nargs="*", help="key.path=value, replacing values of the file")
    args = parser.parse_args()
    logs.configure()
    die_with_parent()
    try:
        config = load_for_process(args.config, args.overrides)
        if args.accept_loss and not args.resume:
            raise ConfigError([Problem("--accept-loss", None, "a new run has nothing to lose", "give it with --resume")])
        return start(config, args.config, args.overrides, resume=args.resume, accept_loss=args.accept_loss)
    except ConfigError as error:
        for problem in error.problems:
            log.error("config: %s", problem)
        return 2
    except WeirError as error:
        log.error("%s: %s", type(error).__name__, error)
        return 1


def start(config: Config, file: str, overrides: list[str], *, resume: bool, accept_loss: bool = False) -> int:
    """Run this rank to its end; returns the exit code. torch is imported only once the dispatcher has been started.

    Args:
        file, overrides: what `config` was read from, for the dispatcher's command line.
        accept_loss: with `resume`: generate and train anew what the broker has lost.

    Raises:
        ConfigError: no checkpoint to start from, or one that does not fit the config.
        WeirError
    """
    from learner.link.client import start_dispatcher

    rank = int(os.environ.get("RANK", "0"))
    found = find_checkpoint(config) if resume else None
    begin = found[0] if found else find_fork(config.run, config.model)
    if begin is not None:
        log.info("starts from %s as version %d", begin, found[1].version if found else 0)
    dispatcher = None
    if rank == 0:
        folder = found[0] if found else None
        dispatcher = start_dispatcher(file, overrides, config.learner.rank_timeout_s, folder, accept_loss=accept_loss)

    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    if config.learner.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(config.learner.threads)
    if dispatcher is not None and resume:
        # A run that cannot resume is reported before a model is loaded. The libraries, which take about as long, load meanwhile.
        threading.Thread(target=import_module, args=("learner.session",), daemon=True).start()
        dispatcher.await_claim()
    from learner.session import run_rank

    return run_rank(config, dispatcher, begin, found[1] if found else None)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # torch's and gloo's threads must not keep a finished rank alive
