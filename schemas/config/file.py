"""Reading a run's YAML file: overrides, all problems at once, digests and flat views.

Nothing here knows what the sections mean; `parse` is given the models of the sections that its caller owns. A section that
the caller does not own is only checked to be a known name, so that a process started alone reads the same file.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from schemas.config.sections import AGREED_SECTIONS, LOCAL_KEYS, SECTIONS, Section
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
        raise ConfigError([Problem(str(file), None, f"not readable as YAML ({error})", "mend the file")]) from None
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


def parse(raw: Mapping[str, Any], models: Mapping[str, type[Section]]) -> tuple[dict[str, Any], list[Problem]]:
    """Validate the sections in `models`; return what could be parsed and every problem found."""
    problems = [Problem(str(key), None, "unknown section", _nearest(str(key), SECTIONS)) for key in raw if key not in SECTIONS]
    parsed: dict[str, Any] = {}
    for name, model in models.items():
        value = raw.get(name)
        try:
            parsed[name] = model.model_validate({} if value is None else value)
        except ValidationError as error:
            problems += [_problem(name, model, item) for item in error.errors()]
    return parsed, problems


def load(path: str | Path, models: Mapping[str, type[Section]], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """`read` and `parse`, raising all problems as one `ConfigError`."""
    parsed, problems = parse(read(path, overrides), models)
    if problems:
        raise ConfigError(problems)
    return parsed


def _problem(section: str, model: type[Section], item: Any) -> Problem:
    loc = [str(part) for part in item["loc"]]
    key = ".".join([section, *loc])
    kind, value = item["type"], item.get("input")
    if kind == "extra_forbidden":
        return Problem(key, None, "unknown key", _nearest(loc[-1], _fields(model, loc[:-1])))
    if kind == "missing":
        return Problem(key, None, "required", f"add it to section {section}")
    shown = value if isinstance(value, str | int | float | bool) and not _is_secret(model, loc) else None
    return Problem(key, shown, item["msg"].removeprefix("Value error, "), "give a value in the allowed range")


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


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as `{"a.b": leaf}`; lists are leaves."""
    if isinstance(value, Mapping):
        flat: dict[str, Any] = {}
        for key, inner in value.items():
            flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: value}


def agreed(sections: Mapping[str, Section]) -> dict[str, Any]:
    """The keys that a producer and the learner must hold alike, flat, without secrets and places."""
    flat = flatten({name: sections[name].model_dump(mode="json") for name in AGREED_SECTIONS if name in sections})
    return {key: value for key, value in flat.items() if key not in LOCAL_KEYS}


def digest(value: Any) -> str:
    """sha256 of canonical JSON, the first 16 hex digits: enough to tell configs of one run apart."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
