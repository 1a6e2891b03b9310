"""Folders of ended allocations are removed when there are too many or the disk is full."""

from hypothesis import given
from hypothesis import strategies as some

from wharf.node.core.garbage_collection import (
    CollectionLimits,
    DiskUsage,
    EndedAllocation,
    choose_allocations_to_remove,
)

BOUNDS = CollectionLimits(max_allocations=3, max_disk_percent=80.0, max_inodes_percent=70.0, max_parallel_removals=2)
ROOMY = DiskUsage(10.0, 10.0)
ENDED = [EndedAllocation("new", 30.0), EndedAllocation("old", 10.0), EndedAllocation("middle", 20.0)]


def test_nothing_is_removed_below_the_limits() -> None:
    assert choose_allocations_to_remove(ENDED, 0, ROOMY, BOUNDS) == []


def test_the_oldest_allocations_above_the_limit_are_removed() -> None:
    assert choose_allocations_to_remove(ENDED, 1, ROOMY, BOUNDS) == ["old"]
    assert choose_allocations_to_remove(ENDED, 2, ROOMY, BOUNDS) == ["old", "middle"]


def test_on_a_full_disk_the_oldest_allocations_are_removed_step_by_step() -> None:
    assert choose_allocations_to_remove(ENDED, 0, DiskUsage(80.0, 0.0), BOUNDS) == ["old", "middle"]
    assert choose_allocations_to_remove(ENDED, 0, DiskUsage(0.0, 70.0), BOUNDS) == ["old", "middle"]


@given(some.integers(0, 100), some.floats(0.0, 100.0))
def test_only_ended_allocations_are_removed_however_full_the_disk_is(live: int, percent: float) -> None:
    chosen = choose_allocations_to_remove(ENDED, live, DiskUsage(percent, percent), BOUNDS)

    assert set(chosen) <= {"old", "middle", "new"}
    assert len(set(chosen)) == len(chosen)
