"""Endpoints of deployments."""

from typing import Any, Final

from wharf.model import need
from wharf.model.allocation import AllocationStub
from wharf.model.deployment import Deployment
from wharf.model.need import Need
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Lists, asks, reads
from wharf.wire.work_shapes import (
    DeploymentFailRequest,
    DeploymentHealthRequest,
    DeploymentPauseRequest,
    DeploymentPromoteRequest,
    DeploymentUnblockRequest,
    DeploymentUpdateResponse,
)


def _steers(name: str, path: str, needed: Need, summary: str, body: type, **more: Any) -> Endpoint:
    """A write that the leader decides, about the deployment at the end of the path."""
    return asks(
        f"deployment.{name}", f"/v1/deployment/{path}/{{deployment_id}}", need=needed, decides=Decides.OBJECT,
        summary=summary, body=body, returns=DeploymentUpdateResponse, **more,
    )  # fmt: skip


ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "deployment.list", "/v1/deployments", need=need.READ_JOB, summary="List deployments.",
        lists=Lists(record=Deployment), returns=list[Deployment],
    ),
    reads(
        "deployment.read", "/v1/deployment/{deployment_id}", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Read a deployment.", returns=Deployment,
    ),
    reads(
        "deployment.allocations", "/v1/deployment/allocations/{deployment_id}", need=need.READ_JOB,
        decides=Decides.OBJECT, summary="List the allocations of a deployment.", returns=list[AllocationStub],
    ),
    _steers(
        "fail", "fail", need.FAIL_DEPLOYMENT,
        "Fail a deployment; the job goes back to its stable version where it reverts by itself.",
        DeploymentFailRequest, body_optional=True,
    ),
    _steers("pause", "pause", need.PAUSE_DEPLOYMENT, "Pause a deployment, or resume it.", DeploymentPauseRequest),
    _steers(
        "promote", "promote", need.PROMOTE_DEPLOYMENT, "Let canaries take over, of all groups or of some.",
        DeploymentPromoteRequest,
    ),
    _steers(
        "unblock", "unblock", need.UNBLOCK_DEPLOYMENT, "Let a job's deployments in other regions go on.",
        DeploymentUnblockRequest,
    ),
    _steers(
        "health", "allocation-health", need.SET_HEALTH, "Say which allocations of a deployment are healthy.",
        DeploymentHealthRequest,
    ),
)  # fmt: skip
