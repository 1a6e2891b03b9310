"""Whether services are well: they are asked at intervals, and what they answer is judged.

Responsible for asking (http, tcp, grpc, a script in the task) and for what a row of answers means. What follows from it,
a restart or the health of an allocation, is decided by the core of the node.
"""

from wharf.node.services.checks import (
    CheckSpec,
    CheckState,
    CheckStatus,
    ProbeResult,
    apply_probe_result,
    should_restart,
)
from wharf.node.services.probes import probe_service

__all__ = [
    "CheckSpec",
    "CheckState",
    "CheckStatus",
    "ProbeResult",
    "apply_probe_result",
    "probe_service",
    "should_restart",
]
