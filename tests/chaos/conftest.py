"""Fixtures of the tests that strike processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.nursery import Nursery
from tests.pipeline import environment


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Forks the processes of all these tests from one that has imported what they need."""
    made = Nursery(environment(""))
    yield made
    made.close()
