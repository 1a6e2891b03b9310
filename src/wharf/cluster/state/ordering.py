"""The orders in which the keys of a table are found: by key, and by creation.

Names are few and listed all the time, so they are kept sorted. The ids of work are many, random, and asked for by prefix
now and then: they are put in order when somebody asks, shelf by shelf (`shelves`).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from sortedcontainers import SortedList

LAST_CODE_POINT: Final = 0x10FFFF

BLOCK_BITS: Final = 10
"""1,024 indexes of creation lie in one block."""


def find_prefix_end(prefix: str) -> str | None:
    """The least text above all that begin with `prefix`; None: there is none."""
    while prefix:
        if ord(prefix[-1]) < LAST_CODE_POINT:
            return prefix[:-1] + chr(ord(prefix[-1]) + 1)
        prefix = prefix[:-1]
    return None


class SortedKeys:
    """Always in order."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: SortedList[str] = SortedList()

    def add(self, key: str) -> None:
        self._keys.add(key)

    def remove(self, key: str) -> None:
        self._keys.remove(key)

    def add_many(self, keys: Iterable[str]) -> None:
        self._keys.update(keys)

    def iter_prefix(self, prefix: str, *, start: str | None, reverse: bool) -> Iterator[str]:
        """Keys that begin with `prefix`, from `start` on (down from it, in reverse), `start` included."""
        low, high, include_high = prefix, find_prefix_end(prefix), False
        if start is not None and not reverse:
            low = max(low, start)
        elif start is not None and (high is None or start < high):
            high, include_high = start, True
        if high is not None and low > high:
            return iter(())
        return iter(self._keys.irange(low, high, inclusive=(True, include_high), reverse=reverse))


class CreationOrder:
    """By CreateIndex, then key. Records of one batch share their index, so one entry serves up to a thousand.

    Indexes lie in blocks of a thousand: one dict of all of them would stop everybody when it grows.
    """

    __slots__ = ("_block_numbers", "_blocks", "_newest", "_newest_keys")

    def __init__(self) -> None:
        self._block_numbers: SortedList[int] = SortedList()
        self._blocks: dict[int, dict[int, dict[str, None]]] = {}
        # Most keys come to the index that the last one came to.
        self._newest: int | None = None
        self._newest_keys: dict[str, None] = {}

    def add(self, created: int, key: str) -> None:
        if created == self._newest:
            self._newest_keys[key] = None
            return
        number = created >> BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = {}
            self._block_numbers.add(number)
        keys = block.get(created)
        if keys is None:
            keys = block[created] = {}
        keys[key] = None
        self._newest, self._newest_keys = created, keys

    def remove(self, created: int, key: str) -> None:
        number = created >> BLOCK_BITS
        block = self._blocks[number]
        keys = block[created]
        del keys[key]
        if keys:
            return
        del block[created]
        if created == self._newest:
            self._newest = None
        if not block:
            del self._blocks[number]
            self._block_numbers.remove(number)

    def iter_keys(self, *, start: tuple[int, str] | None, reverse: bool) -> Iterator[str]:
        """From `start` on (down, in reverse), `start` included."""
        low, high = None, None
        if start is not None:
            number = start[0] >> BLOCK_BITS
            low, high = (None, number) if reverse else (number, None)
        for number in self._block_numbers.irange(low, high, reverse=reverse):
            block = self._blocks[number]
            for created in sorted(block, reverse=reverse):
                if start is None or (created < start[0] if reverse else created > start[0]):
                    yield from sorted(block[created], reverse=reverse)
                    continue
                if created != start[0]:
                    continue  # Before the start: its keys need not be looked at, and a block has many.
                for key in sorted(block[created], reverse=reverse):
                    if (created, key) <= start if reverse else (created, key) >= start:
                        yield key
