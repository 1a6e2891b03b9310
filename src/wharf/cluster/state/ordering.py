"""Ordered sets of the keys of a table: by key, and by creation.

Names are few and often listed, so they are kept sorted. Random ids are many and rarely listed by key, so `ShardedDict`
sorts them only when a caller lists them, one shard at a time.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from sortedcontainers import SortedList

LAST_CODE_POINT: Final = 0x10FFFF

BLOCK_BITS: Final = 10
"""A block of `CreationOrder` covers 2 to this power (1,024) log indexes."""


def find_prefix_end(prefix: str) -> str | None:
    """Return the smallest text that is greater than every text with this prefix, or `None` if there is none."""
    while prefix:
        if ord(prefix[-1]) < LAST_CODE_POINT:
            return prefix[:-1] + chr(ord(prefix[-1]) + 1)
        prefix = prefix[:-1]
    return None


class SortedKeys:
    """A set of keys that is always sorted."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: SortedList[str] = SortedList()

    def add(self, key: str) -> None:
        self._keys.add(key)

    def remove(self, key: str) -> None:
        self._keys.remove(key)

    def add_many(self, keys: Iterable[str]) -> None:
        self._keys.update(keys)

    def iter_containers(self) -> Iterator[Iterable[object]]:
        """Yield the containers of the keys."""
        yield self._keys

    def iter_prefix(self, prefix: str, *, start: str | None, reverse: bool) -> Iterator[str]:
        """Iterate over keys with this prefix, from `start` (included) upwards, or downwards in reverse."""
        lower_bound, upper_bound, includes_upper_bound = prefix, find_prefix_end(prefix), False
        if start is not None and not reverse:
            lower_bound = max(lower_bound, start)
        elif start is not None and (upper_bound is None or start < upper_bound):
            upper_bound, includes_upper_bound = start, True
        if upper_bound is not None and lower_bound > upper_bound:
            return iter(())
        return iter(
            self._keys.irange(lower_bound, upper_bound, inclusive=(True, includes_upper_bound), reverse=reverse)
        )


class CreationOrder:
    """A set of keys sorted by CreateIndex, then key. Records of one batch have the same index and share one entry.

    Indexes are grouped in blocks of 1,024. A single dict of all of them would block the event loop when it is resized.
    """

    __slots__ = ("_block_numbers", "_blocks", "_newest", "_newest_keys")

    def __init__(self) -> None:
        self._block_numbers: SortedList[int] = SortedList()
        self._blocks: dict[int, dict[int, dict[str, None]]] = {}
        # Most keys are added at the same index as the one before.
        self._newest: int | None = None
        self._newest_keys: dict[str, None] = {}

    def add(self, create_index: int, key: str) -> None:
        """Add a key with the index at which its record was created."""
        if create_index == self._newest:
            self._newest_keys[key] = None
            return
        block_number = create_index >> BLOCK_BITS
        block = self._blocks.get(block_number)
        if block is None:
            block = self._blocks[block_number] = {}
            self._block_numbers.add(block_number)
        keys = block.get(create_index)
        if keys is None:
            keys = block[create_index] = {}
        keys[key] = None
        self._newest, self._newest_keys = create_index, keys

    def iter_containers(self) -> Iterator[Iterable[object]]:
        """Yield the containers of the keys."""
        for block in self._blocks.values():
            yield block.items()

    def remove(self, create_index: int, key: str) -> None:
        """Remove a key, and the entries that are empty then."""
        block_number = create_index >> BLOCK_BITS
        block = self._blocks[block_number]
        keys = block[create_index]
        del keys[key]
        if keys:
            return
        del block[create_index]
        if create_index == self._newest:
            self._newest = None
        if not block:
            del self._blocks[block_number]
            self._block_numbers.remove(block_number)

    def iter_keys(self, *, start: tuple[int, str] | None, reverse: bool) -> Iterator[str]:
        """Iterate over keys from `start` (included) upwards, or downwards in reverse."""
        lower_bound, upper_bound = None, None
        if start is not None:
            block_number = start[0] >> BLOCK_BITS
            lower_bound, upper_bound = (None, block_number) if reverse else (block_number, None)
        for block_number in self._block_numbers.irange(lower_bound, upper_bound, reverse=reverse):
            block = self._blocks[block_number]
            for create_index in sorted(block, reverse=reverse):
                if start is None or (create_index < start[0] if reverse else create_index > start[0]):
                    yield from sorted(block[create_index], reverse=reverse)
                    continue
                if create_index != start[0]:
                    continue  # Before the start, so its keys need no comparison.
                for key in sorted(block[create_index], reverse=reverse):
                    if (create_index, key) <= start if reverse else (create_index, key) >= start:
                        yield key
