"""Endpoints of figures."""

from typing import Final

from wharf.model import need
from wharf.wire import agent_shapes
from wharf.wire.endpoints.endpoint import Endpoint, duration, tells, text

ROWS: Final[tuple[Endpoint, ...]] = (
    tells(
        "metrics.read", "/v1/metrics", need=need.NOTHING, returns=agent_shapes.Metrics, refuses=(404, 415),
        summary="Figures of the process that answers and of its server: the last finished interval, or all since the "
        "start for Prometheus.",
        parameters=(
            text("format", "`prometheus` for its text form, where `telemetry.prometheus_metrics` is on."),
            duration("ago", "The interval that had finished so long ago, as long as it is kept."),
        ),
    ),
)  # fmt: skip
