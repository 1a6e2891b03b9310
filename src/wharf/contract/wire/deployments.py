"""Endpoints and messages of deployments."""

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
    """Promotes all groups with canaries if `all` is set, and otherwise those in `groups`."""

    deployment_id: str = ""
    all: bool = False
    groups: tuple[str, ...] | None = None


class DeploymentUnblockRequest(Record):
    deployment_id: str = ""


class DeploymentFailRequest(Record):
    """An optional body; its fields are ignored."""

    deployment_id: str = ""


class DeploymentHealthRequest(Record):
    deployment_id: str = ""
    healthy_allocation_ids: tuple[str, ...] | None = msgspec.field(name="HealthyAllocationIDs", default=None)
    unhealthy_allocation_ids: tuple[str, ...] | None = msgspec.field(name="UnhealthyAllocationIDs", default=None)


class DeploymentUpdateResponse(Record):
    """The reply to a change of a deployment, with the evaluation that it created."""

    eval_id: str = ""
    eval_create_index: int = 0
    deployment_modify_index: int = 0
    reverted_job_version: int | None = None
    index: int = 0


def _define_deployment_write(
    name: str, path: str, permission: Permission, summary: str, body: type, **fields: Any
) -> Endpoint:
    """Define a leader write on the deployment whose ID ends the path."""
    return define_leader_write(
        f"deployment.{name}", f"/v1/deployment/{path}/{{deployment_id}}", need=permission, scope_source=ScopeSource.OBJECT,
        summary=summary, body_type=body, reply_type=DeploymentUpdateResponse, **fields,
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
    _define_deployment_write(
        "fail", "fail", permissions.FAIL_DEPLOYMENT,
        "Fail a deployment. If auto-revert is on, the job returns to its last stable version.",
        DeploymentFailRequest, is_body_optional=True,
    ),
    _define_deployment_write("pause", "pause", permissions.PAUSE_DEPLOYMENT, "Pause a deployment, or resume it.", DeploymentPauseRequest),
    _define_deployment_write(
        "promote", "promote", permissions.PROMOTE_DEPLOYMENT, "Promote the canaries of all groups or of some.",
        DeploymentPromoteRequest,
    ),
    _define_deployment_write(
        "unblock", "unblock", permissions.UNBLOCK_DEPLOYMENT, "Unblock a deployment that waits for other regions.",
        DeploymentUnblockRequest,
    ),
    _define_deployment_write(
        "health", "allocation-health", permissions.SET_ALLOCATION_HEALTH, "Set the health of allocations in a deployment.",
        DeploymentHealthRequest,
    ),
)  # fmt: skip
