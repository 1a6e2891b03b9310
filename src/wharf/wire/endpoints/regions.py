"""Endpoints of regions."""

from typing import Final

from wharf.model import need
from wharf.wire.endpoints.endpoint import Endpoint, tells

ROWS: Final[tuple[Endpoint, ...]] = (
    tells(
        "region.list", "/v1/regions", need=need.NOTHING, returns=list[str],
        summary="The names of all regions that this server passes requests on to, its own included.",
    ),
)  # fmt: skip
