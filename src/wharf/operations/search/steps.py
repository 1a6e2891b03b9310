"""Going through a table step by step, in order of key, while others may write."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from wharf.model.changes import SEPARATOR
from wharf.operations.search.contexts import EVERY_NAMESPACE
from wharf.state import Order, Replica, Table
from wharf.state.tables import NAMESPACES

AT_ONCE: Final = 64
"""Records in one step: about a millisecond, where jobs are searched through."""

WORK_AT_ONCE: Final = 250
"""Of tables of work there are more in each step: their names are few."""


def in_steps(replica: Replica, table: Table[Any], prefix: str = "") -> Iterator[list[Any]]:
    """Those whose key begins so, in order of key. None that stands all the while is passed over or told twice."""
    at_once = AT_ONCE if table.order is Order.KEY else WORK_AT_ONCE
    start: str | None = None
    while True:
        some = list(islice(replica.by_key(table, prefix=prefix, start=start), at_once + 1))
        yield some[:at_once]
        if len(some) <= at_once:
            return
        start = table.key_of(some[-1])


def all_in_steps(replica: Replica, table: Table[Any]) -> Iterator[list[Any]]:
    """All records of a table of work, in order of creation: their keys are not kept in order."""
    start: tuple[int, str] | None = None
    while True:
        some = list(islice(replica.by_creation(table, start=start), WORK_AT_ONCE + 1))
        yield some[:WORK_AT_ONCE]
        if len(some) <= WORK_AT_ONCE:
            return
        start = (some[-1].create_index, table.key_of(some[-1]))


def beginnings(replica: Replica, table: Table[Any], namespace: str, prefix: str) -> list[str]:
    """Where in the order of keys those lie whose id begins so: at one place, or at one in each namespace."""
    if len(table.key_attributes) < 2:
        return [prefix]
    everywhere = [each.name for each in replica.all(NAMESPACES)]
    return [name + SEPARATOR + prefix for name in (everywhere if namespace == EVERY_NAMESPACE else [namespace])]
