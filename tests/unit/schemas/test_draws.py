"""Which prompt fills a slot: every row once an epoch, the same on every machine and in every release."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.draws import last_version, row_of

GOLDEN_ORDERS = {
    1: [0],
    2: [0, 1],
    3: [0, 1, 2],
    4: [0, 1, 3, 2],
    5: [1, 3, 0, 2, 4],
    9: [8, 3, 0, 7, 4, 1, 6, 2, 5],
    16: [12, 3, 13, 7, 4, 1, 6, 9, 5, 10, 11, 15, 8, 0, 14, 2],
    17: [9, 8, 4, 13, 2, 7, 12, 10, 6, 11, 0, 3, 16, 15, 5, 14, 1],
}


def stream(seed: int, rows: int, prompts_per_step: int, count: int) -> list[int]:
    """Rows of draw 0 of the first slots, in order of (version, slot)."""
    places = [divmod(ordinal, prompts_per_step) for ordinal in range(count)]
    return [row_of(seed, rows, prompts_per_step, version, slot, 0) for version, slot in places]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**63 - 1), st.integers(1, 150), st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_has_every_row_once_also_where_n_does_not_divide_d(seed: int, rows: int, n: int, epoch: int) -> None:
    drawn = stream(seed, rows, n, rows * (epoch + 1))[rows * epoch :]
    assert sorted(drawn) == list(range(rows))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 64, 65, 1000])
def test_sizes_around_powers_of_two_are_permuted_too(rows: int) -> None:
    assert sorted(stream(7, rows, 1, rows)) == list(range(rows))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(stream(0, 64, 16, 64 * 3)[64 * epoch : 64 * (epoch + 1)]) for epoch in range(3)]
    orders += [tuple(stream(seed, 64, 16, 64)) for seed in (1, 2)]
    orders.append(tuple(range(64)))
    assert len(set(orders)) == 6


def test_the_stream_does_not_depend_on_n() -> None:
    assert stream(5, 30, 7, 90) == stream(5, 30, 16, 90) == stream(5, 30, 1, 90)


def test_rows_are_the_golden_ones() -> None:
    assert stream(3, 10, 4, 20) == [0, 5, 9, 1, 7, 4, 8, 2, 6, 3, 0, 6, 2, 9, 7, 5, 3, 4, 8, 1]
    assert [row_of(3, 10, 4, 2, 1, draw) for draw in range(1, 8)] == [5, 0, 2, 9, 3, 4, 8]
    assert [row_of(2**63 - 1, 1_000_003, 16, version, 5, 0) for version in range(4)] == [322542, 803079, 757317, 634960]
    assert [row_of(0, None, 4, 2, 1, draw) for draw in range(3)] == [9, 302700590225620, 513088209659073]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**63 - 1), st.integers(1, 10**9), st.integers(0, 10**6), st.integers(0, 10**6 - 1), st.integers(0, 2**64 - 1)
)
def test_every_draw_is_a_row(seed: int, rows: int, version: int, slot: int, draw: int) -> None:
    assert 0 <= row_of(seed, rows, 10**6, version, slot, draw) < rows


def test_later_draws_of_a_slot_reach_many_rows() -> None:
    assert len({row_of(0, 64, 16, 3, 5, draw) for draw in range(1, 65)}) > 30
    assert len({row_of(0, 64, 16, 3, slot, 1) for slot in range(16)}) > 8


def test_a_generator_without_end_never_repeats_a_row() -> None:
    first = [row_of(0, None, 16, version, slot, 0) for version in range(10) for slot in range(16)]
    assert first == list(range(160))
    later = [row_of(0, None, 16, version, slot, draw) for version in range(5) for slot in range(16) for draw in range(1, 5)]
    assert len(set(later)) == len(later)
    assert 2**48 <= min(later) and max(later) < 2**49


@pytest.mark.parametrize(
    ("steps", "epochs", "rows", "prompts_per_step", "last"),
    [
        (100, None, 64, 16, 100),
        (100, 1, None, 16, 100),
        (100, 2, 64, 16, 8),
        (5, 2, 64, 16, 5),
        (100, 1, 65, 16, 4),
        (100, 3, 21, 16, 3),
        (100, 1, 15, 16, 0),
    ],
)
def test_the_last_version_drops_the_remainder_of_all_epochs_together(
    steps: int, epochs: int | None, rows: int | None, prompts_per_step: int, last: int
) -> None:
    assert last_version(steps, epochs, rows, prompts_per_step) == last


def test_orders_of_small_data_are_the_golden_ones() -> None:
    """Any permutation would do; another one would train a resumed run on other rows."""
    assert {rows: stream(11, rows, 1, rows) for rows in (1, 2, 3, 4, 5, 9, 16, 17)} == GOLDEN_ORDERS
