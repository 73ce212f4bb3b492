"""Whether a group may be trained: a pure function of the record, the run's config and its target version.

Never of who sent it, of the roster, of an incarnation or of a deadline: so every reader of the log, at any time, judges alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from schemas.draws import row_of
from schemas.errors import RecordRefused
from schemas.records.group import Trajectory, TrajectoryGroup, content_sha256, decode

LOGPROB_ROUNDING = 1e-3
"""A log-probability may exceed 0 by this much: low-precision log-softmax rounds."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the run expects of every group: from its config and its data set, the same for all versions."""

    run: str
    seed: int
    rows: int | None
    validation_rows: int | None
    prompts_per_step: int
    generations_per_prompt: int
    max_age: int
    vocab_size: int
    max_total_length: int
    max_record_bytes: int


def accept(value: bytes, headers: Mapping[str, bytes], version: int, rules: Rules) -> tuple[TrajectoryGroup, str]:
    """The group in `value`, if it may be part of target `version`, and its content digest.

    Raises:
        RecordRefused: with a short reason for counting: size, digest, malformed, schema, run, version, slot, row, members,
            length, vocabulary, mask, spans, age, logprobs, reward.
    """
    if len(value) > rules.max_record_bytes:
        raise RecordRefused("size", f"{len(value)} bytes, at most {rules.max_record_bytes}")
    sha = headers.get("sha256", b"").decode("ascii", "replace")
    if sha != hashlib.sha256(value).hexdigest():
        raise RecordRefused("digest", "header sha256 is not that of the value")
    group = decode(value)
    check(group, version, rules)
    content = content_sha256(group)
    if headers.get("content_sha256", b"").decode("ascii", "replace") != content:
        raise RecordRefused("digest", "header content_sha256 is not that of the contents")
    return group, content


def check(group: TrajectoryGroup, version: int, rules: Rules) -> None:
    """Raise `RecordRefused` unless the decoded group fits target `version` of the run."""
    at = group.request
    if group.run != rules.run:
        raise RecordRefused("run", f"of run {group.run}, this is {rules.run}")
    if at.version != version:
        raise RecordRefused("version", f"for target {at.version} in the topic of target {version}")
    _check_prompt(group, rules)
    if not group.trajectories:
        raise RecordRefused("members", "a group without trajectories")
    if group.kind == "rollout" and len(group.trajectories) != rules.generations_per_prompt:
        raise RecordRefused("members", f"{len(group.trajectories)} trajectories, expected {rules.generations_per_prompt}")
    oldest = version if group.kind == "validation" else version - rules.max_age
    if _plainly_valid(group, oldest, version, rules):
        return
    for index, t in enumerate(group.trajectories):
        try:
            _check_trajectory(t, len(group.prompt), oldest, version, rules)
        except RecordRefused as refused:
            raise RecordRefused(refused.reason, f"trajectory {index}: {refused.detail}") from None


def _plainly_valid(group: TrajectoryGroup, oldest: int, newest: int, rules: Rules) -> bool:
    """Whether all trajectories pass `_check_trajectory`, for the common form of a group, in one pass over all of them.

    False says nothing: then each is checked by itself, which also finds the words.
    """
    longest = rules.max_total_length - len(group.prompt)
    for t in group.trajectories:
        length = len(t.tokens) if t.tokens.ndim == 1 else 0
        if not (0 < length <= longest and t.mask.shape == t.logprobs.shape == (length,) and len(t.spans) == 1):
            return False
        (span,) = t.spans
        if span.start != 0 or span.end != length or not oldest <= span.version <= newest:
            return False
        if not t.rewards or not math.isfinite(t.reward):  # a sum with a part that is not finite is not finite
            return False
    masks = np.concatenate([t.mask for t in group.trajectories])
    logprobs = np.concatenate([t.logprobs for t in group.trajectories])
    # A NaN is not below the bound; minus infinity is below every bound but the lower one.
    return bool(
        masks.min() == masks.max() == 1
        and np.concatenate([t.tokens for t in group.trajectories]).max() < rules.vocab_size
        and float(logprobs.max()) <= LOGPROB_ROUNDING
        and float(logprobs.min()) > -math.inf
    )


def _check_prompt(group: TrajectoryGroup, rules: Rules) -> None:
    at = group.request
    if group.kind == "rollout":
        if at.slot >= rules.prompts_per_step:
            raise RecordRefused("slot", f"slot {at.slot}, the step has {rules.prompts_per_step}")
        row = row_of(rules.seed, rules.rows, rules.prompts_per_step, at.version, at.slot, at.draw)
        if group.row != row:
            raise RecordRefused("row", f"row {group.row}, draw {at.draw} of slot {at.slot} is row {row}")
    elif rules.validation_rows is not None and group.row >= rules.validation_rows:
        raise RecordRefused("row", f"validation row {group.row} of {rules.validation_rows}")
    if group.prompt.ndim != 1 or len(group.prompt) == 0:
        raise RecordRefused("length", f"a prompt of shape {group.prompt.shape}")
    if int(group.prompt.max()) >= rules.vocab_size:
        raise RecordRefused("vocabulary", f"prompt token {int(group.prompt.max())}, the vocabulary has {rules.vocab_size}")


def _check_trajectory(t: Trajectory, prompt_length: int, oldest: int, newest: int, rules: Rules) -> None:
    if t.tokens.ndim != 1 or t.mask.shape != t.tokens.shape or t.logprobs.shape != t.tokens.shape:
        raise RecordRefused("length", f"tokens {t.tokens.shape}, mask {t.mask.shape}, logprobs {t.logprobs.shape}")
    length = len(t.tokens)
    if length == 0 or prompt_length + length > rules.max_total_length:
        raise RecordRefused("length", f"{prompt_length} + {length} tokens, allowed 1 to {rules.max_total_length} in all")
    if int(t.tokens.max()) >= rules.vocab_size:
        raise RecordRefused("vocabulary", f"token {int(t.tokens.max())}, the vocabulary has {rules.vocab_size}")
    if int(t.mask.max()) > 1:
        raise RecordRefused("mask", "a mask other than 0 and 1")
    if not t.mask.any():
        raise RecordRefused("mask", "no generated token")
    _check_spans(t, oldest, newest)
    drawn = t.logprobs[t.mask == 1]
    # Also where nothing was generated: a masked loss multiplies by 0, and 0 times a NaN is a NaN.
    if not np.isfinite(t.logprobs).all() or float(drawn.max()) > LOGPROB_ROUNDING:
        raise RecordRefused("logprobs", "a log-probability is not finite, or that of a generated token is above 0")
    if not t.rewards or not np.isfinite([*t.rewards.values(), t.reward]).all():
        raise RecordRefused("reward", f"rewards {dict(t.rewards)!r}")


def _check_spans(t: Trajectory, oldest: int, newest: int) -> None:
    covered = np.zeros(len(t.tokens), dtype=bool)
    at = 0
    for span in t.spans:
        if not at <= span.start < span.end <= len(t.tokens):
            raise RecordRefused("spans", f"span {span} after {at} in {len(t.tokens)} tokens")
        if not oldest <= span.version <= newest:
            raise RecordRefused("age", f"tokens of version {span.version}, allowed {oldest} to {newest}")
        covered[span.start : span.end] = True
        at = span.end
    if not np.array_equal(covered, t.mask == 1):
        raise RecordRefused("spans", "the spans do not cover exactly the generated tokens")
