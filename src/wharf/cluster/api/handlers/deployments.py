"""Endpoints of deployments: reads, and decisions of operators such as promotion, which the leader makes."""

from functools import partial
from typing import Final

from wharf.cluster.api.handlers.allocations.records import build_allocation_stub
from wharf.cluster.api.index_lists import build_index_list
from wharf.cluster.api.lists.listing import Listing, list_by_creation
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_uuid
from wharf.cluster.api.results import (
    ActionHandler,
    ActionResult,
    MissingRecord,
    ReadHandler,
    find_record,
    require_record,
)
from wharf.cluster.operations.deployments import DeploymentWriteResult
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.deployments import (
    FAIL_DEPLOYMENT,
    PAUSE_DEPLOYMENT,
    PROMOTE_DEPLOYMENT,
    SET_ALLOCATION_HEALTH,
    UNBLOCK_DEPLOYMENT,
    FailDeploymentRequest,
    PauseDeploymentRequest,
    PromoteDeploymentRequest,
    SetHealthRequest,
    UnblockDeploymentRequest,
)
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, DEPLOYMENTS
from wharf.cluster.state.watches import watch_index, watch_key
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.deployments import (
    DeploymentHealthRequest,
    DeploymentPauseRequest,
    DeploymentPromoteRequest,
    DeploymentUnblockRequest,
    DeploymentUpdateResponse,
)

PREFIX_ERROR_PREFIX: Final = "index error: "
LOOKUP_ERROR_PREFIX: Final = "deployment lookup failed: index error: "
MAX_HEALTH_IDS: Final = 10_000
"""Limits the work of one request: the number of allocations whose health it sets."""


def list_deployments(replica: Replica, _request: Request, options: QueryOptions) -> Listing[Deployment]:
    return list_by_creation(
        replica, DEPLOYMENTS, options, error_prefix=PREFIX_ERROR_PREFIX, cache_name="deployment.list"
    )


def read_deployment(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the deployment of the path, or a missing record.

    Raises `Refusal` if the caller may not read its namespace.
    """
    deployment_id = _parse_deployment_id(request)
    deployment, index, watched = find_record(replica, DEPLOYMENTS, deployment_id, missing_text="deployment not found")
    if not isinstance(deployment, MissingRecord):
        request.require_permission(namespace=deployment.namespace)
    return ReadResult(deployment, index, watched)


def list_deployment_allocations(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """List the allocations that the deployment placed, oldest first."""
    deployment_id = _parse_deployment_id(request)
    index = replica.get_last_change(ALLOCATIONS)
    deployment = replica.get(DEPLOYMENTS, deployment_id)
    if deployment is None:
        return ReadResult([], index, [watch_key(DEPLOYMENTS, deployment_id)])
    request.require_permission(namespace=deployment.namespace)
    key = (deployment.namespace, deployment.job_id)
    stubs = build_index_list(
        replica,
        ALLOCATIONS_OF_JOB,
        *key,
        is_selected=lambda each: each.deployment_id == deployment_id,
        build_view=partial(build_allocation_stub, replica),
        is_view_small=True,
    )
    return ReadResult(stubs, index, [watch_index(ALLOCATIONS_OF_JOB, *key)])


def _parse_deployment_id(request: Request) -> str:
    return parse_uuid(request.get_path_value("deployment_id"), error_prefix=LOOKUP_ERROR_PREFIX)


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "deployment.list": list_deployments,
    "deployment.read": read_deployment,
    "deployment.allocations": list_deployment_allocations,
}


class DeploymentActions:
    """Changes deployments on request. The leader decides all changes."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def fail_deployment(self, request: Request) -> ActionResult:
        """Mark the deployment as failed, which may revert its job to the last stable version."""
        deployment_id = await self._require_deployment(request)
        versions_kept = self._server.job_settings.versions_kept
        failure = FailDeploymentRequest(deployment_id, versions_kept, cause=request.id)
        return _build_result(await self._server.leader.call(FAIL_DEPLOYMENT, failure))

    async def pause_deployment(self, request: Request) -> ActionResult:
        """Pause the deployment, or resume it if the body says so."""
        body = request.decode_body(DeploymentPauseRequest)
        deployment_id = await self._require_deployment(request, body.deployment_id)
        pause = PauseDeploymentRequest(deployment_id, body.pause, cause=request.id)
        return _build_result(await self._server.leader.call(PAUSE_DEPLOYMENT, pause))

    async def promote_deployment(self, request: Request) -> ActionResult:
        """Promote the canaries of all groups or of those in the body."""
        body = request.decode_body(DeploymentPromoteRequest)
        deployment_id = await self._require_deployment(request, body.deployment_id)
        promotion = PromoteDeploymentRequest(deployment_id, body.all, body.groups or (), cause=request.id)
        return _build_result(await self._server.leader.call(PROMOTE_DEPLOYMENT, promotion))

    async def unblock_deployment(self, request: Request) -> ActionResult:
        """Continue a deployment that waits for the deployments of other regions."""
        body = request.decode_body(DeploymentUnblockRequest)
        deployment_id = await self._require_deployment(request, body.deployment_id)
        unblocking = UnblockDeploymentRequest(deployment_id, cause=request.id)
        return _build_result(await self._server.leader.call(UNBLOCK_DEPLOYMENT, unblocking))

    async def set_allocation_health(self, request: Request) -> ActionResult:
        """Set the health of the allocations in the body. An unhealthy allocation can fail the deployment."""
        body = request.decode_body(DeploymentHealthRequest)
        deployment_id = await self._require_deployment(request, body.deployment_id)
        healthy, unhealthy = body.healthy_allocation_ids or (), body.unhealthy_allocation_ids or ()
        if len(healthy) + len(unhealthy) > MAX_HEALTH_IDS:
            raise invalid_request(
                f"too many ids: {len(healthy) + len(unhealthy)}; send up to {MAX_HEALTH_IDS} at a time"
            )
        versions_kept = self._server.job_settings.versions_kept
        health = SetHealthRequest(deployment_id, healthy, unhealthy, versions_kept, cause=request.id)
        return _build_result(await self._server.leader.call(SET_ALLOCATION_HEALTH, health))

    async def _require_deployment(self, request: Request, body_id: str | None = None) -> str:
        """Return the deployment id of the path.

        Raises `Refusal` if the body has another id, the deployment does not exist or the caller lacks access.
        """
        deployment_id = _parse_deployment_id(request)
        if body_id == "":
            raise invalid_request("DeploymentID must be specified")
        if body_id is not None and body_id != request.get_path_value("deployment_id"):
            raise invalid_request("Deployment ID does not match")
        deployment = await require_record(
            self._server, DEPLOYMENTS, deployment_id, not_found_text="deployment not found"
        )
        request.require_permission(namespace=deployment.namespace)
        return deployment_id


def _build_result(result: DeploymentWriteResult) -> ActionResult:
    """Return the reply to a change of a deployment: its indexes and the evaluation that was created."""
    reply = DeploymentUpdateResponse(
        eval_id=result.eval_id,
        eval_create_index=result.eval_create_index,
        deployment_modify_index=result.deployment_modify_index,
        reverted_job_version=result.reverted_job_version,
        index=result.index,
    )
    return ActionResult(reply, result.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = DeploymentActions(server)
    return {
        "deployment.fail": actions.fail_deployment,
        "deployment.pause": actions.pause_deployment,
        "deployment.promote": actions.promote_deployment,
        "deployment.unblock": actions.unblock_deployment,
        "deployment.health": actions.set_allocation_health,
    }
