"""Which folders of ended allocations a node removes to have room: the oldest first, and never one that runs."""

from collections.abc import Sequence

import msgspec


class Ended(msgspec.Struct, frozen=True):
    id: str
    finished_s: float


class Room(msgspec.Struct, frozen=True):
    """How much of the disk under the folders is in use, in percent."""

    disk_percent: float
    inodes_percent: float


class Bounds(msgspec.Struct, frozen=True):
    allocations: int
    disk_percent: float
    inodes_percent: float
    at_once: int
    """So many are removed before the disk is looked at again."""


def choose(ended: Sequence[Ended], live: int, room: Room, bounds: Bounds) -> list[str]:
    """What to remove now. Where nothing has ended nothing is removed, however full it is."""
    oldest = sorted(ended, key=lambda each: (each.finished_s, each.id))
    count = max(0, len(ended) + live - bounds.allocations)
    if room.disk_percent >= bounds.disk_percent or room.inodes_percent >= bounds.inodes_percent:
        count = max(count, bounds.at_once)
    return [each.id for each in oldest[:count]]
