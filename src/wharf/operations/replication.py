"""What a region copies from the authoritative one: quotas, namespaces, node pools, policies, roles, ways to log in,
global tokens.

One comparison of what is there with what was there, at one moment each. It is told as steps that each fit in one write and
may be done again; a step that a newer write has overtaken conflicts, and the next comparison makes up for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from wharf.model.changes import SEPARATOR, THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.namespace import DEFAULT, Namespace
from wharf.model.node_pool import BUILT_IN, NodePool
from wharf.model.token import Token
from wharf.state import Replica, Table
from wharf.state.tables import (
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

replace = msgspec.structs.replace


class Copied(NamedTuple):
    """One table that is copied. `is_ours`: of a record here, that it is not the other region's to change. `is_needed`:
    that something here still lives by it, so that it stays although it is gone there."""

    table: Table[Any]
    is_ours: Callable[[Any], bool]
    is_needed: Callable[[Replica, Any], bool] = lambda _snapshot, _record: False


def _is_default(namespace: Namespace) -> bool:
    return namespace.name == DEFAULT


def _is_lived_in(snapshot: Replica, namespace: Namespace) -> bool:
    return next(snapshot.by_key(JOBS, prefix=namespace.name + SEPARATOR), None) is not None


def _is_built_in(pool: NodePool) -> bool:
    return pool.name in BUILT_IN


def _is_used(snapshot: Replica, pool: NodePool) -> bool:
    return any(True for _ in snapshot.those(NODES_OF_POOL, pool.name)) or any(
        True for _ in snapshot.those(JOBS_OF_POOL, pool.name)
    )


def _is_local(token: Token) -> bool:
    return not token.global_


def _never(_record: object) -> bool:
    return False


COPIED: Final = (
    Copied(QUOTAS, _never),
    Copied(NAMESPACES, _is_default, _is_lived_in),
    Copied(NODE_POOLS, _is_built_in, _is_used),
    Copied(ACL_POLICIES, _never),
    Copied(ACL_ROLES, _never),
    Copied(ACL_AUTH_METHODS, _never),
    Copied(ACL_BINDING_RULES, _never),
    Copied(ACL_TOKENS, _is_local),
)
"""In the order in which they are written, so that nothing names what is not there yet."""


class ToCopy(NamedTuple):
    """What a record of the other region becomes here, or the key of one that is gone there."""

    change: Put | Drop
    condition: Condition


def is_copied(copied: Copied, record: Any) -> bool:
    """Whether the authoritative region gives this record away."""
    return not copied.is_ours(record)


def copy_steps(
    snapshot: Replica, copied: Copied, records: Iterable[Any], *, region: str, changes_max: int
) -> Iterator[Write]:
    """The writes that make this table as it is there. `records`: all that the other region gives away.

    Secrets must be sealed by our own ring before they come here: keys are never shared between regions.
    """
    work = _to_copy(snapshot, copied, list(records))
    while step := list(islice(work, changes_max)):
        yield Write(
            "copied-from-region",
            Cause(CauseKind.TIMER, region),
            [item.change for item in step],
            [item.condition for item in step],
        )


def _to_copy(snapshot: Replica, copied: Copied, records: Sequence[Any]) -> Iterator[ToCopy]:
    table = copied.table
    theirs = {table.key_of(record): record for record in records if is_copied(copied, record)}
    for key in sorted(theirs):
        record, stored = theirs[key], snapshot.rows(table).records.get(key)
        if stored is not None and (copied.is_ours(stored) or stored.hash == record.hash):
            continue
        created = THIS if stored is None else stored.create_index
        fresh = replace(record, create_index=created, modify_index=0)
        version = 0 if stored is None else stored.modify_index
        yield ToCopy(table.put(fresh), Condition(table.name, key, version))
    for stored in list(snapshot.all(table)):
        key = table.key_of(stored)
        if key not in theirs and not copied.is_ours(stored) and not copied.is_needed(snapshot, stored):
            yield ToCopy(Drop(table.name, key), snapshot.unchanged(table, stored))
