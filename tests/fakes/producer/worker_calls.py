"""What a worker process can be asked in a test: functions that it imports by name."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

prepared = False


def prepare() -> None:
    global prepared
    time.sleep(0.5)  # stands for slow imports; longer than the timeout of the call that follows
    prepared = True


def prepare_badly() -> None:
    raise ImportError("no such library")


def double(value: int) -> int:
    return 2 * value


def state() -> dict[str, Any]:
    """What the worker was set up with."""
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "prepared": prepared,
        "memory": resource.getrlimit(resource.RLIMIT_AS)[0],
        "ignores_interrupts": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    }


def hold_the_lock(begun: Path | None = None) -> int:
    """One operation that keeps the interpreter's lock practically for ever; no handler in Python runs meanwhile."""
    if begun is not None:
        begun.write_text(str(os.getpid()))
    number: int = 9 ** (9**9)
    return number % 7


def fill_memory() -> int:
    return len(bytearray(1 << 40))


def die(code: int) -> NoReturn:
    os._exit(code)


def leave() -> NoReturn:
    sys.exit(3)


class Unpicklable(Exception):
    """Its constructor takes more than `args` holds."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def fail(kind: str) -> NoReturn:
    if kind == "plain":
        raise KeyError("level")
    if kind == "timeout":
        raise TimeoutError("a service did not answer")
    if kind == "unpicklable":
        raise Unpicklable("this", "that")

    class Local(Exception):
        pass

    raise Local("of a function")


def give_back_a_function() -> Any:
    return lambda: 1
