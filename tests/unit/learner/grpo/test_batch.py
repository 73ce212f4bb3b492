"""From groups to tensors."""

import pytest
import torch

from learner.grpo.batch import deal, make_batch
from schemas.config.grpo import GrpoConfig
from tests.fakes.records.two_groups import two_groups

GRPO = GrpoConfig(num_prompts_per_step=2, num_generations_per_prompt=2, normalize_rewards=False)


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


def test_ranks_of_one_data_parallel_index_are_dealt_the_same_records() -> None:
    dealt = deal(two_groups()[::-1], [b"slot 0", b"slot 1"], 2, [0, 0, 1, 1])
    assert dealt == [[b"slot 1"], [b"slot 1"], [b"slot 0"], [b"slot 0"]]
