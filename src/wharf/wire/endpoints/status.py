"""Endpoints that tell who leads and who is there."""

from typing import Final

from wharf.model import need
from wharf.wire.endpoints.endpoint import Endpoint, tells

ROWS: Final[tuple[Endpoint, ...]] = (
    tells("status.leader", "/v1/status/leader", need=need.NOTHING, summary="The address of the leader.", returns=str),
    tells(
        "status.peers",
        "/v1/status/peers",
        need=need.NOTHING,
        summary="The addresses of all servers.",
        returns=list[str],
    ),
)
