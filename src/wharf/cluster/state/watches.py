"""Who waits for what, and who is woken by a change.

A subscriber names what it reads: a whole table, a key, a prefix of keys, a value of an index. Applying a batch wakes
exactly those who named something that the batch changed, once each, in the order in which they subscribed.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from wharf.cluster.state.table import Index, Table


class WatchTarget(NamedTuple):
    """Something that can be waited on. Made by the four functions below."""

    table: str
    kind: str  # "table", "key", "prefix", or "index " and its name
    value: Hashable


def watch_table(table: Table[Any]) -> WatchTarget:
    return WatchTarget(table.name, "table", None)


def watch_key(table: Table[Any], *key: str | int) -> WatchTarget:
    """The record under the key; of a table with one record, that record."""
    return WatchTarget(table.name, "key", table.build_key(*key))


def watch_prefix(table: Table[Any], prefix: str) -> WatchTarget:
    """Every record whose key begins so."""
    return WatchTarget(table.name, "prefix", prefix)


def watch_index(index: Index[Any], *value: Hashable) -> WatchTarget:
    """Every record that has, or had, this value in the index."""
    return WatchTarget(index.table, format_index_kind(index), value[0] if len(value) == 1 else value)


def format_index_kind(index: Index[Any]) -> str:
    return f"index {index.name}"


class Subscription:
    """`fired` stays true from the first change until `rearm`. Rearm, read, and only then wait: nothing falls between."""

    __slots__ = ("_hub", "_wake", "has_fired", "is_closed", "sequence", "targets")

    def __init__(
        self, registry: "WatchRegistry", number: int, watched: Sequence[WatchTarget], wake: Callable[[], None]
    ) -> None:
        self.sequence = number
        self.targets = watched
        self.has_fired = False
        self.is_closed = False
        self._hub = registry
        self._wake = wake

    def fire(self) -> None:
        if not self.has_fired and not self.is_closed:  # It may have ended after it was found, by another's waking.
            self.has_fired = True
            self._wake()

    def rearm(self) -> None:
        self.has_fired = False

    def close(self) -> None:
        """It is never woken again. Ending twice is fine."""
        if not self.is_closed:
            self.is_closed = True
            self._hub.remove_subscription(self)


Subscribers = dict[Subscription, None]  # A dict, for its order: who is woken first must not depend on hashes.

TouchedGroups = dict[int, Subscribers]
"""Groups of subscribers, each once, by the identity of the group. A batch may touch one group a thousand times, and
ten thousand may wait in it: so groups are noted while the batch is taken in, and walked when it is done."""

RecordChange = tuple[str, msgspec.Struct | None, msgspec.Struct | None]
"""What became of one key: the record before and the one after."""

MAX_WAKES_PER_STEP: Final = 1_000
"""Waiters woken in one step: about a millisecond, and what they then do comes on top."""


def add_touched_group(touched: TouchedGroups, group: Subscribers) -> None:
    touched[id(group)] = group


def list_touched_subscriptions(touched: TouchedGroups) -> list[Subscription]:
    """All of them, once each, those who subscribed first before the others."""
    woken: Subscribers = {}
    for group in touched.values():
        woken.update(group)
    return sorted(woken, key=attrgetter("sequence"))


def wake_subscriptions(woken: Sequence[Subscription]) -> Iterator[None]:
    """Wake them; one who has ended meanwhile is left alone. Yields when there are more to wake."""
    for start in range(0, len(woken), MAX_WAKES_PER_STEP):
        if start:
            yield
        for subscription in woken[start : start + MAX_WAKES_PER_STEP]:
            subscription.fire()


class IndexWatches(NamedTuple):
    """The subscriptions that concern values of one index."""

    get_value: Callable[[Any], Hashable]
    by_value: dict[Hashable, Subscribers]


def _touch_named(touched: TouchedGroups, groups: dict[Hashable, Subscribers], names: set[Any]) -> None:
    """Note the groups of these names. In whatever order: who is woken first is decided later."""
    for name in groups.keys() & names:
        group = groups[name]
        touched[id(group)] = group


class TableWatches:
    """The subscriptions that concern one table."""

    __slots__ = (
        "_indexes",
        "observers",
        "prefix_lengths",
        "subscribers_by_key",
        "subscribers_by_prefix",
        "table_subscribers",
        "watches_by_index",
    )

    def __init__(self, table: Table[Any]) -> None:
        self.table_subscribers: Subscribers = {}
        self.observers: dict[ChangeObserver, None] = {}
        self.subscribers_by_key: dict[Hashable, Subscribers] = {}
        self.subscribers_by_prefix: dict[Hashable, Subscribers] = {}
        self.watches_by_index: dict[str, IndexWatches] = {}
        self.prefix_lengths: dict[int, int] = {}
        self._indexes = {format_index_kind(index): index for index in table.indexes}

    def get_groups(self, watched: WatchTarget) -> dict[Hashable, Subscribers]:
        match watched.kind:
            case "key":
                return self.subscribers_by_key
            case "prefix":
                return self.subscribers_by_prefix
            case kind:
                if kind not in self.watches_by_index:
                    self.watches_by_index[kind] = IndexWatches(self._indexes[kind].get_value, {})
                return self.watches_by_index[kind].by_value

    def notify_observers(self, changes: Sequence[RecordChange]) -> None:
        """Tell the journals, in the step in which the changes are taken in: nobody reads the state in between."""
        for journal in list(self.observers):  # One that is told enough ends.
            journal.on_changes(changes)

    def collect_touched(self, changes: Sequence[RecordChange], *, touched: TouchedGroups) -> None:
        """Note everybody who waits on one of these changes.

        All changes of a batch at once, and each thing that can be waited on in its own turn: where thousands wait and
        thousands of records change, this decides how many changes a replica takes in a second.
        """
        if self.table_subscribers:
            add_touched_group(touched, self.table_subscribers)
        # A drop of what was not there moves the table's index and nothing else.
        keys = [key for key, old, new in changes if old is not None or new is not None]
        if self.subscribers_by_key:
            _touch_named(touched, self.subscribers_by_key, set(keys))
        for length in self.prefix_lengths:
            _touch_named(touched, self.subscribers_by_prefix, {key[:length] for key in keys})
        for value_of, by_value in self.watches_by_index.values():
            values = {value_of(new) for _, _, new in changes if new is not None}
            values.update(value_of(old) for _, old, _ in changes if old is not None)
            _touch_named(touched, by_value, values)

    def collect_all(self, *, touched: TouchedGroups) -> None:
        add_touched_group(touched, self.table_subscribers)
        for place in (
            self.subscribers_by_key,
            self.subscribers_by_prefix,
            *(index.by_value for index in self.watches_by_index.values()),
        ):
            for group in place.values():
                add_touched_group(touched, group)

    def is_empty(self) -> bool:
        return not (
            self.table_subscribers
            or self.subscribers_by_key
            or self.subscribers_by_prefix
            or self.watches_by_index
            or self.observers
        )


class ChangeObserver(Protocol):
    """Is told of every change to a table, with what stood there before."""

    def on_changes(self, changes: Sequence[RecordChange]) -> None: ...


class WatchRegistry:
    """All subscriptions of a replica."""

    def __init__(self, tables: Mapping[str, Table[Any]]) -> None:
        self._tables = tables
        self.table_watches: dict[str, TableWatches] = {}
        self.subscription_count = 0  # Those that have not ended.
        self.last_sequence = 0

    def subscribe(self, targets: Iterable[WatchTarget], wake: Callable[[], None]) -> Subscription:
        """`wake` is called at the first change to any of `watched`, from inside `apply`: it must only take note."""
        self.last_sequence += 1
        subscription = Subscription(self, self.last_sequence, tuple(dict.fromkeys(targets)), wake)
        self.subscription_count += 1
        for name in subscription.targets:
            watches = self.table_watches.get(name.table)
            if watches is None:
                watches = self.table_watches[name.table] = TableWatches(self._tables[name.table])
            if name.kind == "table":
                watches.table_subscribers[subscription] = None
                continue
            watches.get_groups(name).setdefault(name.value, {})[subscription] = None
            if name.kind == "prefix":
                length = len(str(name.value))
                watches.prefix_lengths[length] = watches.prefix_lengths.get(length, 0) + 1
        return subscription

    def add_observer(self, table: Table[Any], observer: ChangeObserver) -> None:
        """From now on; told in the moment in which a batch is taken in."""
        watches = self.table_watches.get(table.name)
        if watches is None:
            watches = self.table_watches[table.name] = TableWatches(self._tables[table.name])
        watches.observers[observer] = None

    def remove_observer(self, table: Table[Any], observer: ChangeObserver) -> None:
        watches = self.table_watches.get(table.name)
        if watches is not None and watches.observers.pop(observer, 0) is None and watches.is_empty():
            del self.table_watches[table.name]

    def remove_subscription(self, subscription: Subscription) -> None:
        """Called once, by the subscription when it ends."""
        self.subscription_count -= 1
        for name in subscription.targets:
            watches = self.table_watches[name.table]
            if name.kind == "table":
                del watches.table_subscribers[subscription]
            else:
                self._forget_at(watches, name, subscription)
            if watches.is_empty():
                del self.table_watches[name.table]  # A table that nobody watches costs nothing when it changes.

    @staticmethod
    def _forget_at(watches: TableWatches, name: WatchTarget, subscription: Subscription) -> None:
        place = watches.get_groups(name)
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
            del watches.watches_by_index[name.kind]

    def collect_all(self) -> TouchedGroups:
        touched: TouchedGroups = {}
        for watches in self.table_watches.values():
            watches.collect_all(touched=touched)
        return touched
