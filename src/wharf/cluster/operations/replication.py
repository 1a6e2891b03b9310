"""Replication from the authoritative region: quotas, namespaces, node pools, policies, roles, auth methods, binding
rules and global tokens. Those of access control are applied as one set by `access_replication`.

Compares this region's records with a complete list from the other region and builds writes that each fit the log. A
write can be repeated; if a newer write overlaps, it conflicts and the next comparison corrects the difference.
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from wharf.cluster.operations.references import build_child_conditions
from wharf.cluster.state import Replica, Table
from wharf.cluster.state.tables import (
    ACL_AUTH_METHODS,
    ACL_BINDING_RULES,
    ACL_POLICIES,
    ACL_ROLES,
    ACL_TOKENS,
    HOST_VOLUMES,
    JOBS,
    JOBS_OF_POOL,
    NAMESPACES,
    NAMESPACES_WITH_QUOTA,
    NODE_POOLS,
    NODES_OF_POOL,
    QUOTAS,
    VARIABLES,
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
from wharf.contract.model.quotas import Quota


def _get_hash(record: Any) -> Hashable:
    """Return the hash of the content of a record, or of the item of a list."""
    return bytes(record.hash)


def _get_token_version(token: Any) -> Hashable:
    """Return the hash and the creation time of a token.

    Servers of earlier releases leave the secret out of the hash. A token that they deleted and created again, with another
    secret, may differ only in its creation time.
    """
    return bytes(token.hash), token.create_time


class ReplicatedTable(NamedTuple):
    """A table that this region copies from the authoritative region."""

    table: Table[Any]
    is_local: Callable[[Any], bool]
    """Returns whether a record belongs to its own region only. Such a record is neither sent nor replaced."""
    is_in_use: Callable[[Replica, Any], bool] = lambda _snapshot, _record: False
    """Returns whether a record is in use in this region. It then stays, even if the source deleted it."""
    get_version: Callable[[Any], Hashable] = _get_hash
    """Returns a value that is equal for a record of this region and a record or list item of the source if both have the
    same content and the same secret."""


def _is_default(namespace: Namespace) -> bool:
    """Return whether this is the default namespace, which every region has."""
    return namespace.name == DEFAULT_NAMESPACE


def _has_content(snapshot: Replica, namespace: Namespace) -> bool:
    """Return whether the namespace contains a job, a variable or a volume."""
    tables: tuple[Table[Any], ...] = (JOBS, VARIABLES, HOST_VOLUMES)
    prefix = namespace.name + KEY_SEPARATOR
    return any(next(snapshot.iter_by_key(table, prefix=prefix), None) is not None for table in tables)


def _has_namespaces(snapshot: Replica, quota: Quota) -> bool:
    """Return whether a namespace has the quota."""
    return any(True for _ in snapshot.list_by_index(NAMESPACES_WITH_QUOTA, quota.name))


def _is_built_in(pool: NodePool) -> bool:
    """Return whether this is a node pool that every cluster has."""
    return pool.name in BUILT_IN_NODE_POOLS


def _has_nodes_or_jobs(snapshot: Replica, pool: NodePool) -> bool:
    """Return whether the node pool has a node or a job."""
    return any(True for _ in snapshot.list_by_index(NODES_OF_POOL, pool.name)) or any(
        True for _ in snapshot.list_by_index(JOBS_OF_POOL, pool.name)
    )


def _is_local_token(token: Token) -> bool:
    """Return whether the token is valid in its own region only."""
    return not token.global_


def _is_never_local(_record: object) -> bool:
    """Return False, for tables without records that belong to one region only."""
    return False


POLICIES: Final = ReplicatedTable(ACL_POLICIES, _is_never_local)
ROLES: Final = ReplicatedTable(ACL_ROLES, _is_never_local)
AUTH_METHODS: Final = ReplicatedTable(ACL_AUTH_METHODS, _is_never_local)
BINDING_RULES: Final = ReplicatedTable(ACL_BINDING_RULES, _is_never_local)
TOKENS: Final = ReplicatedTable(ACL_TOKENS, _is_local_token, get_version=_get_token_version)
SEPARATE_TABLES: Final = (
    ReplicatedTable(QUOTAS, _is_never_local, _has_namespaces),
    ReplicatedTable(NAMESPACES, _is_default, _has_content),
    ReplicatedTable(NODE_POOLS, _is_built_in, _has_nodes_or_jobs),
)
"""The tables that are copied one by one, because they grant no rights."""
RIGHTS_TABLES: Final = (POLICIES, ROLES, AUTH_METHODS, BINDING_RULES)
"""The tables that, together with the tokens, decide what callers may do. They are applied as one set."""
REPLICATED_TABLES: Final = (*SEPARATE_TABLES, *RIGHTS_TABLES, TOKENS)


class ReplicatedChange(NamedTuple):
    """One change that makes a table equal to that of the other region, with its conditions."""

    change: PutRecord | DeleteRecord
    conditions: tuple[Condition, ...]


def is_replicated(replicated: ReplicatedTable, record: Any) -> bool:
    """Return whether the authoritative region sends this record of the table to other regions."""
    return not replicated.is_local(record)


def build_replication_writes(
    snapshot: Replica, replicated: ReplicatedTable, records: Iterable[Any], *, region: str, max_changes: int
) -> Iterator[Write]:
    """Yield the writes that make this table equal to that of the authoritative region.

    `records` are all records that it sent, and `region` is its name, for the log. Secrets in them must already be
    encrypted with this region's keys, because regions never share keys.
    """
    items: list[ReplicatedChange] = []
    conditions: set[tuple[str, str, bool]] = set()
    for item in _compare_records(snapshot, replicated, list(records)):
        added = {(each.table, each.key, each.is_prefix) for each in item.conditions}
        if items and max(len(items) + 1, len(conditions | added)) > max_changes:
            yield build_write(region, items)
            items, conditions = [], set()
        items.append(item)
        conditions |= added
    if items:
        yield build_write(region, items)


def _compare_records(
    snapshot: Replica, replicated: ReplicatedTable, records: Sequence[Any]
) -> Iterator[ReplicatedChange]:
    """Yield the changes that make the stored table equal to `records`.

    Local records are left as they are, and deleted records that are still in use here are kept.
    """
    table = replicated.table
    source_records = {table.get_key(record): record for record in records if is_replicated(replicated, record)}
    for key in sorted(source_records):
        if differs(snapshot, replicated, source_records[key]):
            yield build_put(snapshot, table, source_records[key])
    for stored in list_records_without_source(snapshot, replicated, source_records):
        yield build_deletion(snapshot, table, stored)


def differs(snapshot: Replica, replicated: ReplicatedTable, record: Any) -> bool:
    """Return whether the record of the source, or its list item, differs from that of this region.

    A local record with the same key stays, so it does not count.
    """
    table = replicated.table
    stored = snapshot.get_table_records(table).records.get(table.get_key(record))
    if stored is None:
        return True
    return not replicated.is_local(stored) and replicated.get_version(stored) != replicated.get_version(record)


def list_records_without_source(
    snapshot: Replica, replicated: ReplicatedTable, source_keys: Container[str]
) -> list[Any]:
    """Return the replicated records that the source no longer has, and that are not in use here."""
    return [
        stored
        for stored in snapshot.iter_all(replicated.table)
        if replicated.table.get_key(stored) not in source_keys
        and not replicated.is_local(stored)
        and not replicated.is_in_use(snapshot, stored)
    ]


def build_put(
    snapshot: Replica, table: Table[Any], record: Any, *, create_index: int | None = None
) -> ReplicatedChange:
    """Return the change that stores the record, under the condition that the stored one does not change.

    Without `create_index`, a stored record keeps its own, and a new record gets the index of the write.
    """
    key = table.get_key(record)
    stored = snapshot.get_table_records(table).records.get(key)
    if create_index is None:
        create_index = WRITE_INDEX if stored is None else stored.create_index
    version = 0 if stored is None else stored.modify_index
    put = table.build_put(replace(record, create_index=create_index, modify_index=0))
    return ReplicatedChange(put, (Condition(table.name, key, version),))


def build_deletion(snapshot: Replica, table: Table[Any], stored: Any) -> ReplicatedChange:
    """Return the deletion of a stored record. A record that needs it must not be created at the same time."""
    key = table.get_key(stored)
    child_conditions = build_child_conditions(snapshot, table, key)
    condition = snapshot.build_record_condition(table, stored)
    return ReplicatedChange(DeleteRecord(table.name, key), (condition, *child_conditions))


def build_write(region: str, changes: Iterable[ReplicatedChange]) -> Write:
    """Return the write with these changes. `region` is the name of the source, for the log."""
    items = list(changes)
    conditions = {(each.table, each.key, each.is_prefix): each for item in items for each in item.conditions}
    cause = Cause(CauseKind.TIMER, region)
    return Write("copied-from-region", cause, [item.change for item in items], list(conditions.values()))
