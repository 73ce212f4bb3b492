"""Which rank gets which slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.grpo.split import split_by_tokens


def test_ranks_get_as_many_groups_and_about_as_many_tokens() -> None:
    assert split_by_tokens([100, 1, 1, 98, 50, 50], 2) == [[0, 2, 5], [1, 3, 4]]
    assert split_by_tokens([7, 7, 7, 7], 2) == [[0, 2], [1, 3]]
    with pytest.raises(ValueError, match="5 slots cannot be dealt evenly to 2"):
        split_by_tokens([1] * 5, 2)


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_every_slot_goes_to_one_rank_and_no_rank_is_far_behind(dp_size: int, places: int, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 1000), min_size=dp_size * places, max_size=dp_size * places))
    ranks = split_by_tokens(counts, dp_size)
    assert sorted(slot for rank in ranks for slot in rank) == list(range(len(counts)))
    assert {len(rank) for rank in ranks} == {places}
    assert all(rank == sorted(rank) for rank in ranks)
    loads = [sum(counts[slot] for slot in rank) for rank in ranks]
    assert max(loads) - min(loads) <= max(counts) * places
    assert split_by_tokens(counts, dp_size) == ranks
