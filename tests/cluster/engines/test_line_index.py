"""The index of lines: which line of a key is current, which lines are dead or stale, and which records a lease holds."""

import pytest

from wharf.cluster.engines.port import LogPosition
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES
from wharf.cluster.engines.sqlite.line_index import LogLineIndex


def make_index(*, tail_from: int = 0) -> LogLineIndex:
    return LogLineIndex(epoch=3, epoch_since=2, tail_from=tail_from, last_changes={"old": 1})


def at(index: int, position: int = 0) -> int:
    """Return the place of a line of the batch at `index`."""
    return index * MAX_BATCH_LINES + position


def put(lines: LogLineIndex, place: int, key: str, *, table: str = "jobs", lease: int | None = None) -> None:
    lines.add_line(place, table, key, is_drop=False, lease=lease, size=0)


def drop(lines: LogLineIndex, place: int, key: str, *, table: str = "jobs") -> None:
    lines.add_line(place, table, key, is_drop=True, lease=None, size=0)


def test_the_version_of_a_record_is_the_index_of_its_newest_line() -> None:
    lines = make_index()
    put(lines, at(1, 1), "a")
    put(lines, at(1, MAX_BATCH_LINES - 1), "b")
    put(lines, at(2, 1), "a")
    put(lines, at(2, 2), "a", table="nodes")
    put(lines, at(3, 1), "gone")
    drop(lines, at(4, 1), "gone")

    versions = [
        lines.get_version(table, key)
        for table, key in (("jobs", "a"), ("jobs", "b"), ("nodes", "a"), ("jobs", "gone"), ("jobs", "x"), ("none", "a"))
    ]
    assert versions == [2, 1, 2, 0, 0, 0]


def test_heads_set_the_newest_index_and_heads_before_the_tail_are_stale() -> None:
    lines = make_index(tail_from=5)

    assert lines.index == 5
    assert [lines.add_head(at(index)) for index in (4, 5, 6, 9)] == [False, False, True, True]
    assert (lines.index, lines.stale_lines) == (9, [at(4), at(5)])


def test_a_replaced_line_is_dead_and_stale_only_before_the_tail() -> None:
    lines = make_index(tail_from=5)
    put(lines, at(4, 1), "a")
    put(lines, at(5, 1), "b")
    put(lines, at(6, 1), "c")
    assert (lines.dead_lines, lines.stale_lines) == (set(), [])

    for position, key in enumerate("abc"):
        put(lines, at(7, position + 1), key)

    assert lines.dead_lines == {at(4, 1), at(5, 1), at(6, 1)}
    assert lines.stale_lines == [at(4, 1), at(5, 1)]


@pytest.mark.parametrize(("index", "is_stale"), [(4, True), (5, True), (6, False)])
def test_a_deletion_is_a_dead_line_and_stale_only_before_the_tail(index: int, is_stale: bool) -> None:
    lines = make_index(tail_from=5)
    put(lines, at(3, 1), "a")

    drop(lines, at(index, 2), "a")
    drop(lines, at(index, 3), "missing")

    assert lines.dead_lines == {at(3, 1), at(index, 2), at(index, 3)}
    assert lines.stale_lines == [at(3, 1), *([at(index, 2), at(index, 3)] if is_stale else [])]


def test_only_changes_of_the_tail_count_and_set_the_last_changes() -> None:
    lines = make_index(tail_from=5)
    put(lines, at(5, 1), "a")
    assert (lines.tail_changes, lines.get_position()) == (0, LogPosition(5, {"old": 1}, 3, 2))

    lines.add_head(at(6))
    put(lines, at(6, 1), "a")
    drop(lines, at(6, 2), "n", table="nodes")
    lines.add_head(at(8))
    put(lines, at(8, 1), "a")

    assert (lines.tail_changes, lines.get_position()) == (3, LogPosition(8, {"old": 1, "jobs": 8, "nodes": 6}, 3, 2))


def test_a_returned_position_does_not_change_with_later_lines() -> None:
    lines = make_index()
    position = lines.get_position()

    put(lines, at(1, 1), "a")

    assert position == LogPosition(0, {"old": 1}, 3, 2)


def test_a_record_belongs_to_the_lease_of_its_newest_line() -> None:
    lines = make_index()
    for position, key in enumerate(("kept", "moved", "freed", "dropped")):
        put(lines, at(1, position + 1), key, lease=1)
    put(lines, at(2, 1), "moved", lease=2)
    put(lines, at(2, 2), "freed")
    drop(lines, at(2, 3), "dropped")
    put(lines, at(2, 4), "free", lease=0)

    assert lines.lease_keys == {1: {("jobs", "kept")}, 2: {("jobs", "moved")}}
    drop(lines, at(3, 1), "kept")
    assert lines.lease_keys == {2: {("jobs", "moved")}}
    put(lines, at(4, 1), "moved", lease=2)
    assert lines.lease_keys == {2: {("jobs", "moved")}}


def test_trimming_moves_the_tail_and_forgets_the_deleted_lines() -> None:
    lines = make_index(tail_from=1)
    lines.add_head(at(1))
    for index in (2, 3, 4):
        lines.add_head(at(index))
        put(lines, at(index, 1), "a")
    put(lines, at(1, 1), "b")
    drop(lines, at(4, 2), "b")
    assert lines.stale_lines == [at(1), at(1, 1)]

    lines.trim_tail(tail_from=2, changes=1, stale=1, deleted=[at(1), at(2), at(2, 1)])

    assert (lines.tail_from, lines.index, lines.tail_changes) == (2, 4, 3)
    assert lines.dead_lines == {at(3, 1), at(1, 1), at(4, 2)}
    assert lines.stale_lines == [at(1, 1)]
