from __future__ import annotations

import pytest

from learner.dispatcher.serving.beats import Beats
from schemas.errors import BrokerError
from tests.fakes.clock import Clock


def test_the_next_beat_waits_until_the_last_one_was_read_back() -> None:
    clock = Clock()
    beats = Beats(1.0, 60.0, clock)
    assert beats.due() and beats.number == 1
    clock.now += 30
    assert not beats.due(), "it has not come back"
    beats.read_back()
    assert not beats.due() and beats.patience(5.0) == 1.0
    clock.now += 1
    assert beats.due() and beats.number == 2
    assert beats.patience(5.0) == 5.0


def test_a_beat_that_never_comes_back_is_an_outage_with_an_end() -> None:
    clock = Clock()
    beats = Beats(1.0, 60.0, clock)
    beats.due()
    clock.now += 60
    assert not beats.due()
    clock.now += 0.1
    with pytest.raises(BrokerError, match=r"for 60 s \(kafka.outage_timeout_s\)"):
        beats.due()
