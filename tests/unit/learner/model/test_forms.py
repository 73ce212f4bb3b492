"""Forms: what is cut over ranks and put together again is what it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from learner.model.families.forms import COLUMNS, GATE_UP, QKV, ROWS, SAME, VOCABULARY, Form, Sizes, padded_vocab

SIZES = Sizes(queries=8, groups=4, width=2, vocab=7, rank=0, ranks=1)
CASES: dict[str, tuple[Form, tuple[tuple[int, ...], ...]]] = {
    "same": (SAME, ((6,),)),
    "rows": (ROWS, ((8, 6),)),
    "columns": (COLUMNS, ((6, 8),)),
    "vocabulary": (VOCABULARY, ((7, 6),)),
    "qkv": (QKV, ((16, 6), (8, 6), (8, 6))),
    "qkv bias": (QKV, ((16,), (8,), (8,))),
    "gate and up": (GATE_UP, ((8, 6), (8, 6))),
}
"""A form and the shapes of the checkpoint's tensors, for `SIZES`."""


def numbered(shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    """Every element another number."""
    made, start = [], 1
    for shape in shapes:
        count = torch.Size(shape).numel()
        made.append(torch.arange(start, start + count).reshape(shape))
        start += count
    return made


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_shares_of_all_ranks_make_the_whole_again(case: str, ranks: int) -> None:
    form, shapes = CASES[case]
    full = numbered(shapes)
    sizes = [replace(SIZES, rank=rank, ranks=ranks) for rank in range(ranks)]
    shares = [form.share(full, of) for of in sizes]
    assert len({tuple(share.shape) for share in shares}) == 1
    held = sum(share.numel() for share in shares)
    assert held >= sum(tensor.numel() for tensor in full) if form.split else held == ranks * full[0].numel()
    back = form.whole(shares if form.split else shares[:1], sizes[0])
    assert [tensor.tolist() for tensor in back] == [tensor.tolist() for tensor in full]


def test_each_query_group_keeps_its_heads_together() -> None:
    q, k, v = torch.arange(16), torch.arange(100, 108), torch.arange(200, 208)
    fused = QKV.share([q, k, v], SIZES)
    assert fused[:8].tolist() == [0, 1, 2, 3, 100, 101, 200, 201]
    assert fused[8:16].tolist() == [4, 5, 6, 7, 102, 103, 202, 203]


def test_a_rank_has_as_much_of_the_gate_as_of_up() -> None:
    gate, up = torch.arange(4), torch.arange(10, 14)
    assert GATE_UP.share([gate, up], replace(SIZES, rank=1, ranks=2)).tolist() == [2, 3, 12, 13]


def test_a_vocabulary_is_filled_up_with_zeros_and_loses_them_again() -> None:
    assert padded_vocab(7, 4) == 8
    last = VOCABULARY.share([torch.ones(7, 2)], replace(SIZES, rank=3, ranks=4))
    assert last.tolist() == [[1, 1], [0, 0]]
