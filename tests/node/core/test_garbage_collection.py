"""Folders of ended allocations are removed when there are too many or the disk is full."""

import pytest

from wharf.node.core.garbage_collection import (
    RECENT_BATCH_NS,
    CollectionLimits,
    DiskUsage,
    EndedAllocation,
    FolderRemoval,
    count_folders_to_remove,
    order_for_removal,
)

LIMITS = CollectionLimits(max_allocations=3, max_disk_percent=80.0, max_inodes_percent=70.0, max_parallel_removals=2)
EMPTY_DISK = DiskUsage(10.0, 10.0)
NOW_NS = 1_800_000_000_000_000_000
MINUTE_NS = 60_000_000_000


def test_nothing_is_removed_below_the_limits() -> None:
    assert 0 == count_folders_to_remove(3, EMPTY_DISK, LIMITS)


def test_folders_above_the_limit_are_removed() -> None:
    assert [1, 7] == [count_folders_to_remove(count, EMPTY_DISK, LIMITS) for count in (4, 10)]


@pytest.mark.parametrize("usage", [DiskUsage(80.0, 0.0), DiskUsage(0.0, 70.0)])
def test_on_a_full_disk_folders_are_removed_step_by_step(usage: DiskUsage) -> None:
    assert 2 == count_folders_to_remove(3, usage, LIMITS)


def test_on_a_full_disk_all_folders_above_the_limit_are_removed_at_once() -> None:
    assert 7 == count_folders_to_remove(10, DiskUsage(99.0, 99.0), LIMITS)


def test_the_allocations_that_ended_first_are_removed_first() -> None:
    ended = [
        EndedAllocation("new", NOW_NS - MINUTE_NS, False),
        EndedAllocation("old", NOW_NS - 3 * MINUTE_NS, False),
        EndedAllocation("middle", NOW_NS - 2 * MINUTE_NS, False),
        EndedAllocation("end-unknown", 0, False),
    ]

    assert ["end-unknown", "old", "middle", "new"] == [each.id for each in order_for_removal(ended, NOW_NS)]


def test_results_of_recent_batch_jobs_are_removed_after_everything_else() -> None:
    ended = [
        EndedAllocation("recent-batch", NOW_NS - RECENT_BATCH_NS + MINUTE_NS, True),
        EndedAllocation("newest-batch", NOW_NS - MINUTE_NS, True),
        EndedAllocation("newest-service", NOW_NS, False),
        EndedAllocation("old-batch", NOW_NS - RECENT_BATCH_NS - MINUTE_NS, True),
    ]

    assert ["old-batch", "newest-service", "recent-batch", "newest-batch"] == [
        each.id for each in order_for_removal(ended, NOW_NS)
    ]


def test_kept_files_are_removed_after_everything_else() -> None:
    kept = ("data",)
    ended = [
        EndedAllocation("kept-new", NOW_NS - MINUTE_NS, True, kept),
        EndedAllocation("kept-old", NOW_NS - 3 * MINUTE_NS, True, kept),
        EndedAllocation("batch", NOW_NS - 2 * MINUTE_NS, True),
        EndedAllocation("service", NOW_NS, False),
        EndedAllocation("kept-long-ago", NOW_NS - RECENT_BATCH_NS - MINUTE_NS, True, kept),
    ]

    assert order_for_removal(ended, NOW_NS) == [
        FolderRemoval("kept-long-ago"),
        FolderRemoval("service"),
        FolderRemoval("kept-old", kept),
        FolderRemoval("batch"),
        FolderRemoval("kept-new", kept),
        FolderRemoval("kept-old"),
        FolderRemoval("kept-new"),
    ]
