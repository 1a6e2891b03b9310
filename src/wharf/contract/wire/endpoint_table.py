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
    flows,
    identities,
    keyring,
    limits,
    namespaces,
    node_pools,
    operator,
    quotas,
    scaling,
    search,
    services,
    unsupported,
    usage,
    variables,
    volumes,
)  # fmt: skip
from wharf.contract.wire.allocations import endpoints as allocations
from wharf.contract.wire.endpoint import Endpoint, EndpointKind, ListFeatures, Parameter, ParameterKind, ScopeSource
from wharf.contract.wire.jobs import endpoints as jobs
from wharf.contract.wire.nodes import endpoints as nodes

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *jobs.ROWS, *flows.ROWS, *evaluations.ROWS, *allocations.ROWS, *evaluations.EXPLANATION_ROWS, *deployments.ROWS, *services.ROWS,
    *scaling.ROWS, *search.ROWS, *nodes.ROWS, *nodes.NODE_PROTOCOL_ROWS, *nodes.NODE_IDENTITY_ROWS, *node_pools.ROWS,
    *namespaces.ROWS, *quotas.ROWS, *volumes.ROWS, *allocations.NODE_ANSWERED_ROWS, *operator.SYSTEM_ROWS, *events.ROWS,
    *acl.ROWS, *identities.ROWS, *variables.ROWS, *keyring.ROWS, *agents.ROWS, *agents.MEMBER_ROWS, *agents.STATUS_ROWS,
    *operator.ROWS, *agents.METRICS_ROWS, *usage.ROWS, *limits.ROWS, *agents.REGION_ROWS, *agents.DOCUMENT_ROWS, *unsupported.ROWS,
)  # fmt: skip
"""All endpoints, in the order of routing and of the OpenAPI document."""

ENDPOINT_BY_NAME: Final = {endpoint.name: endpoint for endpoint in ENDPOINTS}

REPEATABLE_WRITES: Final = frozenset({
    "job.parse", "job.validate", "job.plan", "search.prefix", "search.fuzzy", "acl.oidc.auth-url",
    "node.register", "node.heartbeat", "node.report", "node.fetch", "node.leave", "node.identities", "node.own_identity",
})  # fmt: skip
"""Endpoints other than GET that may be called twice, whatever the result of the first call."""
WRITES_WITHOUT_STORED_REPLY: Final = frozenset({"acl.bootstrap", "acl.token.exchange"})
"""Writes whose reply has a secret that must have effect only once. A bootstrap has an empty body, so a stored reply would give
the secret to everybody who guesses the key. A one-time token that was exchanged must be worthless."""


def takes_idempotency_key(endpoint: Endpoint) -> bool:
    """Return whether a request of the endpoint can have an idempotency key, with which it may be repeated."""
    return (
        endpoint.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE)
        and endpoint.name not in REPEATABLE_WRITES
        and endpoint.name not in WRITES_WITHOUT_STORED_REPLY
    )


__all__ = [
    "ENDPOINTS", "ENDPOINT_BY_NAME", "REPEATABLE_WRITES", "WRITES_WITHOUT_STORED_REPLY", "Endpoint", "EndpointKind",
    "ListFeatures", "Parameter", "ParameterKind", "ScopeSource", "takes_idempotency_key",
]  # fmt: skip
