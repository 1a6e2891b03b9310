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

LAST_CODE_POINT: Final = 0x10FFFF


def end_of(prefix: str) -> str | None:
    """The least text above all that begin with `prefix`; None: there is none."""
    while prefix:
        if ord(prefix[-1]) < LAST_CODE_POINT:
            return prefix[:-1] + chr(ord(prefix[-1]) + 1)
        prefix = prefix[:-1]
    return None


class KeyOrder(Protocol):
    def add(self, key: str) -> None: ...

    def remove(self, key: str) -> None: ...

    def add_many(self, keys: Iterable[str]) -> None: ...

    def beginning(self, prefix: str, *, start: str | None, reverse: bool) -> Iterator[str]:
        """Keys that begin with `prefix`, from `start` on (down from it, in reverse), `start` included."""
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

    def add_many(self, keys: Iterable[str]) -> None:
        self._keys.update(keys)

    def beginning(self, prefix: str, *, start: str | None, reverse: bool) -> Iterator[str]:
        low, high, include_high = prefix, end_of(prefix), False
        if start is not None and not reverse:
            low = max(low, start)
        elif start is not None and (high is None or start < high):
            high, include_high = start, True
        if high is not None and low > high:
            return iter(())
        return iter(self._keys.irange(low, high, inclusive=(True, include_high), reverse=reverse))


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

    def add_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.add(key)

    def beginning(self, prefix: str, *, start: str | None, reverse: bool) -> Iterator[str]:
        for name in sorted(self._shelves, reverse=reverse):
            if not name.startswith(prefix[:SHELF_WIDTH]):
                continue
            keys: Iterable[str] = self._shelves[name]
            if len(prefix) > SHELF_WIDTH:
                keys = [key for key in keys if key.startswith(prefix)]
            if start is None:
                yield from sorted(keys, reverse=reverse)
            elif reverse:
                yield from sorted((key for key in keys if key <= start), reverse=True)
            else:
                yield from sorted(key for key in keys if key >= start)


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

    def keys(self, *, start: tuple[int, str] | None, reverse: bool) -> Iterator[str]:
        """From `start` on (down, in reverse), `start` included."""
        low, high = None, None
        if start is not None:
            low, high = (None, start[0]) if reverse else (start[0], None)
        for created in self._indexes.irange(low, high, reverse=reverse):
            for key in sorted(self._keys_at[created], reverse=reverse):
                if start is None or ((created, key) <= start if reverse else (created, key) >= start):
                    yield key
