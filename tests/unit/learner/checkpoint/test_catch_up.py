"""Steps that are trained again after a resume, against their records."""

from __future__ import annotations

import logging

import pytest

from learner.checkpoint.catch_up import CatchUp


def test_steps_that_differ_are_named_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    found = CatchUp()
    assert found.take_metrics() == {}
    with caplog.at_level(logging.INFO):
        for version, state, recorded in ((4, "a" * 64, "a" * 64), (5, "b" * 64, "c" * 64), (6, "d" * 64, None)):
            found.compare(version, state, recorded)
        assert found.take_metrics() == {"resume/steps": 3.0, "resume/differing": 1.0, "resume/unrecorded": 1.0}
    assert "step=5 trained again to state bbbbbbbbbbbbbbbb, recorded was cccccccccccccccc" in caplog.text
    assert "the first that differs: 5" in caplog.text
    assert found.take_metrics() == {}
