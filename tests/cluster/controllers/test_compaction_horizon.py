"""The compaction horizon of the log: an index may be deleted once it is old enough."""

from wharf.cluster.server.log.compaction import LogAgeTracker


def test_no_index_is_returned_before_it_is_old_enough() -> None:
    horizon = LogAgeTracker(retention_s=600)
    horizon.record_index(0.0, 10)

    assert horizon.take_expired_index(599.9) is None


def test_the_newest_index_that_is_old_enough_is_returned() -> None:
    horizon = LogAgeTracker(retention_s=600)
    for minute in range(12):
        horizon.record_index(minute * 60.0, 100 + minute)

    assert horizon.take_expired_index(660.0) == 101


def test_an_index_is_returned_once() -> None:
    horizon = LogAgeTracker(retention_s=600)
    horizon.record_index(0.0, 10)

    assert [horizon.take_expired_index(700.0), horizon.take_expired_index(700.0)] == [10, None]
