"""From a row to its prompt, answer and metadata, by the config's keys. A row that cannot be used raises `BadRow`."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from producer.data.presets import PLAIN, PRESETS, Layout
from schemas.config.data import DataConfig

_IMAGES = ("images", "image", "videos", "video", "audios", "audio")
_ABSENT = object()


class BadRow(Exception):
    """A row that cannot be used. `key`: the config's key that may have to change, if that is the cause."""

    def __init__(self, why: str, fix: str = "fix or remove the row", key: str | None = None) -> None:
        self.why = why
        self.fix = fix
        self.key = key
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Fields:
    """A usable row. prompt: a string, or chat messages with string contents."""

    prompt: str | tuple[Mapping[str, Any], ...]
    answer: Any
    metadata: Mapping[str, Any]


def layout_of(data: DataConfig, needs_answer: bool) -> Layout:
    """The preset's layout, overridden by the keys that the config names itself."""
    layout = PRESETS[data.preset] if data.preset else PLAIN
    if data.prompt_key is not None:
        layout = dataclasses.replace(layout, prompt=(data.prompt_key,))
    if data.answer_key is not None:
        # An explicit key holds the answer itself: to find it in a longer text is the business of the preset's own keys.
        layout = dataclasses.replace(
            layout,
            extract=layout.extract if data.answer_key in layout.answer else None,
            answer=(data.answer_key,),
            answer_needed=True,
            answer_from_chat=False,
        )
    return dataclasses.replace(layout, answer_needed=layout.answer_needed or needs_answer)


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value under a dotted path, or `_ABSENT`. A key that itself holds dots is found too."""
    if path in row:
        return row[path]
    node: Any = row
    for part in path.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return _ABSENT
        node = node[part]
    return node


def read_row(row: Mapping[str, Any], layout: Layout) -> Fields:
    """Raises:
    BadRow: a missing key, an empty prompt or answer, a wrong type, images.
    """
    for name in _IMAGES:
        if row.get(name):
            raise BadRow(f"has {name}; only text is supported")
    prompt_key, value = _first(row, layout.prompt)
    if prompt_key is None:
        raise _missing(row, layout.prompt, "data.prompt_key")
    prompt = _prompt(prompt_key, value)
    answer_key, answer = _first(row, layout.answer)
    if answer_key is None and layout.answer_from_chat and not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
        prompt, answer = prompt[:-1], prompt[-1]["content"]
    elif answer_key is None:
        if layout.answer_needed:
            raise _missing(row, layout.answer, "data.answer_key")
        answer = None
    elif layout.answer_needed and (answer is None or answer == "" or answer == []):
        raise BadRow(f"the answer under {answer_key} is empty")
    if layout.extract is not None and answer is not None:
        try:
            answer = layout.extract(answer)
        except ValueError as error:
            raise BadRow(f"the answer under {answer_key}: {error}") from None
    if not isinstance(prompt, str) and (not prompt or prompt[-1]["role"] == "assistant"):
        raise BadRow(f"the chat under {prompt_key} ends with the assistant's message: nothing is left to answer")
    taken = {prompt_key, answer_key}
    return Fields(prompt, answer, {name: value for name, value in row.items() if name not in taken})


def _first(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[str | None, Any]:
    for key in keys:
        value = lookup(row, key)
        if value is not _ABSENT:
            return key, value
    return None, None


def _missing(row: Mapping[str, Any], keys: Sequence[str], config_key: str) -> BadRow:
    known = list(row) + [f"{name}.{inner}" for name, value in row.items() if isinstance(value, Mapping) for inner in value]
    near = [match for key in keys for match in difflib.get_close_matches(key, known, n=1, cutoff=0.5)]
    hint = f"did you mean {near[0]}? " if near else ""
    wanted = " or ".join(keys)
    return BadRow(
        f"has no key {wanted}; it has {', '.join(known) or 'none'}", f"{hint}set {config_key} or data.preset", config_key
    )


def _prompt(key: str, value: Any) -> str | tuple[Mapping[str, Any], ...]:
    if isinstance(value, str):
        if not value.strip():
            raise BadRow(f"the prompt under {key} is empty")
        return value
    if not isinstance(value, list | tuple):
        raise BadRow(f"the prompt under {key} is {_type(value)}, not a string or a list of chat messages")
    if not value:
        raise BadRow(f"the chat under {key} has no message")
    return tuple(_message(key, number, message) for number, message in enumerate(value))


def _message(key: str, number: int, message: Any) -> Mapping[str, Any]:
    where = f"message {number} of {key}"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadRow(f"{where} is {_type(message)} without a role; a chat message has role and content")
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = _joined(where, content)
    if not isinstance(content, str):
        raise BadRow(f"the content of {where} is {_type(content)}, not a string")
    return {**{name: part for name, part in message.items() if part is not None}, "content": content}


def _joined(where: str, parts: Sequence[Any]) -> str:
    texts = []
    for part in parts:
        if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else _type(part)
            raise BadRow(f"{where} has a part of type {kind}; only text is supported")
    return "".join(texts)


def _type(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
