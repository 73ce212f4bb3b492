"""What is mutated and which tests judge it: the one place to change when files move. Patterns are those of `fnmatch`."""

from __future__ import annotations

SOURCES = ("schemas", "broker_config", "producer", "learner", "launch")
"""The folders that tests import from."""

PACKAGES = {
    "schemas": ("schemas/*",),
    "learner/dispatcher": ("learner/dispatcher/*",),
    "learner/grpo": ("learner/grpo/*",),
    "producer/core": ("producer/core.py",),
}
"""What is mutated, by the name that a score goes under."""

WHOLE = (
    "schemas/*draws.py",
    "schemas/*validity.py",
    "learner/dispatcher/*roster.py",
    "learner/dispatcher/*rounds.py",
    "learner/dispatcher/*slots.py",
    "learner/grpo/losses/*.py",
    "learner/grpo/objective.py",
    "learner/grpo/importance.py",
    "learner/grpo/kl.py",
)
"""Modules of which every mutant is tested, also in a sample: what they get wrong trains on wrong data, unseen."""

TESTS = ("tests/unit", "tests/contract")

LEFT_OUT = (
    "tests/contract/test_docs.py",  # checks pages
    "tests/contract/engine",  # starts vLLM
    "tests/contract/test_kept_dump.py",  # reads what is written once
    "tests/unit/broker_config",  # waits, and judges nothing of the above
    "tests/unit/launch",
    "tests/unit/producer/environments",
    "tests/unit/producer/test_main.py",
    "tests/unit/learner/grpo/losses/test_new_loss.py",  # copies the source tree
    "tests/unit/schemas/config/test_new_key.py",
    "tests/unit/test_rooms.py",
)
"""Tests that cost seconds for each mutant and judge nothing of the above."""

UNMUTATED_LINES = (r"\b_?log(ger)?\.(debug|info|warning|error|exception|critical)\(",)
"""Calls that start on a line which matches are left as they are."""

PRELOADED = ("datasets", "torch.distributed.tensor", "torch.fx.experimental.symbolic_shapes")
"""What libraries import only when it is used: seconds that each mutant would pay anew."""

PROCESSES = 2
