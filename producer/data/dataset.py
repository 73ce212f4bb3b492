"""The producer's data set: from the row of a request to the tokens that the engine is given.

Every row is read and checked when the data set is opened, so that a bad one is found before anything starts, not in the middle of
a run. A row is turned into tokens when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from producer.data.keys import BadRow, Fields, layout_of, read_row
from producer.data.presets import Layout
from producer.data.rows import GENERATOR, GeneratedRows, Rows, is_remote, open_rows
from producer.environments.base import Environment, Prompt, PromptRefused, Split, Tokenizer
from producer.environments.registry import resolve
from schemas.config.data import DataConfig, EnvironmentConfig
from schemas.digests import digest
from schemas.errors import ConfigError, Problem

_SHOWN = 10  # bad rows named in one error
_TOKENISED_AT_START = 20_000  # rows; in a larger set, a prompt that is too long is found when its turn comes
_GENERATED_AT_START = 8  # rows tried of a generator without end
_CACHED = 256  # prompts; the attempts at one draw follow each other
_SPECIAL_TOKENS = 16  # more than any tokenizer puts around a text

_Check = Callable[[Fields], None]


class Dataset:
    """Rows 0 to `rows` - 1 (None: without end), and their prompts.

    digest: equal on every host whose rows and keys are the same.
    """

    def __init__(self, rows: Rows, layout: Layout, data: DataConfig, tokenizer: Tokenizer) -> None:
        self._rows = rows
        self._layout = layout
        self._system = data.system_prompt
        self._tokenizer = tokenizer
        self._templated = bool(tokenizer.chat_template) if data.apply_chat_template is None else data.apply_chat_template
        self._cached = lru_cache(maxsize=_CACHED)(self._make)
        self.rows: int | None = rows.count
        self.digest: str = digest([rows.digest(), layout.prompt, layout.answer])

    def prompt(self, row: int) -> Prompt:
        """The prompt of a row; the last few are kept.

        Raises:
            PromptRefused: the row or its chat cannot be used; IndexError: there is no such row.
        """
        if row < 0 or (self.rows is not None and row >= self.rows):
            raise IndexError(f"row {row}, the data set has {self.rows}")
        return self._cached(row)

    def _make(self, row: int) -> Prompt:
        try:
            fields = read_row(self._rows.row(row), self._layout)
            text, messages = self.text(fields)
        except BadRow as bad:
            raise PromptRefused(f"{self._rows.where(row)}: {bad.why}") from bad
        return Prompt(row, self.tokens(text, messages is not None), text, fields.answer, fields.metadata, messages)

    def text(self, fields: Fields) -> tuple[str, tuple[Mapping[str, Any], ...] | None]:
        """The text to tokenise, and the chat it came from, if it was one.

        Raises:
            BadRow: the tokenizer's template refuses the chat, or it has none.
        """
        if isinstance(fields.prompt, str):
            if not self._templated:
                return fields.prompt, None
            messages: tuple[Mapping[str, Any], ...] = ({"role": "user", "content": fields.prompt},)
        else:
            messages = fields.prompt
        if not self._tokenizer.chat_template:
            fix = "give prompts as strings with data.apply_chat_template=false, or a tokenizer with a template"
            raise BadRow("is a chat, and the tokenizer has no chat template", fix, "data.apply_chat_template")
        if self._system is not None and messages[0]["role"] != "system":
            messages = ({"role": "system", "content": self._system}, *messages)
        try:
            text = self._tokenizer.apply_chat_template([dict(m) for m in messages], tokenize=False, add_generation_prompt=True)
        except Exception as error:
            # A template is a program of the tokenizer's author: jinja passes on whatever it raises.
            raise BadRow(f"the chat template refuses it ({type(error).__name__}: {error})") from error
        return str(text), messages

    def tokens(self, text: str, templated: bool) -> Any:
        """uint32 [P]. A template writes the special tokens itself; for plain text the tokenizer adds its own."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=not templated), dtype="<u4")

    def check_length(self, fields: Fields, max_prompt_tokens: int) -> None:
        """Raises:
        BadRow: empty or longer than the model allows.
        """
        text, messages = self.text(fields)
        # A text has at most as many tokens as bytes, so a short one needs no tokenizer. (Normalisation may add some; the rollout
        # finds those.)
        if len(text.encode()) + _SPECIAL_TOKENS <= max_prompt_tokens:
            return
        count = len(self.tokens(text, messages is not None))
        if count > max_prompt_tokens:
            raise too_long(count, max_prompt_tokens)


def open_dataset(
    data: DataConfig, environment: Environment, tokenizer: Tokenizer, *, split: Split, max_prompt_tokens: int
) -> Dataset:
    """Open `data.train` or `data.validation`, and check every row.

    Raises:
        ConfigError: nothing to read, a missing key, bad rows (the first ten are named), prompts that are too long.
    """
    layout, rows = _open(data, environment, split)
    problems = _row_problems(rows, layout)
    if problems:
        raise ConfigError(problems)
    dataset = Dataset(rows, layout, data, tokenizer)
    problems = _row_problems(rows, layout, _TOKENISED_AT_START, lambda fields: dataset.check_length(fields, max_prompt_tokens))
    if problems:
        raise ConfigError(problems)
    return dataset


def check_data(
    data: DataConfig, environment: EnvironmentConfig, tokenizer_file: Path | None = None, max_prompt_tokens: int = 0
) -> list[Problem]:
    """What is wrong with the data and the environment, as far as can be seen without transformers and without the network.

    Args:
        tokenizer_file: a `tokenizer.json`, to find prompts that are too long. Of chats only the contents are counted, so opening
            the data set may find more.
    """
    check = _length_check(tokenizer_file, max_prompt_tokens) if tokenizer_file is not None else None
    try:
        resolved = resolve(environment)
    except ConfigError as error:
        return list(error.problems)
    problems: list[Problem] = []
    splits: list[Split] = ["train"] if data.validation is None else ["train", "validation"]
    for split in splits:
        if is_remote(_source(data, split)):
            continue
        try:
            layout, rows = _open(data, resolved, split)
        except ConfigError as error:
            problems += error.problems
        else:
            wrong = _row_problems(rows, layout)
            if check is not None and not wrong:
                wrong = _row_problems(rows, layout, _TOKENISED_AT_START, check)
            problems += wrong
    return problems


def _length_check(tokenizer_file: Path, max_prompt_tokens: int) -> _Check:
    @lru_cache(maxsize=1)
    def tokenizer() -> Any:
        """Loaded for the first text that is long enough to matter."""
        from tokenizers import Tokenizer as FastTokenizer

        return FastTokenizer.from_file(str(tokenizer_file))

    def check(fields: Fields) -> None:
        plain = isinstance(fields.prompt, str)
        texts = [fields.prompt] if isinstance(fields.prompt, str) else [str(m["content"]) for m in fields.prompt]
        if sum(len(text.encode()) for text in texts) + _SPECIAL_TOKENS <= max_prompt_tokens:
            return
        count = sum(len(tokenizer().encode(text, add_special_tokens=plain).ids) for text in texts)
        if count > max_prompt_tokens:
            raise too_long(count, max_prompt_tokens)

    return check


def too_long(count: int, max_prompt_tokens: int) -> BadRow:
    fix = "raise model.max_total_sequence_length, or remove the row"
    return BadRow(f"a prompt of {count} tokens, at most {max_prompt_tokens} leave room for an answer", fix)


def _source(data: DataConfig, split: Split) -> str:
    source = data.train if split == "train" else data.validation
    if source is None:
        raise ConfigError([Problem("data.validation", None, "not set", "give a file, or switch validation off")])
    return source


def _open(data: DataConfig, environment: Environment, split: Split) -> tuple[Layout, Rows]:
    key, source = f"data.{split}", _source(data, split)
    rows: Rows
    if source != GENERATOR:
        named = data.split if split == "train" else data.validation_split
        return layout_of(data, environment.needs_answer), open_rows(key, source, named, data.subset)
    name = type(environment).__name__
    if not environment.generates:
        raise ConfigError([Problem(key, source, f"{name} generates no rows", "give a .jsonl or .parquet file, or a data set")])
    rows = GeneratedRows(environment, split)
    if split == "validation" and rows.count is None:
        raise ConfigError([Problem(key, source, f"{name} has no end of validation rows", "give a file, or write its rows()")])
    if rows.count == 0:
        raise ConfigError([Problem(key, source, f"{name} has no {split} rows", "fix its rows()")])
    # A generator's rows have the plain layout, whatever preset the other split's file needs.
    return layout_of(data.model_copy(update={"preset": None}), environment.needs_answer), rows


def _row_problems(rows: Rows, layout: Layout, at_most: int | None = None, check: _Check | None = None) -> list[Problem]:
    """Every row that cannot be used, the first ten by name. A key that many rows lack is one problem."""
    problems: list[Problem] = []
    seen: dict[tuple[str, str], int] = {}
    total = 0
    for index, bad in _bad_rows(rows, layout, at_most, check):
        total += 1
        if bad.key is not None:
            alike = (bad.key, bad.fix)
            seen[alike] = seen.get(alike, 0) + 1
            if seen[alike] > 1:
                continue
            problems.append(Problem(bad.key, None, f"{rows.where(index)} {bad.why}", bad.fix))
        elif len(problems) < _SHOWN:
            problems.append(Problem(rows.where(index), None, bad.why, bad.fix))
    if total > len(problems) > 0:
        last = problems.pop()
        problems.append(Problem(last.key, last.value, f"{last.why} (and {total - len(problems) - 1} more bad rows)", last.fix))
    return problems


def _bad_rows(rows: Rows, layout: Layout, at_most: int | None, check: _Check | None) -> Iterator[tuple[int, BadRow]]:
    count = _GENERATED_AT_START if rows.count is None else rows.count
    for index in islice(range(count), at_most):
        try:
            fields = read_row(rows.row(index), layout)
            if check is not None:
                check(fields)
        except BadRow as bad:
            yield index, bad
