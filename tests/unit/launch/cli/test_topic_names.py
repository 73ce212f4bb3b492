from __future__ import annotations

import pytest

from launch.cli.topic_names import resolve_topics
from schemas.errors import ConfigError
from tests.fakes.records.runs import RUN

EXISTING = [f"{RUN}.{name}" for name in ("control", "metrics", "trajectories.v00000000", "trajectories.v00000001")]


@pytest.mark.parametrize(
    ("words", "version", "names"),
    [
        (["control"], None, ["control"]),
        ([f"{RUN}.control"], None, ["control"]),
        (["trajectories"], None, ["trajectories.v00000000", "trajectories.v00000001"]),
        (["trajectories"], 1, ["trajectories.v00000001"]),
        (["trajectories.v00000001"], None, ["trajectories.v00000001"]),
        (["trajectories.1", "metrics"], None, ["trajectories.v00000001", "metrics"]),
        (["validation"], None, []),
    ],
)
def test_short_topic_names_mean_those_of_the_run(words: list[str], version: int | None, names: list[str]) -> None:
    assert resolve_topics(words, RUN, EXISTING, version) == [f"{RUN}.{name}" for name in names]


@pytest.mark.parametrize("words", [["contrl"], ["trajectories.9"], ["trajectories.vx"], ["status"]])
def test_a_topic_that_is_not_there_is_wrong_input(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        resolve_topics(words, RUN, EXISTING, None)
