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
    host_volumes,
    identities,
    jobs,
    keyring,
    left_out,
    members,
    metrics,
    namespaces,
    node_agents,
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

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *jobs.ROWS,
    *evaluations.ROWS,
    *allocations.ROWS,
    *deployments.ROWS,
    *services.ROWS,
    *scaling.ROWS,
    *search.ROWS,
    *nodes.ROWS,
    *node_agents.ROWS,
    *node_pools.ROWS,
    *namespaces.ROWS,
    *quotas.ROWS,
    *host_volumes.ROWS,
    *client_agents.ROWS,
    *system.ROWS,
    *events.ROWS,
    *acl.ROWS,
    *identities.ROWS,
    *variables.ROWS,
    *keyring.ROWS,
    *agent.ROWS,
    *members.ROWS,
    *status.ROWS,
    *operator.ROWS,
    *metrics.ROWS,
    *regions.ROWS,
    *documents.ROWS,
    *left_out.ROWS,
)

BY_NAME: Final = {endpoint.name: endpoint for endpoint in ENDPOINTS}

__all__ = ["BY_NAME", "ENDPOINTS", "Decides", "Endpoint", "Kind", "Lists", "Parameter", "ParameterKind"]
