"""The endpoint that reports the use of the cluster."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.usage import ClusterUsage
from wharf.contract.wire.endpoint import Endpoint, define_read, integer, text

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "cluster.usage", "/v1/usage", need=permissions.READ_NODE, reply_type=ClusterUsage,
        summary="Report the fullest nodes, the largest jobs that the caller can list, and what waits for capacity.",
        parameters=(
            text("order", "How nodes and jobs are sorted: `cpu` (default), `memory`, `allocations` or `name`."),
            integer("limit", "How many nodes, jobs and waiting jobs the reply lists; 50 by default, at most 500."),
        ),
    ),
)  # fmt: skip
