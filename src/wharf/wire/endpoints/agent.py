"""Endpoints about the agent that answers."""

from typing import Any, Final

from wharf.model import need
from wharf.wire.endpoints.endpoint import Endpoint, tells

ROWS: Final[tuple[Endpoint, ...]] = (
    tells(
        "agent.health",
        "/v1/agent/health",
        need=need.NOTHING,
        summary="Whether this agent is well.",
        returns=dict[str, Any],
    ),
    tells(
        "agent.members", "/v1/agent/members", need=need.READ_NODE, summary="List the servers.", returns=dict[str, Any]
    ),
)
