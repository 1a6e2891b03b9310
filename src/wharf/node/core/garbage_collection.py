"""Decides which folders of ended allocations a node removes to free disk space: the oldest first, results of recent batch
jobs last, never a running allocation (decision record 0264). Files that a step keeps are removed after all others (0313).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

RECENT_BATCH_NS: Final = 7 * 24 * 3_600 * 1_000_000_000
"""How long results of batch jobs are removed after everything else. A user who starts work on Friday fetches the results on
Monday, or after some days of absence."""


class EndedAllocation(msgspec.Struct, frozen=True):
    """An ended allocation whose folder still exists."""

    id: str
    ended_ns: int
    """The Unix time of its end in nanoseconds; 0 if it is unknown."""
    is_batch: bool
    """Whether its job runs to an end, so that its files may be results."""
    kept_paths: tuple[str, ...] = ()
    """Files and folders below `alloc/` that its step keeps longer than the others."""


class FolderRemoval(NamedTuple):
    """The removal of the folder of an ended allocation, or of everything in it except the kept files."""

    id: str
    kept_paths: tuple[str, ...] = ()
    """What remains; empty: nothing."""


class DiskUsage(msgspec.Struct, frozen=True):
    """Used bytes and inodes of the file system that holds the allocation folders, in percent."""

    disk_percent: float
    inodes_percent: float


class CollectionLimits(msgspec.Struct, frozen=True):
    """The limits above which folders of ended allocations are removed."""

    max_allocations: int
    """Folders of running and ended allocations together; above this, the oldest ended ones are removed."""
    max_disk_percent: float
    max_inodes_percent: float
    max_parallel_removals: int
    """How many folders are removed before the disk usage is measured again."""


def count_folders_to_remove(folder_count: int, disk_usage: DiskUsage, limits: CollectionLimits) -> int:
    """Return how many folders of ended allocations must be removed now; 0 if every limit is met.

    `folder_count` includes the folders of running allocations.
    """
    surplus = max(0, folder_count - limits.max_allocations)
    if disk_usage.disk_percent >= limits.max_disk_percent or disk_usage.inodes_percent >= limits.max_inodes_percent:
        return max(surplus, limits.max_parallel_removals)
    return surplus


def order_for_removal(ended: Iterable[EndedAllocation], now_ns: int) -> list[FolderRemoval]:
    """Return the removals of folders in their order.

    The oldest come first. Allocations of batch jobs that ended less than `RECENT_BATCH_NS` ago come after all others. If one
    of these has kept files, its other files are removed in its turn, and the kept ones after everything else.
    """
    recent_since_ns = now_ns - RECENT_BATCH_NS
    removals: list[tuple[int, int, FolderRemoval]] = []
    for allocation in ended:
        is_recent = allocation.is_batch and allocation.ended_ns > recent_since_ns
        if is_recent and allocation.kept_paths:
            removals.append((1, allocation.ended_ns, FolderRemoval(allocation.id, allocation.kept_paths)))
            removals.append((2, allocation.ended_ns, FolderRemoval(allocation.id)))
        else:
            removals.append((int(is_recent), allocation.ended_ns, FolderRemoval(allocation.id)))
    return [removal for *_, removal in sorted(removals)]
