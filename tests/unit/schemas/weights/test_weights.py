"""The bucket plan, the checksum and the probe sequence: pure functions that both ends compute for themselves."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from schemas.errors import ConfigError, TransferError
from schemas.weights.checksum import ROW_WORDS, checksum, combine, empty_bucket, words
from schemas.weights.last_word import LastWord, pack_last_word, unpack_last_word
from schemas.weights.plan import ITEM_BYTES, Bucket, make_plan, model_config_value, tensor_index
from schemas.weights.probe import probe_tokens

GOLDEN_DIGEST = "cad22d96de012c2d"
INDEX = [("a.weight", (300, 1000)), ("b.bias", (3,)), ("c.weight", (64, 32))]
shapes = st.lists(st.lists(st.integers(1, 700), min_size=0, max_size=2).map(tuple), min_size=1, max_size=12)


@settings(deadline=None)
@given(shapes=shapes, dtype=st.sampled_from(sorted(ITEM_BYTES)))
def test_buckets_hold_every_tensor_once_in_order_and_no_more_than_their_size(shapes: list[tuple[int, ...]], dtype: str) -> None:
    index = [(f"t{n:02d}", shape) for n, shape in enumerate(shapes)]
    plan = make_plan(index, dtype, 1)
    placed = [(name, shape) for bucket in plan.buckets for name, shape, _, _ in plan.places(bucket)]
    assert placed == index
    for bucket in plan.buckets:
        places = plan.places(bucket)
        assert all(end - start == math.prod(shape) for _, shape, start, end in places)
        assert [start for _, _, start, _ in places[1:]] == [end for _, _, _, end in places[:-1]]
        assert 0 <= bucket.items - places[-1][3] < 8
        assert bucket.items * ITEM_BYTES[dtype] % 8 == 0
        assert len(places) == 1 or bucket.items * ITEM_BYTES[dtype] <= 1 << 20


def test_a_tensor_larger_than_a_bucket_has_one_of_its_own() -> None:
    plan = make_plan(INDEX, "float32", 1)
    assert plan.buckets == (Bucket(0, 1, 300_000), Bucket(1, 3, 2052))


def test_plan_digest_is_golden_and_depends_on_everything() -> None:
    plan = make_plan(INDEX, "bfloat16", 1)
    assert plan.digest == "e06303519a18dcf421d43697acbcd4a4"
    others = [
        make_plan(INDEX, "float32", 1),
        make_plan(INDEX, "float32", 64),
        make_plan(INDEX[::-1], "bfloat16", 1),
        make_plan([("a.weight", (1000, 300)), *INDEX[1:]], "bfloat16", 1),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == 5


@pytest.mark.parametrize("index", [[], [("a", (1,)), ("a", (2,))]])
def test_an_index_without_tensors_or_with_a_name_twice_makes_no_plan(index: list[tuple[str, tuple[int, ...]]]) -> None:
    with pytest.raises(ValueError, match="make no plan"):
        make_plan(index, "float32", 1)


def test_checksums_are_golden() -> None:
    assert checksum(torch.arange(6, dtype=torch.float32)) == 0x36E254070FA00000
    assert checksum((torch.arange(4 * ROW_WORDS + 12) % 251).to(torch.bfloat16)) == 0x0B8318FFE1803A83
    assert checksum(torch.zeros(10, dtype=torch.float32)) == 0


def reference_checksum(numbers: list[int]) -> int:
    """The definition, in Python's integers."""
    mask, total = (1 << 64) - 1, 0
    for row in range(0, len(numbers), ROW_WORDS):
        partial = 0
        for position, word in enumerate(numbers[row : row + ROW_WORDS]):
            z = (position + 1) * 0x9E3779B97F4A7C15 & mask
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
            partial += ((word & mask) ^ ((word & mask) >> 32)) * ((z ^ z >> 31) | 1)
        total = (total * 0x9E3779B97F4A7C15 + partial) & mask
    return total


def test_checksum_agrees_with_its_definition_across_rows() -> None:
    numbers = torch.randint(-(2**63), 2**63 - 1, (2 * ROW_WORDS + 5,), generator=torch.Generator().manual_seed(1))
    assert checksum(numbers.view(torch.float32)) == reference_checksum(numbers.tolist())


def test_checksum_notices_any_changed_bit_and_any_swap() -> None:
    buffer = torch.randn(2 * ROW_WORDS + 8, generator=torch.Generator().manual_seed(2))
    before = checksum(buffer)
    for word in (0, 1, ROW_WORDS - 1, ROW_WORDS, ROW_WORDS + 3):
        for bit in (0, 31, 32, 62, 63):
            changed = buffer.clone()
            words(changed)[word] ^= (1 << bit) if bit < 63 else -(1 << 63)
            assert checksum(changed) != before
    exponents = torch.tensor([1.0, 2.0]).repeat(512)
    swapped = exponents.clone()
    swapped[2], swapped[515] = exponents[515], exponents[2]
    assert checksum(swapped) != checksum(exponents)


def test_digest_depends_on_the_order_of_buckets_and_on_the_plan() -> None:
    plan = make_plan(INDEX, "float32", 1)
    assert len(combine(plan, [1, 2])) == 16
    assert len({combine(plan, [1, 2]), combine(plan, [2, 1]), combine(make_plan(INDEX, "bfloat16", 1), [1, 2])}) == 3


def test_padding_is_zero_on_both_ends() -> None:
    plan = make_plan([("odd", (3,))], "bfloat16", 1)
    assert empty_bucket(plan, plan.buckets[0]).tolist() == [0.0] * 4


def test_probe_tokens_are_golden_and_leave_room_for_one_more() -> None:
    assert probe_tokens(48, 64)[:8] == [37, 3, 29, 39, 20, 2, 13, 45]
    assert len(probe_tokens(48, 64)) == 33
    assert len(probe_tokens(48, 10)) == 9
    assert len(probe_tokens(151_936, 2)) == 1
    assert max(probe_tokens(7, 4096)) < 7


def test_last_word_returns_as_it_was_and_a_bucket_is_none() -> None:
    assert unpack_last_word(pack_last_word("f0debc9a78563412", [-1.5, -2.0])) == LastWord("f0debc9a78563412", (-1.5, -2.0))
    with pytest.raises(TransferError, match="same plan"):
        unpack_last_word(torch.zeros_like(pack_last_word("00" * 8, [])))


def checkpoint(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_index_is_sorted_and_leaves_a_tied_output_matrix_out(tmp_path: Path) -> None:
    tensors = {"lm_head.weight": torch.zeros(4, 2), "z": torch.zeros(2), "a": torch.zeros(3, 1, dtype=torch.bfloat16)}
    assert tensor_index(checkpoint(tmp_path, tensors, tie_word_embeddings=True)) == [("a", (3, 1)), ("z", (2,))]
    assert [name for name, _ in tensor_index(checkpoint(tmp_path, tensors))] == ["a", "lm_head.weight", "z"]


def test_index_of_several_files_is_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"b": torch.zeros(1)}, tmp_path / "x1.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "x2.safetensors")
    listing = {"weight_map": {"b": "x1.safetensors", "a": "x2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(listing))
    assert tensor_index(tmp_path) == [("a", (2,)), ("b", (1,))]
    (tmp_path / "x2.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"x2\.safetensors"):
        tensor_index(tmp_path)


def test_a_folder_without_weights_is_refused_with_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path"):
        tensor_index(tmp_path)


def test_a_bucket_is_filled_to_its_last_byte() -> None:
    """1 MiB are 2**18 float32 numbers; one more begins a bucket."""
    half = 1 << 17
    assert [b.last - b.first for b in make_plan([("a", (half,)), ("b", (half,)), ("c", (1,))], "float32", 1).buckets] == [2, 1]
    assert [b.last - b.first for b in make_plan([("a", (half,)), ("b", (half + 1,))], "float32", 1).buckets] == [1, 1]


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
def test_an_empty_bucket_has_the_plans_dtype(dtype: str) -> None:
    plan = make_plan(INDEX, dtype, 1)
    buffer = empty_bucket(plan, plan.buckets[0])
    assert buffer.dtype is getattr(torch, dtype) and not buffer.any() and buffer.device.type == "cpu"


def test_the_digest_of_a_version_is_golden() -> None:
    plan = make_plan(INDEX, "float32", 1)
    assert combine(plan, [1, 2**64 - 1]) == GOLDEN_DIGEST
    assert combine(plan, [2**64 - 1, 1]) != GOLDEN_DIGEST


def test_a_key_of_the_models_config_may_stand_in_its_text_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": 1, "text_config": {"a": 2, "b": 3}}))
    assert [model_config_value(tmp_path, key) for key in ("a", "b", "c")] == [1, 3, None]
    (tmp_path / "config.json").write_text(json.dumps({"text_config": "x"}))
    assert model_config_value(tmp_path, "b") is None
