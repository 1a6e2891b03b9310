"""Decides which folders of ended allocations a node removes to free disk space: the oldest first, never a running
one.
"""

from collections.abc import Sequence

import msgspec


class EndedAllocation(msgspec.Struct, frozen=True):
    """An ended allocation whose folder still exists; `finished_s` is in seconds of the monotonic clock."""

    id: str
    finished_s: float


class DiskUsage(msgspec.Struct, frozen=True):
    """Used bytes and inodes of the file system that holds the allocation folders, in percent."""

    disk_percent: float
    inodes_percent: float


class CollectionLimits(msgspec.Struct, frozen=True):
    """The limits above which folders of ended allocations are removed."""

    max_allocations: int
    """Running and ended allocations together; above this, the oldest ended ones are removed."""
    max_disk_percent: float
    max_inodes_percent: float
    max_parallel_removals: int
    """How many folders are removed before the disk usage is measured again."""


def choose_allocations_to_remove(
    ended: Sequence[EndedAllocation], live_count: int, disk_usage: DiskUsage, limits: CollectionLimits
) -> list[str]:
    """Return the ids of the ended allocations whose folders must be removed now, oldest first.

    `live_count` is the number of running allocations. Empty if no allocation has ended, even if the disk is full.
    """
    oldest = sorted(ended, key=lambda allocation: (allocation.finished_s, allocation.id))
    removal_count = max(0, len(ended) + live_count - limits.max_allocations)
    if disk_usage.disk_percent >= limits.max_disk_percent or disk_usage.inodes_percent >= limits.max_inodes_percent:
        removal_count = max(removal_count, limits.max_parallel_removals)
    return [allocation.id for allocation in oldest[:removal_count]]
