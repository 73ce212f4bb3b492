"""How a batch is cut into steps and passes."""

import pytest
import torch

from learner.model.micro_batches import micro_batches, optimizer_shares
from tests.fakes.learner.tiny_models import make_batch


def test_steps_take_slots_in_order_and_are_of_one_size() -> None:
    assert [share.tolist() for share in optimizer_shares(4, None, 2)] == [[0, 1, 2, 3]]
    assert [share.tolist() for share in optimizer_shares(4, 4, 2)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("rows", "size", "dp"), [(4, 3, 1), (4, 3, 2), (4, 1, 2)])
def test_steps_that_do_not_come_out_even_are_refused(rows: int, size: int, dp: int) -> None:
    with pytest.raises(ValueError, match=f"train_global_batch_size {size} does not cut {rows * dp} trajectories"):
        optimizer_shares(rows, size, dp)


def test_passes_hold_every_row_once_the_longest_first_and_no_wider_than_needed() -> None:
    batch = make_batch(rows=16)
    batch.lengths[3] = batch.lengths[9] = 20  # a tie
    pieces = list(micro_batches(batch, 5))
    rows = [row for index, _ in pieces for row in index.tolist()]
    assert sorted(rows) == list(range(16))
    assert rows.index(3) < rows.index(9)
    lengths = [piece.lengths.tolist() for _, piece in pieces]
    assert [length for of in lengths for length in of] == sorted(batch.lengths.tolist(), reverse=True)
    assert all(
        piece.tokens.shape[1] - 8 < max(of) <= piece.tokens.shape[1] for (_, piece), of in zip(pieces, lengths, strict=True)
    )
    assert torch.equal(pieces[0][1].tokens[0], batch.tokens[rows[0], : pieces[0][1].tokens.shape[1]])
