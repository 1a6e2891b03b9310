"""What a region copies from the authoritative one: quotas, namespaces, node pools, policies, roles, ways to log in,
global tokens.

One comparison of what is there with what was there, at one moment each. It is told as steps that each fit in one write and
may be done again; a step that a newer write has overtaken conflicts, and the next comparison makes up for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from wharf.cluster.state import Replica, Table
from wharf.cluster.state.tables import (
    ACL_AUTH_METHODS,
    ACL_BINDING_RULES,
    ACL_POLICIES,
    ACL_ROLES,
    ACL_TOKENS,
    JOBS,
    JOBS_OF_POOL,
    NAMESPACES,
    NODE_POOLS,
    NODES_OF_POOL,
    QUOTAS,
)
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.log import (
    KEY_SEPARATOR,
    WRITE_INDEX,
    Cause,
    CauseKind,
    Condition,
    DeleteRecord,
    PutRecord,
    Write,
)
from wharf.contract.model.namespaces import DEFAULT_NAMESPACE, Namespace
from wharf.contract.model.node_pools import BUILT_IN_NODE_POOLS, NodePool

replace = msgspec.structs.replace


class ReplicatedTable(NamedTuple):
    """One table that is copied. `is_ours`: of a record here, that it is not the other region's to change. `is_needed`:
    that something here still lives by it, so that it stays although it is gone there."""

    table: Table[Any]
    is_local: Callable[[Any], bool]
    is_in_use: Callable[[Replica, Any], bool] = lambda _snapshot, _record: False


def _is_default(namespace: Namespace) -> bool:
    return namespace.name == DEFAULT_NAMESPACE


def _is_lived_in(snapshot: Replica, namespace: Namespace) -> bool:
    return next(snapshot.iter_by_key(JOBS, prefix=namespace.name + KEY_SEPARATOR), None) is not None


def _is_built_in(pool: NodePool) -> bool:
    return pool.name in BUILT_IN_NODE_POOLS


def _is_used(snapshot: Replica, pool: NodePool) -> bool:
    return any(True for _ in snapshot.list_by_index(NODES_OF_POOL, pool.name)) or any(
        True for _ in snapshot.list_by_index(JOBS_OF_POOL, pool.name)
    )


def _is_local(token: Token) -> bool:
    return not token.global_


def _never(_record: object) -> bool:
    return False


REPLICATED_TABLES: Final = (
    ReplicatedTable(QUOTAS, _never),
    ReplicatedTable(NAMESPACES, _is_default, _is_lived_in),
    ReplicatedTable(NODE_POOLS, _is_built_in, _is_used),
    ReplicatedTable(ACL_POLICIES, _never),
    ReplicatedTable(ACL_ROLES, _never),
    ReplicatedTable(ACL_AUTH_METHODS, _never),
    ReplicatedTable(ACL_BINDING_RULES, _never),
    ReplicatedTable(ACL_TOKENS, _is_local),
)
"""In the order in which they are written, so that nothing names what is not there yet."""


class ReplicatedChange(NamedTuple):
    """What a record of the other region becomes here, or the key of one that is gone there."""

    change: PutRecord | DeleteRecord
    condition: Condition


def is_replicated(replicated: ReplicatedTable, record: Any) -> bool:
    """Whether the authoritative region gives this record away."""
    return not replicated.is_local(record)


def build_replication_writes(
    snapshot: Replica, replicated: ReplicatedTable, records: Iterable[Any], *, region: str, max_changes: int
) -> Iterator[Write]:
    """The writes that make this table as it is there. `records`: all that the other region gives away.

    Secrets must be sealed by our own ring before they come here: keys are never shared between regions.
    """
    work = _compare_records(snapshot, replicated, list(records))
    while step := list(islice(work, max_changes)):
        yield Write(
            "copied-from-region",
            Cause(CauseKind.TIMER, region),
            [item.change for item in step],
            [item.condition for item in step],
        )


def _compare_records(
    snapshot: Replica, replicated: ReplicatedTable, records: Sequence[Any]
) -> Iterator[ReplicatedChange]:
    table = replicated.table
    theirs = {table.get_key(record): record for record in records if is_replicated(replicated, record)}
    for key in sorted(theirs):
        record, stored = theirs[key], snapshot.get_table_records(table).records.get(key)
        if stored is not None and (replicated.is_local(stored) or stored.hash == record.hash):
            continue
        created = WRITE_INDEX if stored is None else stored.create_index
        fresh = replace(record, create_index=created, modify_index=0)
        version = 0 if stored is None else stored.modify_index
        yield ReplicatedChange(table.build_put(fresh), Condition(table.name, key, version))
    for stored in list(snapshot.iter_all(table)):
        key = table.get_key(stored)
        if key not in theirs and not replicated.is_local(stored) and not replicated.is_in_use(snapshot, stored):
            yield ReplicatedChange(DeleteRecord(table.name, key), snapshot.build_record_condition(table, stored))
