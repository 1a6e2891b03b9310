"""Who waits for what, and who is woken by a change.

A subscriber names what it reads: a whole table, a key, a prefix of keys, a value of an index. Applying a batch wakes
exactly those who named something that the batch changed, once each, in the order in which they subscribed.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

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
    return Watched(index.table, kind_of(index), value[0] if len(value) == 1 else value)


def kind_of(index: Index[Any]) -> str:
    return f"index {index.name}"


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

Touched = dict[int, Subscribers]
"""Groups of subscribers, each once, by the identity of the group. A batch may touch one group a thousand times, and
ten thousand may wait in it: so groups are noted while the batch is taken in, and walked when it is done."""

Changed = tuple[str, msgspec.Struct | None, msgspec.Struct | None]
"""What became of one key: the record before and the one after."""

WOKEN_AT_ONCE: Final = 1_000
"""Waiters woken in one step: about a millisecond, and what they then do comes on top."""


def touch(touched: Touched, group: Subscribers) -> None:
    touched[id(group)] = group


def woken_by(touched: Touched) -> list[Subscription]:
    """All of them, once each, those who subscribed first before the others."""
    woken: Subscribers = {}
    for group in touched.values():
        woken.update(group)
    return sorted(woken, key=attrgetter("number"))


def wake_in_steps(woken: Sequence[Subscription]) -> Iterator[None]:
    """Wake them; one who has ended meanwhile is left alone. Yields when there are more to wake."""
    for start in range(0, len(woken), WOKEN_AT_ONCE):
        if start:
            yield
        for subscription in woken[start : start + WOKEN_AT_ONCE]:
            subscription.fire()


class WatchedIndex(NamedTuple):
    """The subscriptions that concern values of one index."""

    value_of: Callable[[Any], Hashable]
    by_value: dict[Hashable, Subscribers]


def _touch_named(touched: Touched, groups: dict[Hashable, Subscribers], names: set[Any]) -> None:
    """Note the groups of these names. In whatever order: who is woken first is decided later."""
    for name in groups.keys() & names:
        group = groups[name]
        touched[id(group)] = group


class TableWatches:
    """The subscriptions that concern one table."""

    __slots__ = ("_indexes", "by_index", "by_key", "by_prefix", "by_table", "journals", "prefix_lengths")

    def __init__(self, table: Table[Any]) -> None:
        self.by_table: Subscribers = {}
        self.journals: dict[Journal, None] = {}
        self.by_key: dict[Hashable, Subscribers] = {}
        self.by_prefix: dict[Hashable, Subscribers] = {}
        self.by_index: dict[str, WatchedIndex] = {}
        self.prefix_lengths: dict[int, int] = {}
        self._indexes = {kind_of(index): index for index in table.indexes}

    def place(self, watched: Watched) -> dict[Hashable, Subscribers]:
        match watched.kind:
            case "key":
                return self.by_key
            case "prefix":
                return self.by_prefix
            case kind:
                if kind not in self.by_index:
                    self.by_index[kind] = WatchedIndex(self._indexes[kind].value_of, {})
                return self.by_index[kind].by_value

    def note(self, changes: Sequence[Changed]) -> None:
        """Tell the journals, in the step in which the changes are taken in: nobody reads the state in between."""
        for journal in list(self.journals):  # One that is told enough ends.
            journal.note(changes)

    def collect(self, changes: Sequence[Changed], *, touched: Touched) -> None:
        """Note everybody who waits on one of these changes.

        All changes of a batch at once, and each thing that can be waited on in its own turn: where thousands wait and
        thousands of records change, this decides how many changes a replica takes in a second.
        """
        if self.by_table:
            touch(touched, self.by_table)
        # A drop of what was not there moves the table's index and nothing else.
        keys = [key for key, old, new in changes if old is not None or new is not None]
        if self.by_key:
            _touch_named(touched, self.by_key, set(keys))
        for length in self.prefix_lengths:
            _touch_named(touched, self.by_prefix, {key[:length] for key in keys})
        for value_of, by_value in self.by_index.values():
            values = {value_of(new) for _, _, new in changes if new is not None}
            values.update(value_of(old) for _, old, _ in changes if old is not None)
            _touch_named(touched, by_value, values)

    def everybody(self, *, touched: Touched) -> None:
        touch(touched, self.by_table)
        for place in (self.by_key, self.by_prefix, *(index.by_value for index in self.by_index.values())):
            for group in place.values():
                touch(touched, group)

    def is_empty(self) -> bool:
        return not (self.by_table or self.by_key or self.by_prefix or self.by_index or self.journals)


class Journal(Protocol):
    """Is told of every change to a table, with what stood there before."""

    def note(self, changes: Sequence[Changed]) -> None: ...


class Watches:
    """All subscriptions of a replica."""

    def __init__(self, tables: Mapping[str, Table[Any]]) -> None:
        self._tables = tables
        self.tables: dict[str, TableWatches] = {}
        self.count = 0  # Those that have not ended.
        self.number_last = 0

    def subscribe(self, watched: Iterable[Watched], wake: Callable[[], None]) -> Subscription:
        """`wake` is called at the first change to any of `watched`, from inside `apply`: it must only take note."""
        self.number_last += 1
        subscription = Subscription(self, self.number_last, tuple(dict.fromkeys(watched)), wake)
        self.count += 1
        for name in subscription.watched:
            watches = self.tables.get(name.table)
            if watches is None:
                watches = self.tables[name.table] = TableWatches(self._tables[name.table])
            if name.kind == "table":
                watches.by_table[subscription] = None
                continue
            watches.place(name).setdefault(name.value, {})[subscription] = None
            if name.kind == "prefix":
                length = len(str(name.value))
                watches.prefix_lengths[length] = watches.prefix_lengths.get(length, 0) + 1
        return subscription

    def keep_journal(self, table: Table[Any], journal: Journal) -> None:
        """From now on; told in the moment in which a batch is taken in."""
        watches = self.tables.get(table.name)
        if watches is None:
            watches = self.tables[table.name] = TableWatches(self._tables[table.name])
        watches.journals[journal] = None

    def end_journal(self, table: Table[Any], journal: Journal) -> None:
        watches = self.tables.get(table.name)
        if watches is not None and watches.journals.pop(journal, 0) is None and watches.is_empty():
            del self.tables[table.name]

    def forget(self, subscription: Subscription) -> None:
        """Called once, by the subscription when it ends."""
        self.count -= 1
        for name in subscription.watched:
            watches = self.tables[name.table]
            if name.kind == "table":
                del watches.by_table[subscription]
            else:
                self._forget_at(watches, name, subscription)
            if watches.is_empty():
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

    def everybody(self) -> Touched:
        touched: Touched = {}
        for watches in self.tables.values():
            watches.everybody(touched=touched)
        return touched
