"""A producer that writes down each group that the broker has acknowledged to it, as `tests.chaos.striking.ledger` reads it.

    WEIR_WITNESS=<file> python -m tests.fakes.producer.witness <arguments of `python -m producer`>

A line is written when the delivery report is there and before anybody acts on it, by one append, so it survives SIGKILL.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import Future
from typing import Any, Final, NoReturn

from broker_config.clients.writer import LogWriter
from broker_config.topics import parse
from producer import __main__ as producer_program

VARIABLE: Final = "WEIR_WITNESS"


def main() -> NoReturn:
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    plain = LogWriter.write

    def write(self: LogWriter, topic: str, value: bytes, **how: Any) -> Future[int]:
        future = plain(self, topic, value, **how)
        name = parse(topic)
        if name is not None and name.kind == "trajectories":
            written = {"partition": how["partition"], "key": how["key"], "sha256": hashlib.sha256(value).hexdigest()}
            future.add_done_callback(lambda done: note(written, done))
        return future

    def note(written: dict[str, Any], done: Future[int]) -> None:
        if done.exception() is None:
            os.write(file, json.dumps({**written, "offset": done.result()}).encode() + b"\n")

    LogWriter.write = write  # type: ignore[method-assign]
    producer_program.run()


if __name__ == "__main__":
    main()
