"""The endpoint table: every route of the HTTP API, declared once, one module a noun.

Routing, reading of parameters and bodies, rights, blocking, paging, the client and the OpenAPI document derive from it.
"""

from typing import Final

from wharf.wire.endpoints import (
    acl,
    agent,
    allocations,
    client_agents,
    deployments,
    documents,
    evaluations,
    events,
    explanations,
    host_volumes,
    identities,
    jobs,
    keyring,
    left_out,
    members,
    metrics,
    namespaces,
    node_agents,
    node_identities,
    node_pools,
    nodes,
    operator,
    quotas,
    regions,
    scaling,
    search,
    services,
    status,
    system,
    variables,
)
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Kind, Lists, Parameter, ParameterKind

NOUNS: Final = (
    jobs, evaluations, allocations, explanations, deployments, services, scaling, search, nodes, node_agents, node_identities,
    node_pools, namespaces, quotas, host_volumes, client_agents, system, events, acl, identities, variables, keyring,
    agent, members, status, operator, metrics, regions, documents, left_out,
)  # fmt: skip
"""In the order of the documents. All but the last have a room of the same name in `wharf.api`."""

ENDPOINTS: Final[tuple[Endpoint, ...]] = tuple(row for noun in NOUNS for row in noun.ROWS)

BY_NAME: Final = {endpoint.name: endpoint for endpoint in ENDPOINTS}

__all__ = ["BY_NAME", "ENDPOINTS", "NOUNS", "Decides", "Endpoint", "Kind", "Lists", "Parameter", "ParameterKind"]
