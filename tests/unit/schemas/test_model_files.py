"""Facts of a model's files that both sides compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigError
from schemas.model_files import model_config, model_digest, model_folder, tokenizer_digest


def checkpoint(folder: Path, config: dict[str, Any] | None = None, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 10, "hidden_size": 4, **(config or {})}))
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text)
    return folder


def test_a_local_folder_is_found_and_read(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    assert model_folder(str(folder)) == folder
    assert model_config(folder)["vocab_size"] == 10


def test_a_folder_without_a_config_or_no_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path=.*has no config\.json"):
        model_folder(str(tmp_path))
    for path in (str(tmp_path / "none"), "./none/here", "a/b/c", "none"):
        with pytest.raises(ConfigError, match="no such folder"):
            model_folder(path)


def test_the_model_digest_is_of_the_architecture_and_not_of_who_wrote_the_file(tmp_path: Path) -> None:
    plain = model_digest(checkpoint(tmp_path / "a"))
    noise = {"transformers_version": "9", "torch_dtype": "bfloat16", "_name_or_path": "/x", "dtype": "float32"}
    assert model_digest(checkpoint(tmp_path / "b", noise)) == plain
    assert model_digest(checkpoint(tmp_path / "c", {"hidden_size": 8})) != plain
    assert len(plain) == 16


def test_the_tokenizer_digest_is_of_vocabulary_merges_and_template(tmp_path: Path) -> None:
    plain = tokenizer_digest(checkpoint(tmp_path / "a", tokenizer="{}"))
    assert tokenizer_digest(checkpoint(tmp_path / "b", {"hidden_size": 8}, tokenizer="{}", generation_config="{}")) == plain
    assert tokenizer_digest(checkpoint(tmp_path / "c", tokenizer='{"x": 1}')) != plain
    templated = checkpoint(tmp_path / "d", tokenizer="{}", tokenizer_config='{"chat_template": "hello", "padding_side": "left"}')
    assert tokenizer_digest(templated) != plain
    other_side = checkpoint(
        tmp_path / "e", tokenizer="{}", tokenizer_config='{"padding_side": "right", "chat_template": "hello"}'
    )
    assert tokenizer_digest(other_side) == tokenizer_digest(templated)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "", "\x00"])
def test_files_that_hold_something_else_are_one_clear_error(tmp_path: Path, text: str) -> None:
    folder = checkpoint(tmp_path / "m", tokenizer_config=text)
    with pytest.raises(ConfigError, match=r"model\.path=.*tokenizer_config\.json"):
        tokenizer_digest(folder)
    (folder / "config.json").write_text(text)
    for read in (model_config, model_digest):
        with pytest.raises(ConfigError, match=r"model\.path=.*config\.json.*download the checkpoint again"):
            read(folder)


def test_a_hub_name_that_the_hub_cannot_give_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(name: str, **_: object) -> str:
        raise LocalEntryNotFoundError(f"no {name} here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        ConfigError,
        match=r"model\.path='some/model': no such folder, and the model hub cannot give it \(LocalEntryNotFoundError\)",
    ):
        model_folder("some/model")
