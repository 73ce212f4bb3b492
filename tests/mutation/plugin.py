"""What a mutant's tests need of pytest: the fastest run first, and none runs on for long or eats the memory.

mutmut names the tests of a mutant in no order and stops at the first that fails, so a mutant costs little where a fast test
finds it. Hypothesis draws the same few examples for each mutant and does not shrink them: a verdict is all that is wanted.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from mutmut.mutation import trampoline

from tests.mutation import scope

EXAMPLES = 40
MEMORY_BYTES = 8 << 30
TIMED_OUT = 36  # mutmut's exit status of a mutant that ran out of time
MUTANT = "MUTANT_UNDER_TEST"
STATS = Path("mutmut-stats.json")

settings.register_profile(
    "mutation", max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)


class Verdict:
    """Sees one run of pytest, and makes a test's timeout that of the mutant."""

    def __init__(self) -> None:
        self.timed_out = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.timed_out |= report.failed and "from pytest-timeout" in str(report.longrepr)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.timed_out:
            session.exitstatus = TIMED_OUT


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("mutation")  # after that of tests/conftest.py
    if config.option.collectonly:  # in the process that mutants are forked from
        for name in scope.PRELOADED:
            importlib.import_module(name)
    if is_mutant():
        config.pluginmanager.register(Verdict())
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        gc.freeze()  # pytest collects all garbage at its end, and what was imported before is most of it
        trampoline.get_mutant_under_test = lambda name=os.environ[MUTANT]: name


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        cap_examples(item)
    if is_mutant():
        seconds = json.loads(STATS.read_text())["duration_by_test"]
        items.sort(key=lambda item: (seconds.get(item.nodeid, 0.0), item.nodeid))
        for item in items:
            item.add_marker(pytest.mark.timeout(15 + 5 * seconds.get(item.nodeid, 0.0)), append=False)


def is_mutant() -> bool:
    return "__mutmut_" in os.environ.get(MUTANT, "")


def cap_examples(item: pytest.Item) -> None:
    """Also for a test that asks for many examples: a decorator's settings go before those of a profile."""
    test = getattr(item, "obj", None)
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None and own.max_examples > EXAMPLES:
        test._hypothesis_internal_use_settings = settings(own, max_examples=EXAMPLES)  # type: ignore[union-attr]
