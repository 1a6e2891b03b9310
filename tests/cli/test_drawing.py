"""Numbers as small bars."""

from wharf.cli.common.rendering import SPARKLINE_WIDTH, render_sparkline


def test_each_number_is_a_bar_by_its_share_of_the_top() -> None:
    assert "▁▄█" == render_sparkline([0.0, 49.0, 100.0], max_value=100.0)


def test_what_goes_beyond_the_top_is_the_highest() -> None:
    assert "▄█" == render_sparkline([99.0, 200.0], max_value=100.0)


def test_of_many_numbers_the_greatest_of_their_neighbours_is_drawn() -> None:
    line = render_sparkline([0.0] * 59 + [100.0], max_value=100.0)

    assert "▁" * (SPARKLINE_WIDTH - 1) + "█" == line


def test_of_nothing_nothing_is_drawn() -> None:
    assert "" == render_sparkline([], max_value=1.0)
