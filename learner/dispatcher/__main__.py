"""The dispatcher process of a learner. Started by rank 0 with its ends of two sockets; it ends with rank 0, and rank 0 with it.

python -m learner.dispatcher --config RUN.yaml --links FD FD [--checkpoint FOLDER [--accept-loss]]
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from broker_config import locate, logs
from broker_config.clients.settings import make_admin
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.lifeline import die_with_parent
from learner.checkpoint.kept_config import keep_config
from learner.dispatcher.deciding.core import Dispatcher
from learner.dispatcher.deciding.plan import Plan
from learner.dispatcher.serving.shell import Shell
from learner.dispatcher.takeover.claim import Claimed, claim
from learner.dispatcher.takeover.resumption import recorded_now, review, settle
from learner.link.channel import Answers, Link
from schemas.config.config import Config
from schemas.config.file import load_for_process
from schemas.errors import ConfigError, LostData, WeirError
from schemas.model_files import model_digest, model_folder, tokenizer_digest
from schemas.weights.plan import make_plan, tensor_index

log = logging.getLogger("learner.dispatcher")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m learner.dispatcher", description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--links", type=int, nargs=2, required=True, help="file descriptors: for training, for checkpoints")
    parser.add_argument("--checkpoint", type=Path, default=None, help="folder of the checkpoint that the run goes on from")
    parser.add_argument("--accept-loss", action="store_true", help="go on though data of the run is lost")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    die_with_parent()
    # Ctrl-C reaches the whole process group; rank 0 decides what follows from it and asks for a stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    config = load_for_process(args.config, args.overrides)
    (config.folder / "logs").mkdir(parents=True, exist_ok=True)
    logs.configure(file=str(config.folder / "logs" / "dispatcher.log"))
    training, saves = (Link(socket.socket(fileno=end)) for end in args.links)
    rank0 = Answers(training, owing=True)
    try:
        serve(config, rank0, Answers(saves), args.checkpoint, accept_loss=args.accept_loss)
    except ConfigError as error:
        rank0.answer({"error": str(error), "code": 2})
        return 2
    except LostData as error:
        log.error("%s", error)
        rank0.answer({"error": str(error), "code": 1})
        return 1
    except WeirError as error:
        log.error("%s", error)
        print(f"dispatcher: {error}", file=sys.stderr)  # noqa: T201 - the supervisor shows the learner's standard error
        return 1
    return 0


def serve(config: Config, rank0: Answers, rank0_saves: Answers, checkpoint: Path | None, *, accept_loss: bool) -> None:
    """Claim the config, tell rank 0, and dispatch until the run is over. `checkpoint`: what rank 0 goes on from.

    `rank0_saves` answers what rank 0 asks for its checkpoints.

    Raises:
        LostData: before anything was changed.
        WeirError
    """
    bootstrap = locate.bootstrap_servers(config.kafka, Deadline(config.kafka.timeout_s))
    failures: list[BaseException] = []
    shell: Shell | None = None

    def failed(error: BaseException) -> None:
        failures.append(error)
        if shell is not None:
            shell.inbox.put(error)

    writer = LogWriter(config.kafka, bootstrap, f"{config.run_id}.dispatcher", failed)
    client = make_admin(config.kafka, bootstrap, f"{config.run_id}.claim")
    found = review(config, bootstrap, client, checkpoint, accept_loss=accept_loss) if checkpoint is not None else None
    uuid, reader = (found.manifest.run, found.control) if found is not None else (None, None)
    claimed, control = claim(config.kafka, bootstrap, client, writer, config.run_id, config.digest, uuid, reader)
    keep_config(config)
    if found is not None:
        claimed = settle(found, config, client, claimed)
    shell = Shell(config, rank0, rank0_saves, bootstrap, (claimed, control), writer)
    lost_from = found.lost_from if found is not None else None
    recorded = recorded_now(config, bootstrap, client, found.manifest, claimed.state) if found is not None else {}
    shell.recorded = {step: outcome for step, outcome in recorded.items() if lost_from is None or step < lost_from}
    losses = [loss.text for loss in found.losses] if found is not None else []
    rank0.answer({"uuid": claimed.uuid, "incarnation": claimed.incarnation, "lost_from": lost_from, "losses": losses})
    version = found.manifest.version if found is not None else 0
    shell.run(Dispatcher(plan_of(config, claimed), version, claimed.state))
    # Only a run that ended well waits for its last records; after a failure the broker may be gone, and the process just ends.
    shell.close()
    if failures:
        raise failures[0]


def plan_of(config: Config, claimed: Claimed) -> Plan:
    """The dispatcher's view of the configuration."""
    folder = model_folder(config.model.path)
    tokenizer = model_folder(config.model.tokenizer) if config.model.tokenizer else folder
    return Plan(
        uuid=claimed.uuid,
        incarnation=claimed.incarnation,
        config_digest=config.digest,
        seed=config.run.seed,
        grpo=config.grpo,
        generation=config.generation,
        refit=config.refit,
        dispatch=config.dispatch,
        producer_count=config.producer.count,
        request_partitions=config.kafka.request_partitions,
        plan_digest=make_plan(tensor_index(folder), config.model.dtype, config.refit.bucket_mib).digest,
        agreed=config.agreed,
        digests={"model": model_digest(folder), "tokenizer": tokenizer_digest(tokenizer)},
    )


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # librdkafka's threads must not keep a finished process alive
