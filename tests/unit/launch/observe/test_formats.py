from __future__ import annotations

from launch.observe.formats import sparkline


def test_a_sparkline_spans_from_lowest_to_highest_and_keeps_its_width() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 1]) == "▁█"
    assert sparkline([2, 2, 2]) == "▁▁▁"
    assert len(sparkline(list(range(1000)), width=40)) == 40
