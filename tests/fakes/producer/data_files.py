"""The same five rows in every kind of source, and the data set that is opened from one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from producer.data import Dataset, open_dataset
from producer.environments.exact_match import ExactMatch
from schemas.config.data import DataConfig, EnvironmentConfig
from tests.fakes.producer.word_tokenizer import word_tokenizer

ROWS = [{"prompt": f"{n} + {n} =", "answer": str(2 * n), "n": n} for n in range(5)]
EXACT = EnvironmentConfig(name="exact_match")


def jsonl(path: Path, rows: list[Any] | None = None) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in (ROWS if rows is None else rows)))
    return str(path)


def parquet(path: Path) -> str:
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return str(path)


def hugging_face_folder(path: Path) -> str:
    path.mkdir()
    jsonl(path / "train.jsonl")
    return str(path)


def saved_to_disk(path: Path) -> str:
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(path)
    return str(path)


def opened(source: str, chat: bool = False, max_prompt_tokens: int = 100, split: str = "train", **config: Any) -> Dataset:
    data = DataConfig(**{"train": source, **config})
    tokenizer = word_tokenizer(chat)
    return open_dataset(data, ExactMatch(), tokenizer, split=split, max_prompt_tokens=max_prompt_tokens)  # type: ignore[arg-type]
