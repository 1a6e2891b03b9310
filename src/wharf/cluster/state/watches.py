"""Watches: subscriptions to changes of the replica.

A subscription names its targets: a table, a key, a prefix of keys or an index value. Applying a batch wakes exactly the
subscriptions with a target that the batch changed, once each, in the order of their creation.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from wharf.cluster.state.table import Index, Table


class WatchTarget(NamedTuple):
    """A target of a subscription. Use the `watch_` functions to create one."""

    table: str
    kind: str
    """ "table", "key", "prefix", "index NAME", or "index NAME field FIELD"."""
    value: Hashable


def watch_table(table: Table[Any]) -> WatchTarget:
    """Return a target for every change of a table."""
    return WatchTarget(table.name, "table", None)


def watch_key(table: Table[Any], *key: str | int) -> WatchTarget:
    """Return a target for changes of the record under a key. A table with a single record needs no key."""
    return WatchTarget(table.name, "key", table.build_key(*key))


def watch_prefix(table: Table[Any], prefix: str) -> WatchTarget:
    """Return a target for changes of all records whose key has this prefix."""
    return WatchTarget(table.name, "prefix", prefix)


def watch_index(index: Index[Any], *value: Hashable) -> WatchTarget:
    """Return a target for changes of all records that have this index value before or after the change."""
    return WatchTarget(index.table, format_index_kind(index), value[0] if len(value) == 1 else value)


FIELD_MARK: Final = " field "
"""Separates the index from the field in the kind of a target of `watch_index_field`."""


def watch_index_field(index: Index[Any], field: str, *value: Hashable) -> WatchTarget:
    """Return a target for records with this index value that are created, deleted, or changed in this field.

    Other changes of these records wake nobody.
    """
    return watch_index(index, *value)._replace(kind=f"{format_index_kind(index)}{FIELD_MARK}{field}")


def format_index_kind(index: Index[Any]) -> str:
    """Return the text that watch targets of this index have as their `kind`, such as `index job`."""
    return f"index {index.name}"


class Subscription:
    """A subscription to changes of one or more targets.

    `has_fired` stays true from the first change until `rearm`. To miss no change, first rearm, then read, then wait.
    """

    __slots__ = ("_registry", "_wake", "has_fired", "is_closed", "sequence", "targets")

    def __init__(
        self, registry: "WatchRegistry", sequence: int, targets: Sequence[WatchTarget], wake: Callable[[], None]
    ) -> None:
        self.sequence = sequence
        self.targets = targets
        self.has_fired = False
        self.is_closed = False
        self._registry = registry
        self._wake = wake

    def fire(self) -> None:
        """Call the wake function, unless the subscription has fired already or is closed."""
        if not self.has_fired and not self.is_closed:  # Waking another subscription may have closed this one.
            self.has_fired = True
            self._wake()

    def rearm(self) -> None:
        """Let the next change wake the subscription again."""
        self.has_fired = False

    def close(self) -> None:
        """End the subscription: it is never woken again. Closing twice is allowed."""
        if not self.is_closed:
            self.is_closed = True
            self._registry.remove_subscription(self)


Subscribers = dict[Subscription, None]
"""A group of subscriptions to one target. It keeps the order of insertion, so that the order of waking is deterministic."""

TouchedGroups = dict[int, Subscribers]
"""Groups with a target that a batch changed, by the `id` of the group. A batch may touch a group of ten thousand
subscriptions a thousand times. So groups are collected while the batch is applied, and their members are read once."""

RecordChange = tuple[str, msgspec.Struct | None, msgspec.Struct | None]
"""The change of one key: the key, the record before and the record after. A missing record is `None`."""

MAX_WAKES_PER_STEP: Final = 1_000
"""How many subscriptions are woken before the event loop gets a turn: about a millisecond, without their own work."""


def add_touched_group(touched: TouchedGroups, subscribers: Subscribers) -> None:
    """Add a group to those that a batch touched."""
    touched[id(subscribers)] = subscribers


def list_touched_subscriptions(touched: TouchedGroups) -> list[Subscription]:
    """Return the subscriptions of all touched groups, once each, in the order of their creation."""
    subscriptions: Subscribers = {}
    for subscribers in touched.values():
        subscriptions.update(subscribers)
    return sorted(subscriptions, key=attrgetter("sequence"))


def wake_subscriptions(subscriptions: Sequence[Subscription]) -> Iterator[None]:
    """Wake subscriptions that are still open; yield between steps. The caller must exhaust the iterator."""
    for start in range(0, len(subscriptions), MAX_WAKES_PER_STEP):
        if start:
            yield
        for subscription in subscriptions[start : start + MAX_WAKES_PER_STEP]:
            subscription.fire()


class IndexWatches(NamedTuple):
    """The subscriptions to values of one index."""

    get_value: Callable[[Any], Hashable]
    by_value: dict[Hashable, Subscribers]
    get_field: Callable[[Any], object] | None = None
    """Reads the field whose changes wake the subscriptions; `None`: every change does."""

    def collect_values(self, changes: Sequence[RecordChange]) -> set[Hashable]:
        """Return the index values whose subscriptions these changes wake."""
        get_value, get_field = self.get_value, self.get_field
        if get_field is not None:
            changes = [
                change
                for change in changes
                if (old := change[1]) is None
                or (new := change[2]) is None
                or get_field(old) != get_field(new)
                or get_value(old) != get_value(new)
            ]
        values = {get_value(new) for _, _, new in changes if new is not None}
        values.update(get_value(old) for _, old, _ in changes if old is not None)
        return values


def _add_touched_groups(touched: TouchedGroups, groups: dict[Hashable, Subscribers], values: set[Any]) -> None:
    """Add to `touched` the groups of subscriptions to these keys, prefixes or index values. The order is irrelevant: it is decided when waking."""
    for value in groups.keys() & values:
        subscribers = groups[value]
        touched[id(subscribers)] = subscribers


class TableWatches:
    """The subscriptions and observers of one table."""

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

    def get_groups(self, target: WatchTarget) -> dict[Hashable, Subscribers]:
        """Return the groups for targets of the same kind, by key, prefix or index value."""
        match target.kind:
            case "key":
                return self.subscribers_by_key
            case "prefix":
                return self.subscribers_by_prefix
            case kind:
                if kind not in self.watches_by_index:
                    index_kind, _, field = kind.partition(FIELD_MARK)
                    get_field = attrgetter(field) if field else None
                    self.watches_by_index[kind] = IndexWatches(self._indexes[index_kind].get_value, {}, get_field)
                return self.watches_by_index[kind].by_value

    def notify_observers(self, changes: Sequence[RecordChange]) -> None:
        """Notify observers in the step in which the changes are applied, so that none reads the new state before."""
        for observer in list(self.observers):  # A copy, because an observer may remove itself.
            observer.on_changes(changes)

    def collect_touched(self, changes: Sequence[RecordChange], *, touched: TouchedGroups) -> None:
        """Add to `touched` every group of subscriptions with a target that one of these changes affects.

        All changes of a batch are compared with one kind of target after the other. With thousands of subscriptions, this
        function limits how many changes a replica can apply in a second.
        """
        if self.table_subscribers:
            add_touched_group(touched, self.table_subscribers)
        # Deleting a record that does not exist changes only the last-change index of the table.
        keys = [key for key, old, new in changes if old is not None or new is not None]
        if self.subscribers_by_key:
            _add_touched_groups(touched, self.subscribers_by_key, set(keys))
        for length in self.prefix_lengths:
            _add_touched_groups(touched, self.subscribers_by_prefix, {key[:length] for key in keys})
        for watches in self.watches_by_index.values():
            _add_touched_groups(touched, watches.by_value, watches.collect_values(changes))

    def collect_all(self, *, touched: TouchedGroups) -> None:
        """Add all groups of subscriptions of the table to `touched`."""
        add_touched_group(touched, self.table_subscribers)
        for groups in (
            self.subscribers_by_key,
            self.subscribers_by_prefix,
            *(index.by_value for index in self.watches_by_index.values()),
        ):
            for subscribers in groups.values():
                add_touched_group(touched, subscribers)

    def is_empty(self) -> bool:
        """Return whether the table has neither subscriptions nor observers."""
        return not (
            self.table_subscribers
            or self.subscribers_by_key
            or self.subscribers_by_prefix
            or self.watches_by_index
            or self.observers
        )


class ChangeObserver(Protocol):
    """Receives every change of a table, with the record before it."""

    def on_changes(self, changes: Sequence[RecordChange]) -> None:
        """Handle the changes of one batch, at the time they are applied."""
        ...


class WatchRegistry:
    """All subscriptions and observers of a replica."""

    def __init__(self, tables: Mapping[str, Table[Any]]) -> None:
        self._tables = tables
        self.table_watches: dict[str, TableWatches] = {}
        self.subscription_count = 0  # Only open ones.
        self.last_sequence = 0

    def subscribe(self, targets: Iterable[WatchTarget], wake: Callable[[], None]) -> Subscription:
        """Subscribe to changes of any of the targets.

        `wake` is called at the first change, while the batch is being applied. It must only record the event, such as by
        setting a flag.
        """
        self.last_sequence += 1
        subscription = Subscription(self, self.last_sequence, tuple(dict.fromkeys(targets)), wake)
        self.subscription_count += 1
        for target in subscription.targets:
            watches = self.table_watches.get(target.table)
            if watches is None:
                watches = self.table_watches[target.table] = TableWatches(self._tables[target.table])
            if target.kind == "table":
                watches.table_subscribers[subscription] = None
                continue
            watches.get_groups(target).setdefault(target.value, {})[subscription] = None
            if target.kind == "prefix":
                length = len(str(target.value))
                watches.prefix_lengths[length] = watches.prefix_lengths.get(length, 0) + 1
        return subscription

    def add_observer(self, table: Table[Any], observer: ChangeObserver) -> None:
        """Notify an observer of every later change of the table, at the time it is applied."""
        watches = self.table_watches.get(table.name)
        if watches is None:
            watches = self.table_watches[table.name] = TableWatches(self._tables[table.name])
        watches.observers[observer] = None

    def remove_observer(self, table: Table[Any], observer: ChangeObserver) -> None:
        """Remove an observer. An observer that was removed already is ignored."""
        watches = self.table_watches.get(table.name)
        if watches is not None and watches.observers.pop(observer, 0) is None and watches.is_empty():
            del self.table_watches[table.name]

    def remove_subscription(self, subscription: Subscription) -> None:
        """Remove a subscription from all its groups. Called once, when the subscription is closed."""
        self.subscription_count -= 1
        for target in subscription.targets:
            watches = self.table_watches[target.table]
            if target.kind == "table":
                del watches.table_subscribers[subscription]
            else:
                self._remove_from_group(watches, target, subscription)
            if watches.is_empty():
                del self.table_watches[target.table]  # Changes of tables without watches need no work.

    @staticmethod
    def _remove_from_group(watches: TableWatches, target: WatchTarget, subscription: Subscription) -> None:
        """Remove a subscription from the group of one target, and the group if it is empty."""
        groups = watches.get_groups(target)
        subscribers = groups[target.value]
        del subscribers[subscription]
        if not subscribers:
            del groups[target.value]
        if target.kind == "prefix":
            length = len(str(target.value))
            watches.prefix_lengths[length] -= 1
            if not watches.prefix_lengths[length]:
                del watches.prefix_lengths[length]
        if target.kind.startswith("index ") and not groups:
            del watches.watches_by_index[target.kind]

    def collect_all(self) -> TouchedGroups:
        """Return the groups of all subscriptions."""
        touched: TouchedGroups = {}
        for watches in self.table_watches.values():
            watches.collect_all(touched=touched)
        return touched
