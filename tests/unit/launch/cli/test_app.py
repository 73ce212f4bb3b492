"""What `weir` prints about a wrong command line, an interrupt, and a failure of the file system."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from launch.cli import app as weir
from launch.cli.session import choose_run
from schemas.errors import ConfigError

CODE = "import sys; from launch.cli import main; sys.exit(main())"


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """As started at a terminal: a shell's background job, as the tests may be, hands on that it ignores Ctrl-C."""
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True, text=True, timeout=90, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def test_an_error_of_the_file_system_is_one_plain_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(CODE, "check", str(tmp_path / "file" / "run.yaml"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: [Errno 20] Not a directory: '{tmp_path / 'file' / 'run.yaml'}'\n"


@pytest.fixture
def keep_signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("keep_signals")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bogus", "No such command 'bogus'"),
        ("broker bogus", "No such command 'bogus'"),
        ("dump OUT", "Missing option '--steps'"),
        ("replay --step -1", "Invalid value for '--step'"),
        ("replay --step abc", "Invalid value for '--step'"),
        ("replay --stepp 3", "No such option: --stepp"),
        ("load", "Missing argument 'DUMP'"),
    ],
)
def test_a_wrong_command_line_is_reported_with_its_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["weir", *words.split()])
    assert weir.main() == 2
    out, err = capsys.readouterr()
    assert (out, err.count("Error: "), err.startswith("Usage: weir ")) == ("", 1, True)
    assert message in err and len(err.splitlines()) <= 6


@pytest.mark.usefixtures("keep_signals")
def test_without_arguments_the_help_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["weir"])
    assert weir.main() == 2
    shown = "".join(capsys.readouterr())
    assert "replay" in shown and "Error" not in shown


@pytest.mark.usefixtures("keep_signals")
@pytest.mark.parametrize("how", [typer.Abort(), KeyboardInterrupt()])
def test_who_leaves_off_gets_130(monkeypatch: pytest.MonkeyPatch, how: BaseException) -> None:
    def leave(run: object) -> None:
        raise how

    monkeypatch.setattr(weir, "choose_run", leave)
    monkeypatch.setattr(sys, "argv", ["weir", "topics"])
    assert weir.main() == 130


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
"""


def test_an_interrupt_while_modules_are_imported_is_quiet() -> None:
    done = run(INTERRUPTED + CODE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_afterwards_interrupts_are_as_they_were() -> None:
    code = (
        "import signal, sys; import launch.cli.app as app; import launch.cli as cli\n"
        "app.main = lambda: 7 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1\n"
        "sys.exit(cli.main())"
    )
    assert run(code).returncode == 7


def test_latest_is_no_id_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_run("gone").folder is None  # its topics may be there
    with pytest.raises(ConfigError, match=r"run='latest': no folder runs/latest"):
        choose_run("latest")
