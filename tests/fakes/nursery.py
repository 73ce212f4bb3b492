"""Processes of a run that start at once: forked from one that has imported what they all import (torch, megatron, transformers).

Importing takes longer than most of what tests of whole processes want to see, so a test that needs forty producers forks them.
Each is a process like any other from then on: its own environment, arguments, output, clients and signals.

It reads lines `{"module": ..., "arguments": [...], "env": {...}, "log": ...}`, answers `{"pid": ...}`, and later adds the `code`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.paths import ROOT

FORK_S = 300.0  # the first one waits for the imports
IMPORTS: Final = (
    "producer.shell",
    "producer.engine.scripted_engine",
    "schemas.weights.transports.gloo",
    "transformers",
    "learner.session",
    "launch.processes.torchrun",
)
TURN_S = 0.02


class Forked:
    """A process of the nursery; what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float) -> int:
        """
        Raises:
            subprocess.TimeoutExpired
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, signum)

    def ended(self, code: int) -> None:
        self.returncode = code
        self._ended.set()


class Nursery:
    """Starts with its first child; all children end with it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "tests.fakes.nursery"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._children: dict[int, Forked] = {}
        self._pids: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._thread.start()

    def start(self, module: str, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
        """`main` of a module with these arguments, output and errors appended to `log`."""
        assert self._process.stdin is not None
        wish = {"module": module, "arguments": list(arguments), "env": dict(env), "log": str(log)}
        with self._starting:
            self._process.stdin.write(json.dumps(wish) + "\n")
            self._process.stdin.flush()
            pid = self._pids.get(timeout=FORK_S)
        assert pid is not None, f"the nursery has ended (code {self._process.poll()})"
        child = Forked(pid, [module, *arguments])
        with self._lock:
            self._children[pid] = child
            code = self._codes.pop(pid, None)
        if code is not None:
            child.ended(code)
        return child

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._thread.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "code" not in told:
                self._pids.put(told["pid"])
                continue
            with self._lock:
                child = self._children.pop(told["pid"], None)
                if child is None:  # it ended before `start` knew of it
                    self._codes[told["pid"]] = told["code"]
            if child is not None:
                child.ended(told["code"])
        self._pids.put(None)


# --- the process itself ---------------------------------------------------------------------------------------------------------


def serve() -> None:
    for module in IMPORTS:
        importlib.import_module(module)
    unread, children = b"", set[int]()
    while True:
        readable, _, _ = select.select([0], [], [], TURN_S)
        if readable:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                pid = _fork(json.loads(line))
                children.add(pid)
                _tell({"pid": pid})
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.remove(pid)
                _tell({"pid": pid, "code": os.waitstatus_to_exitcode(status)})
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _tell(what: Mapping[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _fork(wish: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = _be(wish)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter does at the end of a program
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _be(wish: Mapping[str, Any]) -> int:
    """In the child: become the program."""
    log = os.open(wish["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(wish["env"])
    sys.argv = [wish["module"], *wish["arguments"]]
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    program = importlib.import_module(wish["module"]).main
    code: int = program(wish["arguments"]) if inspect.signature(program).parameters else program()
    return code


if __name__ == "__main__":
    serve()
    sys.stdout.flush()
    os._exit(0)  # taking down an interpreter with torch in it takes seconds
