"""Going through a table step by step, in order of key, while others may write."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from wharf.cluster.operations.search.contexts import ALL_NAMESPACES
from wharf.cluster.state import ListOrder, Replica, Table
from wharf.cluster.state.tables import NAMESPACES
from wharf.contract.model.log import KEY_SEPARATOR

RECORDS_PER_STEP: Final = 64
"""Records in one step: about a millisecond, where jobs are searched through."""

UNORDERED_RECORDS_PER_STEP: Final = 250
"""Of tables of work there are more in each step: their names are few."""


def iterate_by_key(replica: Replica, table: Table[Any], prefix: str = "") -> Iterator[list[Any]]:
    """Those whose key begins so, in order of key. None that stands all the while is passed over or told twice."""
    at_once = RECORDS_PER_STEP if table.order is ListOrder.KEY else UNORDERED_RECORDS_PER_STEP
    start: str | None = None
    while True:
        some = list(islice(replica.iter_by_key(table, prefix=prefix, start=start), at_once + 1))
        yield some[:at_once]
        if len(some) <= at_once:
            return
        start = table.get_key(some[-1])


def iterate_by_creation(replica: Replica, table: Table[Any]) -> Iterator[list[Any]]:
    """All records of a table of work, in order of creation: their keys are not kept in order."""
    start: tuple[int, str] | None = None
    while True:
        some = list(islice(replica.iter_by_creation(table, start=start), UNORDERED_RECORDS_PER_STEP + 1))
        yield some[:UNORDERED_RECORDS_PER_STEP]
        if len(some) <= UNORDERED_RECORDS_PER_STEP:
            return
        start = (some[-1].create_index, table.get_key(some[-1]))


def list_key_prefixes(replica: Replica, table: Table[Any], namespace: str, prefix: str) -> list[str]:
    """Where in the order of keys those lie whose id begins so: at one place, or at one in each namespace."""
    if len(table.key_attributes) < 2:
        return [prefix]
    everywhere = [each.name for each in replica.iter_all(NAMESPACES)]
    return [name + KEY_SEPARATOR + prefix for name in (everywhere if namespace == ALL_NAMESPACES else [namespace])]
