"""The tables of docs/configuration.md, made from the sections themselves: keys, values, defaults, units, docstrings.

    python -m tests.docs.config_table            print them
    python -m tests.docs.config_table --write    put them into the page

tests/contract/test_docs.py compares, so a key that is added or changed without its line is found.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from schemas.config.base import RESUME, Key, Section, keys_of, sections_in
from schemas.config.config import KEYS, Config
from tests.paths import ROOT

PAGE = ROOT / "docs" / "configuration.md"
BEGIN = "<!-- tables: made by `python -m tests.docs.config_table --write` -->"
END = "<!-- tables: end -->"

SUFFIX_UNITS = {"_s": "s", "_mib": "MiB", "_beats": "beats"}


def tables() -> str:
    """One table a section, in the order of a run's file; one more for each further form of a section."""
    return "\n\n".join(_tables())


def _tables() -> Iterator[str]:
    for name, field in Config.model_fields.items():
        first, *others = sections_in(field.annotation)
        mine = {key.path: key for key in KEYS if key.path.startswith(f"{name}.")}
        yield _table(name, first, [mine[key.path] for key in keys_of(first, name)])
        shown = {key.path for key in keys_of(first, name)} - {f"{name}.name"}
        for form in others:
            yield _table(f"{name}, {_title(form)}", form, [key for key in keys_of(form, name) if key.path not in shown])


def _title(form: type[Section]) -> str:
    default = form.model_fields["name"].default
    return f"name {default}" if isinstance(default, str) else "your own function"


def _table(title: str, section: type[Section], keys: list[Key]) -> str:
    intro = " ".join((inspect.getdoc(section) or "").split())
    head = [f"### {title}", "", intro, "", "| key | values | default | unit | meaning | |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *map(_line, keys)])


def _line(key: Key) -> str:
    if not key.field.description:
        raise ValueError(f"{key.path} has no docstring: write one below it")
    unit = key.unit or next((unit for end, unit in SUFFIX_UNITS.items() if key.path.endswith(end)), "")
    meaning = " ".join(key.field.description.split())
    marks = " ".join(mark for mark, holds in (("agreed", key.agreed), ("resume", RESUME in key.marks)) if holds)
    cells = (f"`{key.path}`", _values(key.field), _default(key.field), unit, meaning, marks)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "`{}`"
    if field.default is PydanticUndefined:
        return "required"
    return f"`{_yaml(field.default)}`"


def _yaml(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.1e}" if value and abs(value) < 1e-3 else str(value)  # YAML wants the dot
        case _:
            return str(value)


def _values(field: FieldInfo) -> str:
    words = [_type(field.annotation)]
    bounds = [bound for part in _metadata(field.annotation, field.metadata) for bound in _bounds(part)]
    return ", ".join([*words, *bounds])


def _metadata(annotation: Any, outer: list[Any]) -> list[Any]:
    """Bounds of the field itself, and those inside of `Annotated[...] | None`."""
    inner = [m for part in get_args(annotation) if get_origin(part) is Annotated for m in part.__metadata__]
    return [entry for m in [*outer, *inner] for entry in getattr(m, "metadata", [m])]


def _bounds(entry: Any) -> Iterator[str]:
    for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        bound = getattr(entry, name, None)
        if bound is not None:
            yield f"{sign} 2^63" if bound == 2**63 else f"{sign} {bound}"
    pattern = getattr(entry, "pattern", None)
    if pattern is not None:
        yield f"`{pattern}`"


def _type(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0])
    if origin is Literal:
        return ", ".join(f"`{_yaml(value)}`" for value in args)
    if origin in (Union, UnionType):
        return " or ".join(_type(part) for part in args)
    if origin is list:
        return f"list of {_type(args[0])}"
    if origin is dict or annotation is dict:
        return "mapping"
    if annotation is type(None):
        return "null"
    return {int: "int", float: "float", bool: "bool", str: "text"}.get(annotation, "text")


def page_with(text: str, made: str) -> str:
    """The page with its tables replaced."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{PAGE} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main() -> None:
    if "--write" in sys.argv:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    else:
        print(tables())


if __name__ == "__main__":
    main()
