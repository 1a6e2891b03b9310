"""Who waits for what, and who is woken by a change.

A subscriber names what it reads: a whole table, a key, a prefix of keys, a value of an index. Applying a batch wakes
exactly those who named something that the batch changed, once each, in the order in which they subscribed.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from wharf.state.table import Index, Table


class Watched(NamedTuple):
    """Something that can be waited on. Made by the four functions below."""

    table: str
    kind: str  # "table", "key", "prefix", or "index " and its name
    value: Hashable


def whole(table: Table[Any]) -> Watched:
    return Watched(table.name, "table", None)


def one(table: Table[Any], *key: str | int) -> Watched:
    """The record under the key; of a table with one record, that record."""
    return Watched(table.name, "key", table.joined(*key))


def beginning(table: Table[Any], prefix: str) -> Watched:
    """Every record whose key begins so."""
    return Watched(table.name, "prefix", prefix)


def those(index: Index[Any], *value: Hashable) -> Watched:
    """Every record that has, or had, this value in the index."""
    return Watched(index.table, f"index {index.name}", value[0] if len(value) == 1 else value)


class Subscription:
    """`fired` stays true from the first change until `rearm`. Rearm, read, and only then wait: nothing falls between."""

    __slots__ = ("_hub", "_wake", "fired", "has_ended", "number", "watched")

    def __init__(self, hub: "Watches", number: int, watched: Sequence[Watched], wake: Callable[[], None]) -> None:
        self.number = number
        self.watched = watched
        self.fired = False
        self.has_ended = False
        self._hub = hub
        self._wake = wake

    def fire(self) -> None:
        if not self.fired and not self.has_ended:  # It may have ended after it was found, by another's waking.
            self.fired = True
            self._wake()

    def rearm(self) -> None:
        self.fired = False

    def end(self) -> None:
        """It is never woken again. Ending twice is fine."""
        if not self.has_ended:
            self.has_ended = True
            self._hub.forget(self)


Subscribers = dict[Subscription, None]  # A dict, for its order: who is woken first must not depend on hashes.


def fire(subscribers: Subscribers) -> None:
    """Wake them all, those who subscribed first before the others."""
    for subscription in sorted(subscribers, key=attrgetter("number")):
        subscription.fire()


class TableWatches:
    """The subscriptions that concern one table."""

    __slots__ = ("by_index", "by_key", "by_prefix", "by_table", "prefix_lengths")

    def __init__(self) -> None:
        self.by_table: Subscribers = {}
        self.by_key: dict[Hashable, Subscribers] = {}
        self.by_prefix: dict[Hashable, Subscribers] = {}
        self.by_index: dict[str, dict[Hashable, Subscribers]] = {}
        self.prefix_lengths: dict[int, int] = {}

    def place(self, watched: Watched) -> dict[Hashable, Subscribers]:
        match watched.kind:
            case "key":
                return self.by_key
            case "prefix":
                return self.by_prefix
            case _:
                return self.by_index.setdefault(watched.kind, {})

    def collect(
        self,
        key: str,
        old: msgspec.Struct | None,
        new: msgspec.Struct | None,
        indexes: Iterable[Index[Any]],
        into: Subscribers,
    ) -> None:
        """Add to `into` everybody who waits on this change."""
        if self.by_table:
            into.update(self.by_table)
        if old is None and new is None:
            return  # A drop of what was not there: it moves the table's index and nothing else.
        if self.by_key and (found := self.by_key.get(key)):
            into.update(found)
        for length in self.prefix_lengths:
            if found := self.by_prefix.get(key[:length]):
                into.update(found)
        if self.by_index:
            for index in indexes:
                waiting = self.by_index.get(f"index {index.name}")
                if not waiting:
                    continue
                for record in (old, new):
                    if record is not None and (found := waiting.get(index.value_of(record))):
                        into.update(found)

    def everybody(self) -> Subscribers:
        found = dict(self.by_table)
        for place in (self.by_key, self.by_prefix, *self.by_index.values()):
            for subscribers in place.values():
                found.update(subscribers)
        return found


class Watches:
    """All subscriptions of a replica."""

    def __init__(self) -> None:
        self.tables: dict[str, TableWatches] = {}
        self.count = 0  # Those that have not ended.
        self._number_last = 0

    def subscribe(self, watched: Iterable[Watched], wake: Callable[[], None]) -> Subscription:
        """`wake` is called at the first change to any of `watched`, from inside `apply`: it must only take note."""
        self._number_last += 1
        subscription = Subscription(self, self._number_last, tuple(dict.fromkeys(watched)), wake)
        self.count += 1
        for name in subscription.watched:
            watches = self.tables.setdefault(name.table, TableWatches())
            if name.kind == "table":
                watches.by_table[subscription] = None
                continue
            watches.place(name).setdefault(name.value, {})[subscription] = None
            if name.kind == "prefix":
                length = len(str(name.value))
                watches.prefix_lengths[length] = watches.prefix_lengths.get(length, 0) + 1
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Called once, by the subscription when it ends."""
        self.count -= 1
        for name in subscription.watched:
            watches = self.tables[name.table]
            if name.kind == "table":
                del watches.by_table[subscription]
            else:
                self._forget_at(watches, name, subscription)
            if not (watches.by_table or watches.by_key or watches.by_prefix or watches.by_index):
                del self.tables[name.table]  # A table that nobody watches costs nothing when it changes.

    @staticmethod
    def _forget_at(watches: TableWatches, name: Watched, subscription: Subscription) -> None:
        place = watches.place(name)
        subscribers = place[name.value]
        del subscribers[subscription]
        if not subscribers:
            del place[name.value]
        if name.kind == "prefix":
            length = len(str(name.value))
            watches.prefix_lengths[length] -= 1
            if not watches.prefix_lengths[length]:
                del watches.prefix_lengths[length]
        if name.kind.startswith("index ") and not place:
            del watches.by_index[name.kind]

    def everybody(self) -> Subscribers:
        found: Subscribers = {}
        for watches in self.tables.values():
            found.update(watches.everybody())
        return found
