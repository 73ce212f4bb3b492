"""One group of a batch, token by token, with the log-probabilities of engine and learner. Pure, for a person to read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence

from learner.grpo.advantages import group_advantages, mean_and_std
from learner.replay.plan import GroupKey
from learner.replay.sources.sealed import SealedBatch, key_of
from schemas.config.grpo import GrpoConfig
from schemas.errors import ConfigError, Problem
from schemas.records.group import Trajectory, TrajectoryGroup

Decode = Callable[[Sequence[int]], str]


def record_of(batch: SealedBatch, key: GroupKey) -> bytes:
    """The sealed record of the group that `key` names.

    Raises:
        ConfigError: the batch has no such slot, or another draw or attempt of it was trained.
    """
    entry = batch.seal.slots.get(key.slot)
    if entry is None:
        raise ConfigError([Problem("--group", key.text, f"slots are 0 to {len(batch.seal.slots) - 1}", "give one of them")])
    if key.attempt is not None and key.attempt != (entry.draw, entry.attempt):
        trained = key_of(batch.version, key.slot, entry)
        raise ConfigError([Problem("--group", key.text, f"it was not trained, the seal names {trained}", f"give {trained}")])
    return batch.records[key.slot]


def lines(group: TrajectoryGroup, learner_logprobs: Sequence[Sequence[float]], grpo: GrpoConfig, decode: Decode) -> Iterator[str]:
    """The lines for one group. `learner_logprobs[i]` has one number for each response token of trajectory i."""
    rewards = [t.reward for t in group.trajectories]
    mean, std = mean_and_std(rewards)
    advantages = group_advantages(rewards, leave_one_out=grpo.use_leave_one_out_baseline, normalize=grpo.normalize_rewards)
    yield f"{group.request}  row {group.row}  reward {mean:.4g} +- {std:.4g}  {group.producer}"
    yield f"prompt {quoted(decode(group.prompt.tolist()))}  {len(group.prompt)} tokens"
    for index, t in enumerate(group.trajectories):
        parts = "  ".join(f"{name} {value:.4g}" for name, value in t.rewards.items()) if len(t.rewards) > 1 else ""
        yield ""
        yield (
            f"trajectory {index}  reward {t.reward:.4g}  advantage {advantages[index]:+.4f}  {t.finish}"
            + ("  no loss (overlong_filtering)" if grpo.overlong_filtering and t.truncated else "")
            + (f"  {parts}" if parts else "")
        )
        yield from _rows(t, learner_logprobs[index], decode)


def _rows(t: Trajectory, learner: Sequence[float], decode: Decode) -> Iterator[str]:
    texts = [quoted(decode([token])) for token in t.tokens.tolist()]
    width = max(4, *map(len, texts))
    yield f"{'#':>5}  {'token':>7}  {'text':<{width}}  mask  {'version':>7}  {'engine':>10}  {'learner':>10}  {'ratio':>8}"
    rows = zip(t.tokens.tolist(), texts, t.mask.tolist(), t.token_versions().tolist(), t.logprobs.tolist(), learner, strict=True)
    for at, (token, text, mask, version, engine, ours) in enumerate(rows):
        head = f"{at:>5}  {token:>7}  {text:<{width}}  {mask:>4}"
        if not mask:
            yield f"{head}  {'-':>7}  {'-':>10}  {'-':>10}  {'-':>8}"
            continue
        yield f"{head}  {version:>7}  {engine:>10.5f}  {ours:>10.5f}  {ratio(ours, engine):>8.5f}"


def ratio(ours: float, engine: float) -> float:
    """Probability under the learner over that under the engine; infinite where that overflows."""
    try:
        return math.exp(ours - engine)
    except OverflowError:
        return math.inf


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
