"""One producer: rolls out what the learner of a run asks for.

python -m producer --config RUN.yaml [--name NAME] [key=value ...]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
import traceback
from typing import NoReturn

from broker_config import locate, logs
from broker_config.deadline import Deadline
from broker_config.lifeline import die_with_parent
from producer.resources import open_resources
from schemas.config.config import Config
from schemas.config.file import load_for_process
from schemas.errors import ConfigError, OffsetGone, WeirError
from schemas.identity import new_producer

log = logging.getLogger("producer")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m producer", description="One producer of a Weir run.")
    parser.add_argument("--config", required=True, help="the run's YAML file")
    name_help = "a name for people (a-z, A-Z, 0-9, . _ -); its identity adds a random part at each start"
    parser.add_argument("--name", default="producer", type=_name, help=name_help)
    parser.add_argument("overrides", nargs="*", help="key.path=value, replacing values of the file")
    args = parser.parse_args()
    logs.configure()
    die_with_parent()
    try:
        config = load_for_process(args.config, args.overrides)
        return start(config, args.name)
    except ConfigError as error:
        for problem in error.problems:
            log.error("config: %s", problem)
        return 2
    except WeirError as error:
        log.error("%s: %s", type(error).__name__, error)
        return 1


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 to 64 characters of a-z, A-Z, 0-9, . _ and -")
    return text


def start(config: Config, name: str) -> int:
    """Everything after the config check."""
    bootstrap = locate.bootstrap_servers(config.kafka, Deadline(config.kafka.timeout_s))
    resources = open_resources(config)
    log.info("engine ready plan=%s rows=%s", resources.plan_digest, resources.train.rows)
    from producer.clients import KafkaClients
    from producer.shell import Shell

    async def serve() -> int:
        try:
            while True:
                identity = new_producer(name)
                shell = Shell(config, identity, resources, KafkaClients(config, identity, bootstrap))
                try:
                    return await shell.serve()
                except OffsetGone as gone:
                    log.warning("%s; joining anew", gone)
                    await resources.engine.resume()  # a round may have left it paused
                    if shell.signalled:
                        return 0
        finally:
            await resources.close()

    return asyncio.run(serve())


def run() -> NoReturn:
    """`main`, and the end of the process whatever becomes of it: no thread of the engine, of librdkafka or of a score function
    that never returns may keep a finished producer alive."""
    code = 1
    try:
        code = main()
    except Exception:  # noqa: BLE001 (the top of the process: what Python itself would do, but for waiting for threads)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
