"""Scan a table in batches, in key order, while other writes may happen between batches."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from wharf.cluster.state import ListOrder, Replica, Table
from wharf.cluster.state.tables import NAMESPACES
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.namespaces import ALL_NAMESPACES

RECORDS_PER_STEP: Final = 16
"""Records in one batch. A job with many groups, or a variable that many access rules may match, takes half a
millisecond."""

UNORDERED_RECORDS_PER_STEP: Final = 64
"""Records in one batch of tables not sorted by key: each record has only one name, so more fit in a step."""


def iterate_by_key(replica: Replica, table: Table[Any], prefix: str = "") -> Iterator[list[Any]]:
    """Yield batches of the records whose key has this prefix, in key order.

    The table may change between batches: a record that exists during the whole scan is returned exactly once.
    """
    batch_size = RECORDS_PER_STEP if table.order is ListOrder.KEY else UNORDERED_RECORDS_PER_STEP
    start: str | None = None
    while True:
        batch = list(islice(replica.iter_by_key(table, prefix=prefix, start=start), batch_size + 1))
        yield batch[:batch_size]
        if len(batch) <= batch_size:
            return
        start = table.get_key(batch[-1])


def iterate_by_creation(replica: Replica, table: Table[Any]) -> Iterator[list[Any]]:
    """Yield batches of all records in order of creation, for tables that are not sorted by key.

    The table may change between batches.
    """
    start: tuple[int, str] | None = None
    while True:
        batch = list(islice(replica.iter_by_creation(table, start=start), UNORDERED_RECORDS_PER_STEP + 1))
        yield batch[:UNORDERED_RECORDS_PER_STEP]
        if len(batch) <= UNORDERED_RECORDS_PER_STEP:
            return
        start = (batch[-1].create_index, table.get_key(batch[-1]))


def list_key_prefixes(replica: Replica, table: Table[Any], namespace: str, prefix: str) -> list[str]:
    """Return the prefixes of table keys for ids that start with `prefix`.

    There is one, or one for each namespace if keys begin with a namespace and all namespaces are searched.
    """
    if len(table.key_attributes) < 2:
        return [prefix]
    all_namespaces = [each.name for each in replica.iter_all(NAMESPACES)]
    return [name + KEY_SEPARATOR + prefix for name in (all_namespaces if namespace == ALL_NAMESPACES else [namespace])]
