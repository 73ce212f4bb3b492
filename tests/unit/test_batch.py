"""From groups to tensors, and which rank gets which slots."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.grpo.batch import make_batch
from learner.grpo.group_metrics import group_metrics
from learner.grpo.split import split_by_tokens
from schemas.config.grpo import GrpoConfig
from schemas.records.group import FinishReason, Span, Trajectory, TrajectoryGroup
from tests.fakes.groups import make_group, make_trajectory

GRPO = GrpoConfig(num_prompts_per_step=2, num_generations_per_prompt=2, normalize_rewards=False)


def trajectory(tokens: list[int], mask: list[int], versions: list[int], reward: float, *, truncated: bool = False) -> Trajectory:
    """`versions` gives the version of each token with mask 1."""
    spans = [Span(v, i, i + 1) for i, v in zip(np.flatnonzero(mask).tolist(), versions, strict=True)]
    return make_trajectory(
        tokens=tokens,
        mask=mask,
        logprobs=[-0.5 - i if m else 0.0 for i, m in enumerate(mask)],
        spans=spans,
        finish=FinishReason.LENGTH if truncated else FinishReason.STOP,
        rewards={"exact": reward},
    )


def group(slot: int, prompt: list[int], *trajectories: Trajectory, version: int = 7) -> TrajectoryGroup:
    return make_group(version, slot, prompt=prompt, trajectories=trajectories)


def two_groups() -> list[TrajectoryGroup]:
    multi_turn = trajectory([20, 21, 22, 23], [1, 0, 1, 1], [6, 6, 7], 1.0)
    return [
        group(1, [5, 6, 7], trajectory([30], [1], [7], 0.0), trajectory([31, 32], [1, 1], [5, 5], 4.0, truncated=True)),
        group(0, [8], multi_turn, trajectory([24], [1], [7], 0.0)),
    ]


def test_rows_stand_in_slot_order_with_prompt_response_and_padding() -> None:
    batch = make_batch(two_groups(), GRPO)
    assert batch.slots.tolist() == [0, 0, 1, 1]
    assert batch.lengths.tolist() == [5, 2, 4, 5]
    assert batch.tokens.tolist()[0] == [8, 20, 21, 22, 23, 0, 0, 0]
    assert batch.token_mask.tolist()[0] == [0, 1, 0, 1, 1, 0, 0, 0]
    assert batch.gen_logprobs.tolist()[0] == [0, -0.5, 0, -2.5, -3.5, 0, 0, 0]
    assert batch.ages.tolist()[0] == [0, 1, 0, 1, 0, 0, 0, 0]
    assert batch.ages.tolist()[3] == [0, 0, 0, 2, 2, 0, 0, 0]
    assert batch.advantages.tolist() == [0.5, -0.5, -2.0, 2.0]
    assert batch.tokens.dtype == batch.ages.dtype == torch.int64
    assert batch.token_mask.dtype == batch.gen_logprobs.dtype == batch.advantages.dtype == torch.float32


def test_truncated_trajectories_lose_their_loss_but_stay_in_the_baseline() -> None:
    batch = make_batch(two_groups(), GRPO.model_copy(update={"overlong_filtering": True}))
    assert batch.sample_mask.tolist() == [1, 1, 1, 0]
    assert batch.advantages.tolist()[2:] == [-2.0, 2.0]
    assert make_batch(two_groups(), GRPO).sample_mask.tolist() == [1, 1, 1, 1]


def test_padding_follows_the_longest_trajectory() -> None:
    assert make_batch(two_groups(), GRPO, pad_to=4).tokens.shape == (4, 8)
    assert make_batch(two_groups(), GRPO, pad_to=5).tokens.shape == (4, 5)


def test_rows_of_a_batch_are_cut_to_their_longest() -> None:
    piece = make_batch(two_groups(), GRPO, pad_to=5).rows(torch.tensor([1, 2]), pad_to=2)
    assert piece.tokens.tolist() == [[8, 24, 0, 0], [5, 6, 7, 30]]
    assert piece.slots.tolist() == [0, 1]


def test_no_groups_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one group"):
        make_batch([], GRPO)


def test_metrics_of_groups() -> None:
    metrics = group_metrics(two_groups())
    assert metrics["reward"] == 1.25
    assert metrics["groups_with_variance"] == 2
    assert metrics["mean_gen_tokens"] == (3 + 1 + 1 + 2) / 4
    assert metrics["mean_prompt_length"] == 2.0
    assert metrics["total_num_tokens"] == 2 * 1 + 2 * 3 + 8
    assert metrics["avg_trajectory_age"] == (1 + 2) / 2
    assert metrics["max_trajectory_age"] == 2
    assert metrics["avg_token_age"] == (1 + 1 + 0 + 0 + 0 + 2 + 2) / 7
    assert {k: v for k, v in metrics.items() if "_of_age_" in k} == {
        "groups_of_age_1": 1.0,
        "groups_of_age_2": 1.0,
        "tokens_of_age_0": 3.0,
        "tokens_of_age_1": 2.0,
        "tokens_of_age_2": 2.0,
    }
    assert metrics["truncation_rate"] == 0.25
    assert not any(name.startswith("reward/") for name in metrics)


def test_metrics_do_not_depend_on_the_order_in_which_groups_came() -> None:
    assert group_metrics(two_groups()) == group_metrics(two_groups()[::-1])


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
