"""What can be searched: the kinds of things, where they lie, and who may see which of them."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from wharf.cluster.access import Caller, Rights
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
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request

ALL_NAMESPACES: Final = "*"


class SearchContext(StrEnum):
    """The reference's names, and its order."""

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


class SearchTarget(msgspec.Struct, frozen=True):
    """One kind of thing. `table` None: there is nothing of the kind. `need`: what a caller needs, in the namespace where
    it lies in one. `may_see`: where each record decides by itself."""

    table: Table[Any] | None
    permission: Permission
    has_uuid: bool = False
    get_namespace: Callable[[Any], str] | None = None
    is_visible: Callable[[Rights, Any], bool] | None = None


def _own_namespace(record: Any) -> str:
    namespace: str = record.namespace
    return namespace


def _target_namespace(policy: Any) -> str:
    namespace: str = (policy.target or {}).get("Namespace", "")
    return namespace


SEARCH_TARGETS: Final[dict[SearchContext, SearchTarget]] = {
    SearchContext.ALLOCATIONS: SearchTarget(
        ALLOCATIONS, permissions.READ_JOB, has_uuid=True, get_namespace=_own_namespace
    ),
    SearchContext.JOBS: SearchTarget(JOBS, permissions.READ_JOB, get_namespace=_own_namespace),
    SearchContext.NODES: SearchTarget(NODES, permissions.READ_NODE, has_uuid=True),
    SearchContext.NODE_POOLS: SearchTarget(
        NODE_POOLS,
        permissions.READ_NODE_POOL,
        is_visible=lambda rights, pool: rights.allows_node_pool(pool.name, NodePoolCapability.READ),
    ),
    SearchContext.EVALUATIONS: SearchTarget(
        EVALUATIONS, permissions.READ_JOB, has_uuid=True, get_namespace=_own_namespace
    ),
    SearchContext.DEPLOYMENTS: SearchTarget(
        DEPLOYMENTS, permissions.READ_JOB, has_uuid=True, get_namespace=_own_namespace
    ),
    SearchContext.PLUGINS: SearchTarget(None, permissions.LIST_PLUGINS),
    SearchContext.VOLUMES: SearchTarget(None, permissions.LIST_CSI_VOLUMES),
    SearchContext.SCALING_POLICIES: SearchTarget(
        SCALING_POLICIES, permissions.LIST_SCALING_POLICIES, has_uuid=True, get_namespace=_target_namespace
    ),
    SearchContext.VARIABLES: SearchTarget(
        VARIABLES,
        permissions.LIST_VARIABLES,
        get_namespace=_own_namespace,
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
        HOST_VOLUMES, permissions.LIST_HOST_VOLUMES, has_uuid=True, get_namespace=_own_namespace
    ),
    SearchContext.QUOTAS: SearchTarget(QUOTAS, permissions.READ_QUOTA),
}


def check_search_context(name: str) -> None:
    """Raises unless there is such a context."""
    if name != ALL_CONTEXTS and name not in tuple(SearchContext):
        raise invalid_request(
            f"context must be one of [{' '.join(SearchContext)}] or 'all' for all contexts; got \"{name}\""
        )


def list_allowed_contexts(name: str, caller: Caller, namespace: str) -> list[SearchContext]:
    """What is searched: what was named, if the caller may; of all, what the caller may."""
    rights = caller.rights
    if name == ALL_CONTEXTS:
        return [context for context in SearchContext if _may(rights, context, namespace)]
    context = SearchContext(name)
    if not _may(rights, context, namespace):
        raise Refusal(RefusalCode.FORBIDDEN, "Permission denied")
    return [context]


def _may(rights: Rights, context: SearchContext, namespace: str) -> bool:
    searched = SEARCH_TARGETS[context]
    if searched.is_visible is not None:
        return rights.satisfies_anywhere(searched.permission)
    return rights.satisfies(searched.permission, namespace=namespace)


def make_visibility_filter(rights: Rights, context: SearchContext, namespace: str) -> Callable[[Any], bool]:
    """Whether a record lies where it is searched, and may be seen."""
    searched = SEARCH_TARGETS[context]
    namespace_of, may_see, needed = searched.get_namespace, searched.is_visible, searched.permission
    known: dict[str, bool] = {}

    def is_seen(record: Any) -> bool:
        if namespace_of is not None:
            place = namespace_of(record)
            if namespace not in (ALL_NAMESPACES, place):
                return False
            if may_see is None:
                if place not in known:
                    known[place] = rights.satisfies(needed, namespace=place)
                return known[place]
        return may_see is None or may_see(rights, record)

    return is_seen
