"""Endpoints that describe this API."""

from typing import Any, Final

from wharf.model import need
from wharf.wire.endpoints.endpoint import Endpoint, tells

ROWS: Final[tuple[Endpoint, ...]] = (
    tells(
        "document.openapi", "/v1/openapi.json", need=need.NOTHING, returns=dict[str, Any],
        summary="This API as an OpenAPI 3.1 document.",
    ),
    tells(
        "document.page", "/v1/docs", need=need.NOTHING, returns=str, media="text/html",
        summary="This API as a page to read.",
    ),
)  # fmt: skip
