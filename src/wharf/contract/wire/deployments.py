"""Endpoints of deployments."""

from typing import Any, Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.permissions import Permission
from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, ScopeSource, define_leader_write, define_read


class DeploymentPauseRequest(Record):
    deployment_id: str = ""
    pause: bool = False


class DeploymentPromoteRequest(Record):
    """`all`: every group with canaries; `groups` is then passed over."""

    deployment_id: str = ""
    all: bool = False
    groups: tuple[str, ...] | None = None


class DeploymentUnblockRequest(Record):
    deployment_id: str = ""


class DeploymentFailRequest(Record):
    """May be left out, and says nothing that counts."""

    deployment_id: str = ""


class DeploymentHealthRequest(Record):
    deployment_id: str = ""
    healthy_allocation_ids: tuple[str, ...] | None = msgspec.field(name="HealthyAllocationIDs", default=None)
    unhealthy_allocation_ids: tuple[str, ...] | None = msgspec.field(name="UnhealthyAllocationIDs", default=None)


class DeploymentUpdateResponse(Record):
    eval_id: str = ""
    eval_create_index: int = 0
    deployment_modify_index: int = 0
    reverted_job_version: int | None = None
    index: int = 0


def _steers(name: str, path: str, needed: Permission, summary: str, body: type, **more: Any) -> Endpoint:
    """A write that the leader decides, about the deployment at the end of the path."""
    return define_leader_write(
        f"deployment.{name}", f"/v1/deployment/{path}/{{deployment_id}}", need=needed, scope_source=ScopeSource.OBJECT,
        summary=summary, body_type=body, reply_type=DeploymentUpdateResponse, **more,
    )  # fmt: skip


ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "deployment.list", "/v1/deployments", need=permissions.READ_JOB, summary="List deployments.",
        list_features=ListFeatures(record=Deployment), reply_type=list[Deployment],
    ),
    define_read(
        "deployment.read", "/v1/deployment/{deployment_id}", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read a deployment.", reply_type=Deployment,
    ),
    define_read(
        "deployment.allocations", "/v1/deployment/allocations/{deployment_id}", need=permissions.READ_JOB,
        scope_source=ScopeSource.OBJECT, summary="List the allocations of a deployment.", reply_type=list[AllocationStub],
    ),
    _steers(
        "fail", "fail", permissions.FAIL_DEPLOYMENT,
        "Fail a deployment; the job goes back to its stable version where it reverts by itself.",
        DeploymentFailRequest, is_body_optional=True,
    ),
    _steers("pause", "pause", permissions.PAUSE_DEPLOYMENT, "Pause a deployment, or resume it.", DeploymentPauseRequest),
    _steers(
        "promote", "promote", permissions.PROMOTE_DEPLOYMENT, "Let canaries take over, of all groups or of some.",
        DeploymentPromoteRequest,
    ),
    _steers(
        "unblock", "unblock", permissions.UNBLOCK_DEPLOYMENT, "Let a job's deployments in other regions go on.",
        DeploymentUnblockRequest,
    ),
    _steers(
        "health", "allocation-health", permissions.SET_ALLOCATION_HEALTH, "Say which allocations of a deployment are healthy.",
        DeploymentHealthRequest,
    ),
)  # fmt: skip
