"""What may be forgotten of the log is what was reached long enough ago."""

from wharf.controllers.horizon import Horizon


def test_nothing_may_be_forgotten_before_it_is_old_enough() -> None:
    horizon = Horizon(kept_s=600)
    horizon.note(0.0, 10)

    assert horizon.passed(599.9) is None


def test_the_newest_index_that_is_old_enough_is_told() -> None:
    horizon = Horizon(kept_s=600)
    for minute in range(12):
        horizon.note(minute * 60.0, 100 + minute)

    assert horizon.passed(660.0) == 101


def test_an_index_is_told_once() -> None:
    horizon = Horizon(kept_s=600)
    horizon.note(0.0, 10)

    assert [horizon.passed(700.0), horizon.passed(700.0)] == [10, None]
