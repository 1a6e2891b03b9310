"""References between records: which records name another record as their parent, and the conditions that protect them.

A parent must not be deleted while a record that needs it is created at the same time. So both writes have conditions:
the creation requires that the parent does not change, and the deletion requires that no record was created or changed
among those that may refer to the parent. The second write of the two conflicts and is decided again on the newer state.
Creations under one parent do not conflict with each other.

References that may outlive their parent, such as that of a token to a policy, are not listed: without the parent they
grant nothing.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from wharf.cluster.state import Replica, Table
from wharf.cluster.state.tables import (
    ACL_AUTH_METHODS,
    ACL_BINDING_RULES,
    HOST_VOLUMES,
    JOBS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    QUOTAS,
    VARIABLES,
)
from wharf.contract.model.log import Condition

DELETION_ATTEMPTS: Final = 40
"""How often the deletion of a parent is decided again after conflicts. Each change of a record that may refer to the
parent is a conflict, so a deletion in a busy cluster needs more attempts than other writes."""


class Reference(NamedTuple):
    """Records of one table that need a record of another table."""

    child: Table[Any]
    parent: Table[Any]
    get_parent_key: Callable[[Any], str]
    """Returns the key of the parent that a child names; empty if it names none."""
    is_key_prefix: bool = False
    """Whether the keys of the children begin with the key of the parent, as those of jobs begin with the namespace."""


def _get_namespace(record: Any) -> str:
    namespace: str = record.namespace
    return namespace


def _get_node_pool(record: Any) -> str:
    node_pool: str = record.node_pool
    return node_pool


REFERENCES: Final = (
    Reference(JOBS, NAMESPACES, _get_namespace, is_key_prefix=True),
    Reference(VARIABLES, NAMESPACES, _get_namespace, is_key_prefix=True),
    Reference(HOST_VOLUMES, NAMESPACES, _get_namespace, is_key_prefix=True),
    Reference(NAMESPACES, QUOTAS, lambda namespace: namespace.quota),
    Reference(JOBS, NODE_POOLS, _get_node_pool),
    Reference(NODES, NODE_POOLS, _get_node_pool),
    Reference(ACL_BINDING_RULES, ACL_AUTH_METHODS, lambda rule: rule.auth_method),
)
"""All references whose parent must exist. The page docs/architecture.md shows them."""


def build_parent_conditions(snapshot: Replica, child: Table[Any], record: Any) -> list[Condition]:
    """Return the conditions that the parents of a record do not change before the record is stored."""
    return [
        snapshot.build_key_condition(reference.parent, parent_key)
        for reference in REFERENCES
        if reference.child is child and (parent_key := reference.get_parent_key(record))
    ]


def build_child_conditions(snapshot: Replica, parent: Table[Any], parent_key: str) -> list[Condition]:
    """Return the conditions that no record that may refer to this parent is created or changed before the deletion."""
    return [
        snapshot.build_prefix_condition(reference.child, *([parent_key] if reference.is_key_prefix else ()))
        for reference in REFERENCES
        if reference.parent is parent
    ]
