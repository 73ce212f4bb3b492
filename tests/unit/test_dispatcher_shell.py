from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from learner.dispatcher.deciding import events as ev
from learner.dispatcher.serving.shell import Shell


def test_closing_a_topic_gives_back_all_that_is_kept_for_it() -> None:
    told: list[tuple[str, Any]] = []
    shell = Shell.__new__(Shell)  # its constructor connects to a broker; closing a topic needs only these three
    shell.versions = SimpleNamespace(  # type: ignore[assignment]
        name=lambda kind, version: f"run.{kind}.{version}", leave=lambda kind, version: told.append(("leave", version))
    )
    shell.bodies = SimpleNamespace(drop=lambda topic: told.append(("drop", topic)))  # type: ignore[assignment]
    shell.intake = SimpleNamespace(forget=lambda topic: told.append(("forget", topic)))  # type: ignore[assignment]
    shell._carry_out(ev.CloseTopic("rollout", 3))
    assert told == [("leave", 3), ("drop", "run.rollout.3"), ("forget", "run.rollout.3")]
