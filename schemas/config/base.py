"""What a section of a run's file is made of: its base class, and marks, which say of a key what its type does not.

A mark stands in the `Annotated` of a key, or of a section in `config.py`, where it holds for all keys of that section. Everything
that asks a question of many keys (digests, the comparison of two processes, resuming, the tables of docs/configuration.md) reads
the marks, so a new key is one edit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused, the string below a key is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), use_attribute_docstrings=True)


class Mark(Enum):
    AGREED = "agreed"
    """Producers and learner must hold it alike; a mismatch is refused when a producer joins, naming the key."""
    LOCAL = "local"
    """An exception in an agreed section: it says where or how long, not what is sampled."""
    TRAINED = "trained"
    """What a step computes depends on it, so the config's digest, which seals and manifests carry, does too."""
    UNTRAINED = "untrained"
    """An exception in a trained section."""
    RESUME = "resume"
    """A resumed run may have another value."""
    LATER = "later"
    """Added after runs had been made. Left out of digests while it has its default, so that digests of those runs stay valid."""


AGREED, LOCAL, TRAINED, UNTRAINED, RESUME, LATER = Mark


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a key whose name does not end in one (`_s`, `_mib`, `_beats`)."""

    name: str


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a run's file. `path`: `grpo.max_num_steps`; `marks`: its own and those of the sections around it."""

    path: str
    field: FieldInfo
    marks: frozenset[Mark]

    @property
    def agreed(self) -> bool:
        return Mark.AGREED in self.marks and Mark.LOCAL not in self.marks

    @property
    def trained(self) -> bool:
        return Mark.TRAINED in self.marks and Mark.UNTRAINED not in self.marks

    @property
    def unit(self) -> str | None:
        return next((mark.name for mark in self.field.metadata if isinstance(mark, Unit)), None)


def keys_of(model: type[BaseModel], prefix: str = "", around: frozenset[Mark] = frozenset()) -> Iterator[Key]:
    """Every key below `model`, in the order of the file. Of a section with several forms, each key that any of them has, once."""
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        marks = around | {mark for mark in field.metadata if isinstance(mark, Mark)}
        forms = sections_in(field.annotation)
        if not forms:
            yield Key(path, field, marks)
            continue
        seen: set[str] = set()
        for form in forms:
            for key in keys_of(form, path, marks):
                if key.path not in seen:
                    seen.add(key.path)
                    yield key


def sections_in(annotation: Any) -> tuple[type[Section], ...]:
    """The section that a key holds, or the forms of it that can be chosen from; none for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    if get_origin(annotation) is Annotated:
        return sections_in(get_args(annotation)[0])
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        found = [form for part in get_args(annotation) for form in sections_in(part)]
        return tuple(found)
    return ()
