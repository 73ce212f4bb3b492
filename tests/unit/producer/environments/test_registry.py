from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from producer.environments import registry
from producer.environments.base import Environment
from producer.environments.single_turn import SingleTurn
from schemas.config.data import EnvironmentConfig
from schemas.errors import ConfigError
from tests.fakes.producer.episodes import make_completion, make_rollout_request, trajectory_of


def named(name: str, **args: Any) -> EnvironmentConfig:
    return EnvironmentConfig(name=name, args=args)


def why(config: EnvironmentConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        registry.resolve(config)
    return str(caught.value)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_rewards.py").write_text(
        "from producer.environments.single_turn import SingleTurn\n"
        "def score(prompt, completion, answer, metadata, scale=1.0):\n    return scale\n"
        "def bad(completion, answer):\n    return 1.0\n"
        "class Own(SingleTurn):\n"
        "    def __init__(self, scale):\n        super().__init__()\n        self.scale = scale\n"
        "    def score(self, prompt, completion, answer, metadata):\n        return self.scale\n"
        "class NoScore(SingleTurn):\n    pass\n"
        "class NotOne:\n    pass\n"
        "NUMBER = 3\n"
    )
    (tmp_path / "broken_rewards.py").write_text("import json\nraise RuntimeError('boom')\n")
    (tmp_path / "needy_rewards.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("own_rewards", "broken_rewards", "needy_rewards"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "own_rewards"


@pytest.mark.parametrize("name", [n for n in registry.BUILT_IN if n != "reasoning_gym"])
def test_every_built_in_name_resolves_and_has_a_digest(name: str) -> None:
    assert isinstance(registry.resolve(named(name)), Environment)
    assert registry.digest(named(name)) == registry.digest(named(name))


def test_own_functions_and_classes_resolve_from_the_working_folder(own_module: str) -> None:
    function = registry.resolve(named(f"{own_module}:score", scale=2.0))
    assert trajectory_of(function, make_rollout_request(), make_completion("x")).reward == 2.0
    own = registry.resolve(named(f"{own_module}:Own", scale=3.0))
    assert isinstance(own, SingleTurn)
    assert trajectory_of(own, make_rollout_request(), make_completion("x")).reward == 3.0


def test_digest_follows_arguments_and_source(own_module: str, tmp_path: Path) -> None:
    first = registry.digest(named(f"{own_module}:score"))
    assert registry.digest(named(f"{own_module}:score", scale=2.0)) != first
    file = tmp_path / "own_rewards.py"
    file.write_text(file.read_text() + "# changed\n")
    assert registry.digest(named(f"{own_module}:score")) != first


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("exact_mach", {}, "did you mean exact_match?"),
        ("nothing", {}, "known: exact_match"),
        ("no_such_module:score", {}, "module no_such_module not found"),
        ("own_rewards:scor", {}, "did you mean score?"),
        ("own_rewards:bad", {}, "score(prompt, completion, answer, metadata)"),
        ("own_rewards:score", {"factor": 1}, "factor"),
        ("own_rewards:NUMBER", {}, "is a int"),
        ("own_rewards:NotOne", {}, "derive it"),
        ("own_rewards:NoScore", {}, "has no score"),
        ("own_rewards:Own", {}, "scale"),
        ("own_rewards:Own", {"scal": 1}, "did you mean scale?"),
        ("broken_rewards:score", {}, "boom"),
        ("needy_rewards:score", {}, "install a_library_that_is_not_there"),
        ("tiny_inc", {"digits": 2}, "digits=2"),
        ("tiny_inc", {"digit": 4}, "did you mean digits?"),
        ("reasoning_gym", {"task": "chain_sums"}, "did you mean chain_sum"),
    ],
)
def test_a_name_that_does_not_resolve_says_what_would(own_module: str, name: str, args: dict[str, Any], says: str) -> None:
    assert says in why(named(name, **args))
