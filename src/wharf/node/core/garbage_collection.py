"""Which folders of ended allocations a node removes to have room: the oldest first, and never one that runs."""

from collections.abc import Sequence

import msgspec


class EndedAllocation(msgspec.Struct, frozen=True):
    id: str
    finished_s: float


class DiskUsage(msgspec.Struct, frozen=True):
    """How much of the disk under the folders is in use, in percent."""

    disk_percent: float
    inodes_percent: float


class CollectionLimits(msgspec.Struct, frozen=True):
    max_allocations: int
    max_disk_percent: float
    max_inodes_percent: float
    max_parallel_removals: int
    """So many are removed before the disk is looked at again."""


def choose_allocations_to_remove(
    ended: Sequence[EndedAllocation], live: int, room: DiskUsage, bounds: CollectionLimits
) -> list[str]:
    """What to remove now. Where nothing has ended nothing is removed, however full it is."""
    oldest = sorted(ended, key=lambda each: (each.finished_s, each.id))
    count = max(0, len(ended) + live - bounds.max_allocations)
    if room.disk_percent >= bounds.max_disk_percent or room.inodes_percent >= bounds.max_inodes_percent:
        count = max(count, bounds.max_parallel_removals)
    return [each.id for each in oldest[:count]]
