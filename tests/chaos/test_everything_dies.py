"""Broker, learner and producers die together at random moments: no group is lost, none is trained twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.striking.kill_all import live_and_die
from tests.fakes.nursery import Nursery


def nothing_is_lost(folder: Path, nursery: Nursery, kills: int, seed: int) -> None:
    books = live_and_die(folder, nursery, kills, seed, print)
    print(books.ledger.line)
    assert books.wrong == []
    assert books.ledger.trained == books.ledger.sealed > 0
    assert books.ledger.acknowledged >= books.ledger.trained // 2  # what was acknowledged right before a kill is not written down


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_trained_twice_when_everything_dies_at_once(nursery: Nursery, tmp_path: Path) -> None:
    nothing_is_lost(tmp_path, nursery, kills=2, seed=3)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_it_may_die_as_often_as_it_likes(nursery: Nursery, tmp_path: Path) -> None:
    nothing_is_lost(tmp_path, nursery, kills=20, seed=1)
