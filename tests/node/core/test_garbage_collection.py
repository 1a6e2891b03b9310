"""Folders of ended allocations are removed when there are too many or the disk is full."""

from hypothesis import given
from hypothesis import strategies as st

from wharf.node.core.garbage_collection import (
    CollectionLimits,
    DiskUsage,
    EndedAllocation,
    choose_allocations_to_remove,
)

LIMITS = CollectionLimits(max_allocations=3, max_disk_percent=80.0, max_inodes_percent=70.0, max_parallel_removals=2)
EMPTY_DISK = DiskUsage(10.0, 10.0)
ENDED = [EndedAllocation("new", 30.0), EndedAllocation("old", 10.0), EndedAllocation("middle", 20.0)]


def test_nothing_is_removed_below_the_limits() -> None:
    assert choose_allocations_to_remove(ENDED, 0, EMPTY_DISK, LIMITS) == []


def test_the_oldest_allocations_above_the_limit_are_removed() -> None:
    assert choose_allocations_to_remove(ENDED, 1, EMPTY_DISK, LIMITS) == ["old"]
    assert choose_allocations_to_remove(ENDED, 2, EMPTY_DISK, LIMITS) == ["old", "middle"]


def test_on_a_full_disk_the_oldest_allocations_are_removed_step_by_step() -> None:
    assert choose_allocations_to_remove(ENDED, 0, DiskUsage(80.0, 0.0), LIMITS) == ["old", "middle"]
    assert choose_allocations_to_remove(ENDED, 0, DiskUsage(0.0, 70.0), LIMITS) == ["old", "middle"]


@given(st.integers(0, 100), st.floats(0.0, 100.0))
def test_only_ended_allocations_are_removed_however_full_the_disk_is(live: int, percent: float) -> None:
    removed = choose_allocations_to_remove(ENDED, live, DiskUsage(percent, percent), LIMITS)

    assert set(removed) <= {"old", "middle", "new"}
    assert len(set(removed)) == len(removed)
