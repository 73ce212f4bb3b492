"""Reading a run's YAML file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.base import LOCAL
from schemas.config.config import KEYS, SECTIONS, Config
from schemas.config.file import apply_overrides, build, load_config, parse, read
from schemas.config.grpo import GrpoConfig
from schemas.config.run import RunConfig
from schemas.digests import digest, flatten
from schemas.errors import ConfigError, Problem

REQUIRED: dict[Any, Any] = {"model": {"path": "x"}, "data": {"train": "environment"}}
TEXT = "model: {path: x}\ndata: {train: environment}\n"


def write(folder: Path, text: str) -> Path:
    file = folder / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def problems(raw: dict[Any, Any]) -> dict[str, Problem]:
    return {problem.key: problem for problem in parse({**REQUIRED, **raw})[1]}


def test_a_file_is_read_with_defaults_and_overrides(tmp_path: Path) -> None:
    file = write(tmp_path, TEXT + "run: {name: tiny}\ngrpo: {max_num_steps: 5}\n")
    found = load_config(file, ["grpo.max_num_steps=7", "kafka.compression=zstd", "run.id=null"])
    assert found.run == RunConfig(name="tiny")
    assert (found.grpo.max_num_steps, found.grpo.num_prompts_per_step) == (7, 16)
    assert found.kafka.compression == "zstd"


def test_a_file_of_what_is_required_is_all_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, TEXT)).grpo == GrpoConfig()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "not readable as YAML"),
        ("[1, 2]", "not a mapping"),
        ("text", "not a mapping"),
        ("a: !!python/name:os.x", "not read"),
        ("a: 2001-99-99", "not read"),
    ],
)
def test_a_file_of_another_form_is_one_clear_error(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        read(write(tmp_path, text))
    assert "run.yaml" in str(error.value)


def test_a_missing_file_a_folder_and_bytes_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        read(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not readable"):
        read(tmp_path / "bytes.yaml")


def test_an_unknown_key_names_the_nearest() -> None:
    found = problems({"grpo": {"max_num_step": 3}})["grpo.max_num_step"]
    assert (found.why, found.fix) == ("unknown key", "did you mean max_num_steps?")


def test_an_unknown_key_of_a_section_inside_names_the_nearest() -> None:
    assert problems({"kafka": {"security": {"pasword": "env:X"}}})["kafka.security.pasword"].fix == "did you mean password?"


def test_an_unknown_section_names_the_nearest_also_when_it_is_not_text() -> None:
    assert problems({"gpro": {}})["gpro"].fix == "did you mean grpo?"
    assert problems({7: {}, True: 1}).keys() == {"7", "True"}


def test_an_empty_file_says_what_is_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, "# nothing\n"))
    assert [problem.key for problem in error.value.problems] == ["model.path", "data.train"]


def test_all_problems_are_shown_at_once() -> None:
    found = problems(
        {
            "run": {"name": "Not Allowed", "seed": -1},
            "grpo": {"num_prompts_per_step": 0, "max_trajectory_age_steps": 99, "val_timeout": 3},
            "kafka": 7,
            "nonsense": {},
        }
    )
    assert found.keys() == {
        "run.name",
        "run.seed",
        "grpo.num_prompts_per_step",
        "grpo.max_trajectory_age_steps",
        "grpo.val_timeout",
        "kafka",
        "nonsense",
    }
    assert found["grpo.num_prompts_per_step"].value == 0
    assert str(found["run.seed"]) == "run.seed=-1: Input should be greater than or equal to 0; give a value in the allowed range"


def test_rules_inside_a_section_are_told_without_the_libraries_words() -> None:
    found = problems({"kafka": {"replication_factor": 3}})["kafka"]
    assert found.why == "replication_factor > 1 with min_insync_replicas 1 can lose acknowledged records; use 2"


def test_a_secret_may_stand_only_as_a_reference() -> None:
    found = problems({"kafka": {"security": {"password": "hunter2"}}})
    assert "env:NAME" in found["kafka.security"].why
    assert "hunter2" not in str(found["kafka.security"])
    assert problems({"kafka": {"security": {"password": "env:PASSWORD"}}}) == {}


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    found = problems({"kafka": {"security": {"password": 12345, "username": 12345}}})
    assert "12345" not in str(found["kafka.security.password"])
    assert "12345" in str(found["kafka.security.username"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1", {"a": {"b": 1}}),
        ("a.b=1.5", {"a": {"b": 1.5}}),
        ("a.b=null", {"a": {"b": None}}),
        ("a.b=text", {"a": {"b": "text"}}),
        ("a.b=", {"a": {"b": None}}),
        ("a.b=x=y", {"a": {"b": "x=y"}}),
        ("a.b=[1, 2]", {"a": {"b": [1, 2]}}),
        ("a.b.c=1", {"a": {"b": {"c": 1}}}),
        ("a={b: 2}", {"a": {"b": 2}}),
    ],
)
def test_overrides_are_yaml(text: str, expected: dict[str, Any]) -> None:
    raw: dict[str, Any] = {"a": None}
    apply_overrides(raw, [text])
    assert raw == expected


def test_wrong_overrides_are_shown_all_at_once_and_the_others_hold() -> None:
    raw: dict[str, Any] = {"a": {"b": 1}}
    with pytest.raises(ConfigError) as error:
        apply_overrides(raw, ["--fast", "=1", "a.b.c=1", "a.d=[1", "a.f=2001-99-99", "a.e=2"])
    assert [p.key for p in error.value.problems] == ["--fast", "=1", "a.b.c", "a.d", "a.f"]
    assert raw == {"a": {"b": 1, "e": 2}}


@settings(deadline=None)
@given(st.text(), st.text(max_size=20))
def test_any_override_is_applied_or_a_config_error(key: str, value: str) -> None:
    with contextlib.suppress(ConfigError):
        apply_overrides({}, [f"{key}={value}"])


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
values = st.recursive(
    scalars, lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), i, max_size=3)
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*SECTIONS, "gpro"]) | st.integers(), values, max_size=3))
def test_any_file_is_parsed_or_told_what_is_wrong(raw: dict[Any, Any]) -> None:
    parsed, found = parse(raw)
    assert parsed.keys() == set(SECTIONS) or found
    assert all(str(problem) for problem in found)


def test_flatten_names_leaves_by_their_path() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": [1, {"e": 2}]}}, "f": None}) == {"a.b": 1, "a.c.d": [1, {"e": 2}], "f": None}


def config(**changes: Any) -> Config:
    raw: dict[str, dict[str, Any]] = {"model": {"path": "x"}, "data": {"train": "environment"}}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        raw.setdefault(section, {})[name] = value
    return build(raw)


def test_agreed_keys_are_what_is_sampled_and_not_where_or_how_long() -> None:
    flat = config().agreed
    assert {key.split(".")[0] for key in flat} <= {"model", "data", "environment", "grpo", "generation", "refit"}
    assert "generation.temperature" in flat
    assert not {key.path for key in KEYS if LOCAL in key.marks} & flat.keys()
    assert config(model__path="elsewhere", grpo__max_num_steps=7, refit__host="10.0.0.1").agreed == flat
    assert config(generation__temperature=0.5).agreed != flat
    assert config(environment__args={"digits": 5}).agreed["environment.args.digits"] == 5


def test_the_digest_follows_what_a_step_depends_on_alone() -> None:
    plain = config().digest
    same: dict[str, Any] = {"learner__rank_timeout_s": 7, "producer__count": 3, "grpo__max_num_steps": 7, "run__name": "x"}
    for key, value in same.items():
        assert config(**{key: value}).digest == plain, key
    other: dict[str, Any] = {"run__seed": 1, "loss_fn__ratio_clip_max": 0.3, "learner__optimizer": {"lr": 1.0}}
    for key, value in other.items():
        assert config(**{key: value}).digest != plain, key


def test_digests_of_runs_that_were_made_before_a_key_was_added_stay_valid() -> None:
    assert "loss_fn.name" not in config().digested
    assert config(loss_fn__name="mine:loss").digested["loss_fn.name"] == "mine:loss"
    assert config().digest == "827a280128cf11fc"


def test_a_digest_is_of_the_contents_and_not_of_their_order() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert len(digest({})) == 16


def test_no_run_is_called_like_the_link_to_the_newest() -> None:
    found = problems({"run": {"id": "latest"}})["run.id"]
    assert found.why == "latest is the link to the newest run's folder, no run's own name"
    assert problems({"run": {"id": "latest-1"}}) == {}
