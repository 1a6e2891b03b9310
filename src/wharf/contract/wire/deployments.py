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
    """A request to pause a deployment, or to resume it."""

    deployment_id: str = ""
    pause: bool = False  # False resumes it.


class DeploymentPromoteRequest(Record):
    """A request to promote the canaries of all groups, or of some."""

    deployment_id: str = ""
    all: bool = False  # Promote all groups that have canaries.
    groups: tuple[str, ...] | None = None  # The groups to promote.


class DeploymentUnblockRequest(Record):
    """A request to unblock a deployment that waits for other regions."""

    deployment_id: str = ""


class DeploymentFailRequest(Record):
    """An optional body of a request to fail a deployment; the path names the deployment."""

    deployment_id: str = ""  # Ignored.


class DeploymentHealthRequest(Record):
    """A request to set the health of allocations of a deployment."""

    deployment_id: str = ""
    healthy_allocation_ids: tuple[str, ...] | None = msgspec.field(name="HealthyAllocationIDs", default=None)
    unhealthy_allocation_ids: tuple[str, ...] | None = msgspec.field(name="UnhealthyAllocationIDs", default=None)


class DeploymentUpdateResponse(Record):
    """The reply to a change of a deployment."""

    eval_id: str = ""  # The evaluation that the change created.
    eval_create_index: int = 0  # Log index of the evaluation.
    deployment_modify_index: int = 0  # Log index of the change.
    reverted_job_version: int | None = None  # The version to which the job was reverted; None: not reverted.
    index: int = 0  # Log index of the write.


def _define_deployment_write(
    name: str, path: str, permission: Permission, summary: str, body_type: type, **fields: Any
) -> Endpoint:
    """Return the endpoint `deployment.{name}`: a write that the leader handles.

    Its URL is `/v1/deployment/{path}/` followed by the ID of the deployment.
    """
    return define_leader_write(
        f"deployment.{name}", f"/v1/deployment/{path}/{{deployment_id}}", need=permission, scope_source=ScopeSource.OBJECT,
        summary=summary, body_type=body_type, reply_type=DeploymentUpdateResponse, **fields,
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
