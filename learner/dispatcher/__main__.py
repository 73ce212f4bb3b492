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

from broker_config import logs
from broker_config.lifeline import die_with_parent
from learner.dispatcher.service import serve
from learner.link.channel import Answers, Link
from learner.link.messages import RunRefused
from schemas.config.file import load_for_process
from schemas.errors import ConfigError, LostData, WeirError

log = logging.getLogger("learner.dispatcher")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m learner.dispatcher", description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--links", type=int, nargs=2, required=True, help="file descriptors: for training, for checkpoints")
    parser.add_argument("--checkpoint", type=Path, default=None, help="folder of the checkpoint that the run resumes from")
    parser.add_argument("--accept-loss", action="store_true", help="resume though data of the run is lost")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    die_with_parent()
    # Ctrl-C reaches the whole process group; rank 0 decides what follows from it and asks for a stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    config = load_for_process(args.config, args.overrides)
    (config.folder / "logs").mkdir(parents=True, exist_ok=True)
    logs.configure(file=str(config.folder / "logs" / "dispatcher.log"))
    loop_link, save_link = (Link(socket.socket(fileno=end)) for end in args.links)
    answers = Answers(loop_link, owing=True)
    try:
        serve(config, answers, Answers(save_link), args.checkpoint, accept_loss=args.accept_loss)
    except ConfigError as error:
        answers.answer(RunRefused(str(error), lost_data=False))
        return 2
    except LostData as error:
        log.error("%s", error)
        answers.answer(RunRefused(str(error), lost_data=True))
        return 1
    except WeirError as error:
        log.error("%s", error)
        print(f"dispatcher: {error}", file=sys.stderr)  # noqa: T201 - the supervisor shows the learner's standard error
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # librdkafka's threads must not keep a finished process alive
