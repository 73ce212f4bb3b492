from __future__ import annotations

import pytest

from launch.__main__ import parse
from schemas.errors import ConfigError


def test_a_config_and_overrides_may_come_in_any_order() -> None:
    for argv in (["a.yaml", "x.y=1", "--dry-run"], ["--dry-run", "x.y=1", "a.yaml"]):
        config, overrides, given = parse(argv)
        assert (config, overrides, given.dry_run, given.resume) == ("a.yaml", ["x.y=1"], True, None)


def test_overrides_alone_mean_the_default_config() -> None:
    config, overrides, _ = parse(["x.y=1", "z=2"])
    assert (config, overrides) == (None, ["x.y=1", "z=2"])


@pytest.mark.parametrize(
    ("argv", "run", "overrides"),
    [
        (["--resume"], "", []),
        (["--resume", "tiny-1"], "tiny-1", []),
        (["--resume", "x.y=1"], "", ["x.y=1"]),
        (["--resume", "tiny-1", "x.y=1"], "tiny-1", ["x.y=1"]),
    ],
)
def test_resume_takes_a_run_or_the_latest(argv: list[str], run: str, overrides: list[str]) -> None:
    config, found, given = parse(argv)
    assert (config, given.resume, found) == (None, run, overrides)


@pytest.mark.parametrize("argv", [["a.yaml", "b.yaml"], ["a.yaml", "--resume", "tiny-1"]])
def test_two_sources_of_a_config_are_wrong_input(argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse(argv)
