"""Endpoints for those who run the cluster."""

from typing import Final

from wharf.model import need
from wharf.wire import shapes
from wharf.wire.endpoints.endpoint import Endpoint, tells

ROWS: Final[tuple[Endpoint, ...]] = (
    tells(
        "operator.state", "/v1/operator/state", need=need.READ_OPERATOR,
        summary="How many records each table holds, and how the log is.", returns=shapes.StateSizes,
    ),
)  # fmt: skip
