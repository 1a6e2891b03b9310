"""A cache with a limited number of entries."""

from itertools import islice
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

REMOVED_ENTRIES: Final = 256
"""Entries that are removed from a full cache at once, which takes about a quarter of a millisecond."""


class BoundedCache(dict[K, V]):
    """A dictionary for at most `max_entries` entries. Add entries with `store`.

    A full cache loses its oldest entries in short steps, because clearing it takes 10 ms and all its entries are then
    built again.
    """

    __slots__ = ("_max_entries",)

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def store(self, key: K, value: V) -> V:
        """Add an entry and return its value. If the cache is full, first remove the `REMOVED_ENTRIES` oldest entries."""
        if len(self) >= self._max_entries:
            for oldest in list(islice(self, REMOVED_ENTRIES)):
                del self[oldest]
        self[key] = value
        return value
