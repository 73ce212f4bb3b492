"""Which keys of a run's config may change when its sealed batches are trained again. Pure.

The records and the checkpoint exist already: a key that they depend on cannot change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schemas.config.base import LOCAL
from schemas.config.config import KEYS, SECTIONS
from schemas.errors import ConfigError, Problem

FREE_SECTIONS = frozenset({"loss_fn", "learner", "checkpointing", "logger", "launch", "kafka"})
FREE_KEYS = frozenset(
    {
        "grpo.normalize_rewards",
        "grpo.use_leave_one_out_baseline",
        "grpo.overlong_filtering",
        *(key.path for key in KEYS if LOCAL in key.marks and key.path.startswith("grpo.")),
        "model.path",
        "model.tokenizer",
    }
)
"""Keys of other sections that only say how groups are weighed, how long the run is, or where its model lies now."""

_SEALED = "the batch is the sealed one"
_MADE = (
    f"{_SEALED}, its groups were made under the run's own value",
    "leave it out; a fork (run.fork_from) trains on new groups",
)
_REASONS = {
    "run": (f"{_SEALED}, it belongs to the run as it is", "leave it out; --run and --from say which run"),
    "model": (f"{_SEALED}, and the checkpoint is of the run's own model", "leave it out; model.path says where it lies now"),
}


def check_changes(overrides: Iterable[str]) -> None:
    """Refuse every override whose key cannot change. Unknown sections are left to whoever reads the config.

    Raises:
        ConfigError: all such keys, each with its reason.
    """
    problems = list(_refused(override.partition("=")[0] for override in overrides if "=" in override))
    if problems:
        raise ConfigError(problems)


def _refused(keys: Iterable[str]) -> Iterator[Problem]:
    for key in keys:
        section = key.partition(".")[0]
        if section in FREE_SECTIONS or key in FREE_KEYS or section not in SECTIONS:
            continue
        if key == "grpo":
            yield Problem(key, None, f"{_SEALED}, not all of the section can change", "give single keys: grpo.KEY=value")
            continue
        yield Problem(key, None, *_REASONS.get(section, _MADE))
