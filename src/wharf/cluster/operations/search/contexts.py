"""The searchable kinds of records (search contexts), and who may read which of them."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from wharf.cluster.access import Caller, Rights, build_denial, describe_denial
from wharf.cluster.state import Table
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    HOST_VOLUMES,
    JOBS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    QUOTAS,
    SCALING_POLICIES,
    VARIABLES,
)
from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.capabilities import NodePoolCapability, VariableCapability
from wharf.contract.model.acl.permissions import Permission
from wharf.contract.model.namespaces import ALL_NAMESPACES
from wharf.contract.model.refusal import invalid_request


class SearchContext(StrEnum):
    """The kinds of records that can be searched, with the names and the order of Nomad."""

    ALLOCATIONS = "allocs"
    JOBS = "jobs"
    NODES = "nodes"
    NODE_POOLS = "node_pools"
    EVALUATIONS = "evals"
    DEPLOYMENTS = "deployment"
    PLUGINS = "plugins"
    VOLUMES = "volumes"
    SCALING_POLICIES = "scaling_policy"
    VARIABLES = "vars"
    NAMESPACES = "namespaces"
    HOST_VOLUMES = "host_volumes"
    QUOTAS = "quotas"


ALL_CONTEXTS: Final = "all"
"""The name that selects all kinds of records."""


class SearchTarget(msgspec.Struct, frozen=True):
    """How to search one kind of record, and which records a caller may see."""

    table: Table[Any] | None  # `None`: no such records exist.
    permission: Permission  # Checked in the namespace of each record, if it has one.
    has_uuid: bool = False  # The ids of these records are UUIDs.
    get_namespace: Callable[[Any], str] | None = None  # `None`: the records belong to no namespace.
    is_visible: Callable[[Rights, Any], bool] | None = None  # Decides for each record; `None`: `permission` is enough.


def _get_namespace(record: Any) -> str:
    """Return the namespace of a record."""
    namespace: str = record.namespace
    return namespace


def _get_target_namespace(policy: Any) -> str:
    """Return the namespace of the job that a scaling policy is for."""
    namespace: str = (policy.target or {}).get("Namespace", "")
    return namespace


SEARCH_TARGETS: Final[dict[SearchContext, SearchTarget]] = {
    SearchContext.ALLOCATIONS: SearchTarget(
        ALLOCATIONS, permissions.READ_JOB, has_uuid=True, get_namespace=_get_namespace
    ),
    SearchContext.JOBS: SearchTarget(JOBS, permissions.READ_JOB, get_namespace=_get_namespace),
    SearchContext.NODES: SearchTarget(NODES, permissions.READ_NODE, has_uuid=True),
    SearchContext.NODE_POOLS: SearchTarget(
        NODE_POOLS,
        permissions.READ_NODE_POOL,
        is_visible=lambda rights, pool: rights.allows_node_pool(pool.name, NodePoolCapability.READ),
    ),
    SearchContext.EVALUATIONS: SearchTarget(
        EVALUATIONS, permissions.READ_JOB, has_uuid=True, get_namespace=_get_namespace
    ),
    SearchContext.DEPLOYMENTS: SearchTarget(
        DEPLOYMENTS, permissions.READ_JOB, has_uuid=True, get_namespace=_get_namespace
    ),
    SearchContext.PLUGINS: SearchTarget(None, permissions.LIST_PLUGINS),
    SearchContext.VOLUMES: SearchTarget(None, permissions.LIST_CSI_VOLUMES),
    SearchContext.SCALING_POLICIES: SearchTarget(
        SCALING_POLICIES, permissions.LIST_SCALING_POLICIES, has_uuid=True, get_namespace=_get_target_namespace
    ),
    SearchContext.VARIABLES: SearchTarget(
        VARIABLES,
        permissions.LIST_VARIABLES,
        get_namespace=_get_namespace,
        is_visible=lambda rights, variable: rights.allows_variable(
            variable.namespace, variable.path, VariableCapability.LIST
        ),
    ),
    SearchContext.NAMESPACES: SearchTarget(
        NAMESPACES,
        permissions.READ_NAMESPACE,
        is_visible=lambda rights, namespace: rights.allows_any_in(namespace.name),
    ),
    SearchContext.HOST_VOLUMES: SearchTarget(
        HOST_VOLUMES, permissions.LIST_HOST_VOLUMES, has_uuid=True, get_namespace=_get_namespace
    ),
    SearchContext.QUOTAS: SearchTarget(QUOTAS, permissions.READ_QUOTA),
}
"""How to search each kind of record."""


def check_search_context(name: str) -> None:
    """Raise unless this is the name of a kind of record that can be searched, or `all`."""
    if name != ALL_CONTEXTS and name not in tuple(SearchContext):
        raise invalid_request(
            f"context must be one of [{' '.join(SearchContext)}] or 'all' for all contexts; got \"{name}\""
        )


def list_allowed_contexts(name: str, caller: Caller, namespace: str) -> list[SearchContext]:
    """Return the kinds of records to search: the one with this name, or, for `all`, those that the caller may search.

    Raises if the caller may not search the named one.
    """
    rights = caller.rights
    if name == ALL_CONTEXTS:
        return [context for context in SearchContext if _is_context_allowed(rights, context, namespace)]
    context = SearchContext(name)
    if not _is_context_allowed(rights, context, namespace):
        target = SEARCH_TARGETS[context]
        raise build_denial(caller, detail=describe_denial(caller, target.permission, namespace=namespace))
    return [context]


def _is_context_allowed(rights: Rights, context: SearchContext, namespace: str) -> bool:
    """Return whether these rights allow a search for this kind of record in the namespace."""
    target = SEARCH_TARGETS[context]
    if target.is_visible is not None:
        return rights.satisfies_anywhere(target.permission)
    return rights.satisfies(target.permission, namespace=namespace)


def make_visibility_filter(rights: Rights, context: SearchContext, namespace: str) -> Callable[[Any], bool]:
    """Return a function that returns whether a record is in the searched namespace and visible to the caller.

    It caches the result of the permission check for each namespace.
    """
    target = SEARCH_TARGETS[context]
    get_namespace, is_visible, permission = target.get_namespace, target.is_visible, target.permission
    allowed_namespaces: dict[str, bool] = {}

    def is_match(record: Any) -> bool:
        """Return whether the record is in the searched namespace and the caller may see it."""
        if get_namespace is not None:
            record_namespace = get_namespace(record)
            if namespace not in (ALL_NAMESPACES, record_namespace):
                return False
            if is_visible is None:
                if record_namespace not in allowed_namespaces:
                    allowed_namespaces[record_namespace] = rights.satisfies(permission, namespace=record_namespace)
                return allowed_namespaces[record_namespace]
        return is_visible is None or is_visible(rights, record)

    return is_match
