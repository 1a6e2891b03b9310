"""Endpoints that make the cluster tidy up at once."""

from typing import Final

from wharf.model import need
from wharf.wire.endpoints.endpoint import Endpoint, asks

ROWS: Final[tuple[Endpoint, ...]] = (
    asks(
        "system.gc", "/v1/system/gc", put_only=True, need=need.MANAGEMENT,
        summary="Collect whatever is over, regardless of its age.",
    ),
    asks(
        "system.reconcile", "/v1/system/reconcile/summaries", put_only=True, need=need.MANAGEMENT,
        summary="Count the summaries of all jobs anew.",
    ),
)  # fmt: skip
