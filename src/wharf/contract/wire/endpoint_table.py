"""The endpoint table: every endpoint of the HTTP API, declared once in the module of its noun.

Routing, decoding of parameters and bodies, access control, blocking queries, paging, the client and the OpenAPI document are
all derived from this table.
"""

from typing import Final

from wharf.contract.wire import (
    acl,
    agents,
    deployments,
    evaluations,
    events,
    identities,
    keyring,
    namespaces,
    node_pools,
    operator,
    quotas,
    scaling,
    search,
    services,
    unsupported,
    variables,
    volumes,
)  # fmt: skip
from wharf.contract.wire.allocations import endpoints as allocations
from wharf.contract.wire.endpoint import Endpoint, EndpointKind, ListFeatures, Parameter, ParameterKind, ScopeSource
from wharf.contract.wire.jobs import endpoints as jobs
from wharf.contract.wire.nodes import endpoints as nodes

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *jobs.ROWS, *evaluations.ROWS, *allocations.ROWS, *evaluations.EXPLANATION_ROWS, *deployments.ROWS, *services.ROWS,
    *scaling.ROWS, *search.ROWS, *nodes.ROWS, *nodes.NODE_PROTOCOL_ROWS, *nodes.NODE_IDENTITY_ROWS, *node_pools.ROWS,
    *namespaces.ROWS, *quotas.ROWS, *volumes.ROWS, *allocations.NODE_ANSWERED_ROWS, *operator.SYSTEM_ROWS, *events.ROWS,
    *acl.ROWS, *identities.ROWS, *variables.ROWS, *keyring.ROWS, *agents.ROWS, *agents.MEMBER_ROWS, *agents.STATUS_ROWS,
    *operator.ROWS, *agents.METRICS_ROWS, *agents.REGION_ROWS, *agents.DOCUMENT_ROWS, *unsupported.ROWS,
)  # fmt: skip
"""All endpoints, in the order of routing and of the OpenAPI document."""

ENDPOINT_BY_NAME: Final = {endpoint.name: endpoint for endpoint in ENDPOINTS}

__all__ = [
    "ENDPOINTS", "ENDPOINT_BY_NAME", "Endpoint", "EndpointKind", "ListFeatures", "Parameter", "ParameterKind", "ScopeSource",
]  # fmt: skip
