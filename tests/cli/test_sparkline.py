"""Sparklines: numbers as a line of small bars."""

from wharf.cli.common.rendering import SPARKLINE_WIDTH, render_sparkline


def test_the_height_of_a_bar_is_its_share_of_the_maximum() -> None:
    assert "▁▄█" == render_sparkline([0.0, 49.0, 100.0], max_value=100.0)


def test_a_number_above_the_maximum_is_the_highest_bar() -> None:
    assert "▄█" == render_sparkline([99.0, 200.0], max_value=100.0)


def test_a_bar_for_several_numbers_shows_their_maximum() -> None:
    line = render_sparkline([0.0] * 59 + [100.0], max_value=100.0)

    assert "▁" * (SPARKLINE_WIDTH - 1) + "█" == line


def test_no_numbers_give_no_bars() -> None:
    assert "" == render_sparkline([], max_value=1.0)
