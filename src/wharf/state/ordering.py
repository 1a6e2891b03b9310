"""The orders in which the keys of a table are found: by key, and by creation.

Two ways of keeping keys in their own order, chosen by what the keys are like: names are few and listed all the time, so
they are kept sorted; the ids of work are many, random, and asked for by prefix now and then, so they lie on shelves
that are sorted when somebody asks.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from sortedcontainers import SortedList

SHELF_WIDTH: Final = 2
"""Characters of a key that name its shelf: 256 shelves of random ids, 4,000 of a million on each."""

LAST_CHARACTER: Final = "\U0010ffff"


class KeyOrder(Protocol):
    def add(self, key: str) -> None: ...

    def remove(self, key: str) -> None: ...

    def fill(self, keys: Iterable[str]) -> None: ...

    def between(self, low: str, high: str, *, reverse: bool) -> Iterator[str]:
        """Keys from `low` to `high`, both included, in order or in reverse."""
        ...


class SortedKeys:
    """Always in order."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: SortedList[str] = SortedList()

    def add(self, key: str) -> None:
        self._keys.add(key)

    def remove(self, key: str) -> None:
        self._keys.remove(key)

    def fill(self, keys: Iterable[str]) -> None:
        self._keys = SortedList(keys)

    def between(self, low: str, high: str, *, reverse: bool) -> Iterator[str]:
        return iter(self._keys.irange(low, high, reverse=reverse))


class ShelvedKeys:
    """On shelves, each put in order when it is read."""

    __slots__ = ("_shelves",)

    def __init__(self) -> None:
        self._shelves: dict[str, dict[str, None]] = {}

    def add(self, key: str) -> None:
        name = key[:SHELF_WIDTH]
        shelf = self._shelves.get(name)
        if shelf is None:
            self._shelves[name] = {key: None}
        else:
            shelf[key] = None

    def remove(self, key: str) -> None:
        name = key[:SHELF_WIDTH]
        shelf = self._shelves[name]
        del shelf[key]
        if not shelf:
            del self._shelves[name]

    def fill(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.add(key)

    def between(self, low: str, high: str, *, reverse: bool) -> Iterator[str]:
        for name in sorted(self._shelves, reverse=reverse):
            if low[:SHELF_WIDTH] <= name <= high[:SHELF_WIDTH]:
                yield from (k for k in sorted(self._shelves[name], reverse=reverse) if low <= k <= high)


class CreationOrder:
    """By CreateIndex, then key. Records of one batch share their index, so one entry serves up to a thousand."""

    __slots__ = ("_indexes", "_keys_at")

    def __init__(self) -> None:
        self._indexes: SortedList[int] = SortedList()
        self._keys_at: dict[int, dict[str, None]] = {}

    def add(self, created: int, key: str) -> None:
        keys = self._keys_at.get(created)
        if keys is None:
            self._indexes.add(created)
            self._keys_at[created] = {key: None}
        else:
            keys[key] = None

    def remove(self, created: int, key: str) -> None:
        keys = self._keys_at[created]
        del keys[key]
        if not keys:
            del self._keys_at[created]
            self._indexes.remove(created)

    def fill(self, created_keys: Iterable[tuple[int, str]]) -> None:
        for created, key in created_keys:
            self._keys_at.setdefault(created, {})[key] = None
        self._indexes = SortedList(self._keys_at)

    def keys(self, *, start: tuple[int, str] | None, reverse: bool) -> Iterator[str]:
        """From `start` on (down, in reverse), `start` included."""
        low, high = None, None
        if start is not None:
            low, high = (None, start[0]) if reverse else (start[0], None)
        for created in self._indexes.irange(low, high, reverse=reverse):
            for key in sorted(self._keys_at[created], reverse=reverse):
                if start is None or ((created, key) <= start if reverse else (created, key) >= start):
                    yield key
