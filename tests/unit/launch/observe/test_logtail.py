from __future__ import annotations

from pathlib import Path

from launch.observe.logtail import error_lines, pick_error, tail

WORKER = """\
12:00:00.000 INFO    learner: starting
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    first()
ValueError: an earlier one, which was handled
12:00:01.000 INFO    learner: going on
Traceback (most recent call last):
  File "b.py", line 7, in train
    second()
RuntimeError: the cause
"""
AGENT = """\
E1129 12:00:02.000 7 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 1) local_rank: 0 (pid: 9)
Traceback (most recent call last):
  File "torch/distributed/run.py", line 1, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""


def test_the_last_traceback_of_the_process_itself_is_the_cause() -> None:
    lines = pick_error((WORKER + AGENT).splitlines())
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "RuntimeError: the cause"
    assert not any("elastic" in line or "earlier" in line for line in lines)


def test_without_a_traceback_lines_marked_as_errors_are_the_cause() -> None:
    log = "12:00 INFO    x: fine\n12:01 ERROR   learner: config: grpo.x: unknown key\n12:02 INFO    x: bye\n"
    assert pick_error(log.splitlines()) == ["12:01 ERROR   learner: config: grpo.x: unknown key"]


def test_a_message_of_several_lines_is_told_whole() -> None:
    lost = ["12:01:00.1 ERROR learner: LostData: data of run r is lost:", "  topic r.control is gone", "go on by --accept-loss"]
    log = ["12:00:00.1 ERROR learner: an older one", "with a second line", "12:00:30.0 INFO x: fine", "of no error", *lost]
    assert pick_error([*log, "12:02:00.0 INFO x: bye"]) == [*log[:2], *lost]
    assert pick_error([*log, "12:02:00.0 INFO x: bye"], 4) == lost
    assert pick_error([lost[0], *(f"  topic {n} is gone" for n in range(50)), lost[-1]], 4) == [
        lost[0], "  ...", "  topic 49 is gone", lost[-1],
    ]  # fmt: skip


def test_without_either_the_end_of_the_log_is_shown() -> None:
    assert pick_error([f"line {n}" for n in range(50)], 3) == ["line 47", "line 48", "line 49"]


def test_a_long_traceback_is_shortened_in_the_middle() -> None:
    deep = ["Traceback (most recent call last):", *(f"  File {n}" for n in range(50)), "KeyError: 'x'"]
    lines = pick_error(deep, 6)
    assert lines == [deep[0], "  ...", *deep[-4:]]


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert error_lines(tmp_path / "none.log") == []


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    path.write_text("x" * 1_000_000 + "\nthe end\n\n")
    assert tail(path, 1) == ["the end"]
