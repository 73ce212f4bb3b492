"""Reading a run's YAML file: overrides, and all problems of all sections at once.

Whoever reads the file gets all of it, so that each process of a run finds the same mistakes. Rules between sections are in
`launch/config/rules.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from schemas.config import loss
from schemas.config.base import Section, sections_in
from schemas.config.config import SECTIONS, Config
from schemas.errors import ConfigError, Problem

Raw = dict[str, Any]


def read(path: str | Path, overrides: Sequence[str] = ()) -> Raw:
    """Read a YAML file and apply `key.path=value` overrides (values are YAML).

    Raises:
        ConfigError: missing file, not YAML, not a mapping, a malformed override.
    """
    file = Path(path)
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError([Problem(str(file), None, "no such file", "give the path of a run's YAML file")]) from None
    except IsADirectoryError:
        raise ConfigError([Problem(str(file), None, "is a folder", "give the path of a run's YAML file")]) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: bytes that are no text, a date such as 2001-99-99
        raise ConfigError([Problem(str(file), None, f"not readable as YAML ({error})", "fix the file")]) from None
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise ConfigError([Problem(str(file), None, "not a mapping of sections", "start from launch/configs/tiny.yaml")])
    apply_overrides(raw, overrides)
    return raw


def apply_overrides(raw: Raw, overrides: Sequence[str]) -> None:
    """Set `a.b.c=value` in place.

    Raises:
        ConfigError: an override without `=`, or one that goes through a key that holds no mapping.
    """
    problems: list[Problem] = []
    for text in overrides:
        key, eq, value = text.partition("=")
        if not eq or not key:
            problems.append(Problem(text, None, "not of the form key.path=value", "for example grpo.max_num_steps=10"))
            continue
        node = raw
        *parents, leaf = key.split(".")
        for part in parents:
            child = node.get(part)
            child = {} if child is None else child
            if not isinstance(child, dict):
                problems.append(Problem(key, None, f"{part} holds {child!r}, not a section", "check the key's path"))
                break
            node[part] = child
            node = child
        else:
            try:
                node[leaf] = yaml.safe_load(value)
            except (yaml.YAMLError, ValueError):
                problems.append(Problem(key, value, "the value is not YAML", "quote it, for example 'key=\"[text\"'"))
    if problems:
        raise ConfigError(problems)


def parse(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Validate every section; return those that could be parsed, and every problem found."""
    problems = [Problem(str(key), None, "unknown section", _nearest(str(key), SECTIONS)) for key in raw if key not in SECTIONS]
    parsed: dict[str, Any] = {}
    for name, field in Config.model_fields.items():
        value = {} if raw.get(name) is None else raw[name]
        try:
            parsed[name] = _ADAPTERS[name].validate_python(value)
        except ValidationError as error:
            problems += [_problem(name, field, value, item) for item in error.errors()]
    return parsed, problems


def build(raw: Mapping[str, Any]) -> Config:
    """The config in a mapping, without the rules between its sections.

    Raises:
        ConfigError: every problem of every section.
    """
    parsed, problems = parse(raw)
    if problems:
        raise ConfigError(problems)
    return Config(**parsed)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config in a file, without the rules between its sections.

    Raises:
        ConfigError: every problem of the file and of every section.
    """
    return build(read(path, overrides))


def load_for_process(path: str | Path, overrides: Sequence[str]) -> Config:
    """`load` for a learner or a producer, which needs to know its run.

    Raises:
        ConfigError: likewise, and when the run has no id.
    """
    parsed, problems = parse(read(path, overrides))
    if "run" in parsed and parsed["run"].id is None:
        fix = "add it to the file or give run.id=NAME, the same to the learner and its producers; launch/run_cluster.sh makes one"
        problems.append(Problem("run.id", None, "required when a process is started by hand", fix))
    if problems:
        raise ConfigError(problems)
    return Config(**parsed)


_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(field.rebuild_annotation()) for name, field in Config.model_fields.items()
}


def _problem(section: str, field: FieldInfo, given: Any, item: Any) -> Problem:
    forms = sections_in(field.annotation)
    loc = [str(part) for part in item["loc"]]
    if len(forms) > 1:
        if item["type"] == "union_tag_invalid":
            found, known = item["ctx"]["tag"], [tag for tag in _tags(forms) if tag != loss.CUSTOM]
            return Problem(f"{section}.name", found, "no such one", f"{_nearest(found, known)}; your own: {loss.CUSTOM}")
        if loc:  # pydantic names the form first
            forms = tuple(form for form in forms if _tag(form) == loc[0])
            loc = loc[1:]
    model = forms[0]
    key = ".".join([section, *loc])
    kind, value = item["type"], item.get("input")
    if kind == "extra_forbidden":
        return Problem(key, None, "unknown key", _nearest(loc[-1], _fields(model, loc[:-1])))
    if kind == "missing":
        return Problem(key, None, "required", f"add it to section {section}")
    shown = value if isinstance(value, str | int | float | bool) and not _is_secret(model, loc) else None
    return Problem(key, shown, item["msg"].removeprefix("Value error, "), "give a value in the allowed range")


def _tag(form: type[Section]) -> str:
    """The tag of one form of a section: its `name`."""
    default = form.model_fields["name"].default
    return default if isinstance(default, str) else loss.CUSTOM


def _tags(forms: Iterable[type[Section]]) -> list[str]:
    return [_tag(form) for form in forms]


def _fields(model: type[BaseModel], path: Sequence[str]) -> dict[str, FieldInfo]:
    """Fields of the model that stands at `path` in `model`; none where no model stands."""
    for part in path:
        field = model.model_fields.get(part)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return {}
        model = inner
    return model.model_fields


def _is_secret(model: type[BaseModel], loc: Sequence[str]) -> bool:
    field = _fields(model, loc[:-1]).get(loc[-1]) if loc else None
    return field is not None and SecretStr in (field.annotation, *get_args(field.annotation))


def _nearest(word: str, names: Iterable[str]) -> str:
    known = list(names)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "known: " + ", ".join(known)
