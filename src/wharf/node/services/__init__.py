"""Health checks and registrations of services: probes services at intervals and derives the status of each check.

The node core decides what follows for the task and for the health of the allocation.
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
