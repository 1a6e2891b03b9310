"""What can be searched: the kinds of things, where they lie, and who may see which of them."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from wharf.access import Caller, Rights
from wharf.model import need
from wharf.model.capability import PoolCapability, VariableCapability
from wharf.model.need import Need
from wharf.model.refusal import Code, Refusal, invalid
from wharf.state import Table
from wharf.state.tables import (
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

EVERY_NAMESPACE: Final = "*"


class Context(StrEnum):
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


ALL: Final = "all"


class Searched(msgspec.Struct, frozen=True):
    """One kind of thing. `table` None: there is nothing of the kind. `need`: what a caller needs, in the namespace where
    it lies in one. `may_see`: where each record decides by itself."""

    table: Table[Any] | None
    needed: Need
    has_uuid: bool = False
    namespace_of: Callable[[Any], str] | None = None
    may_see: Callable[[Rights, Any], bool] | None = None


def _own_namespace(record: Any) -> str:
    namespace: str = record.namespace
    return namespace


def _target_namespace(policy: Any) -> str:
    namespace: str = (policy.target or {}).get("Namespace", "")
    return namespace


SEARCHED: Final[dict[Context, Searched]] = {
    Context.ALLOCATIONS: Searched(ALLOCATIONS, need.READ_JOB, has_uuid=True, namespace_of=_own_namespace),
    Context.JOBS: Searched(JOBS, need.READ_JOB, namespace_of=_own_namespace),
    Context.NODES: Searched(NODES, need.READ_NODE, has_uuid=True),
    Context.NODE_POOLS: Searched(
        NODE_POOLS, need.READ_POOL, may_see=lambda rights, pool: rights.allows_node_pool(pool.name, PoolCapability.READ)
    ),
    Context.EVALUATIONS: Searched(EVALUATIONS, need.READ_JOB, has_uuid=True, namespace_of=_own_namespace),
    Context.DEPLOYMENTS: Searched(DEPLOYMENTS, need.READ_JOB, has_uuid=True, namespace_of=_own_namespace),
    Context.PLUGINS: Searched(None, need.LIST_PLUGINS),
    Context.VOLUMES: Searched(None, need.LIST_CSI_VOLUMES),
    Context.SCALING_POLICIES: Searched(
        SCALING_POLICIES, need.LIST_SCALING_POLICIES, has_uuid=True, namespace_of=_target_namespace
    ),
    Context.VARIABLES: Searched(
        VARIABLES,
        need.LIST_VARIABLES,
        namespace_of=_own_namespace,
        may_see=lambda rights, variable: rights.allows_variable(
            variable.namespace, variable.path, VariableCapability.LIST
        ),
    ),
    Context.NAMESPACES: Searched(
        NAMESPACES, need.READ_NAMESPACE, may_see=lambda rights, namespace: rights.allows_any_in(namespace.name)
    ),
    Context.HOST_VOLUMES: Searched(HOST_VOLUMES, need.LIST_HOST_VOLUMES, has_uuid=True, namespace_of=_own_namespace),
    Context.QUOTAS: Searched(QUOTAS, need.READ_QUOTA),
}


def check_context(given: str) -> None:
    """Raises unless there is such a context."""
    if given != ALL and given not in tuple(Context):
        raise invalid(f"context must be one of [{' '.join(Context)}] or 'all' for all contexts; got \"{given}\"")


def contexts_for(given: str, caller: Caller, namespace: str) -> list[Context]:
    """What is searched: what was named, if the caller may; of all, what the caller may."""
    rights = caller.rights
    if given == ALL:
        return [context for context in Context if _may(rights, context, namespace)]
    context = Context(given)
    if not _may(rights, context, namespace):
        raise Refusal(Code.FORBIDDEN, "Permission denied")
    return [context]


def _may(rights: Rights, context: Context, namespace: str) -> bool:
    searched = SEARCHED[context]
    if searched.may_see is not None:
        return rights.meet_somewhere(searched.needed)
    return rights.meet(searched.needed, namespace=namespace)


def seen_by(rights: Rights, context: Context, namespace: str) -> Callable[[Any], bool]:
    """Whether a record lies where it is searched, and may be seen."""
    searched = SEARCHED[context]
    namespace_of, may_see, needed = searched.namespace_of, searched.may_see, searched.needed
    known: dict[str, bool] = {}

    def is_seen(record: Any) -> bool:
        if namespace_of is not None:
            place = namespace_of(record)
            if namespace not in (EVERY_NAMESPACE, place):
                return False
            if may_see is None:
                if place not in known:
                    known[place] = rights.meet(needed, namespace=place)
                return known[place]
        return may_see is None or may_see(rights, record)

    return is_seen
