"""Endpoints of deployments."""

from typing import Final

from wharf.cluster.api.handlers.allocations.records import build_allocation_stub
from wharf.cluster.api.lists.listing import Listing, list_by_creation
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.requests.values import parse_uuid
from wharf.cluster.api.results import (
    ActionHandler,
    ActionResult,
    MissingRecord,
    ReadHandler,
    find_record,
    require_record,
    sort_by_creation,
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
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, DEPLOYMENTS
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


def list_deployments(replica: Replica, _request: Request, options: QueryOptions) -> Listing[Deployment]:
    return list_by_creation(
        replica, DEPLOYMENTS, options, error_prefix=PREFIX_ERROR_PREFIX, cache_name="deployment.list"
    )


def read_deployment(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    found, index, watched = find_record(replica, DEPLOYMENTS, _id_of(request), missing_text="deployment not found")
    if not isinstance(found, MissingRecord):
        request.require_permission(namespace=found.namespace)
    return ReadResult(found, index, watched)


def list_deployment_allocations(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    deployment_id = _id_of(request)
    index = replica.get_last_change(ALLOCATIONS)
    deployment = replica.get(DEPLOYMENTS, deployment_id)
    if deployment is None:
        return ReadResult([], index, [watch.watch_key(DEPLOYMENTS, deployment_id)])
    request.require_permission(namespace=deployment.namespace)
    key = (deployment.namespace, deployment.job_id)
    placed = (each for each in replica.list_by_index(ALLOCATIONS_OF_JOB, *key) if each.deployment_id == deployment_id)
    stubs = [build_allocation_stub(replica, allocation) for allocation in sort_by_creation(placed)]
    return ReadResult(stubs, index, [watch.watch_index(ALLOCATIONS_OF_JOB, *key)])


def _id_of(request: Request) -> str:
    return parse_uuid(request.get_path_value("deployment_id"), error_prefix=LOOKUP_ERROR_PREFIX)


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "deployment.list": list_deployments,
    "deployment.read": read_deployment,
    "deployment.allocations": list_deployment_allocations,
}


class DeploymentActions:
    """What is asked of the leader."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def fail_deployment(self, request: Request) -> ActionResult:
        deployment_id = await self._about(request)
        kept = self._server.job_settings.versions_kept
        wanted = FailDeploymentRequest(deployment_id, kept, cause=request.id)
        return _told(await self._server.leader.call(FAIL_DEPLOYMENT, wanted))

    async def pause_deployment(self, request: Request) -> ActionResult:
        asked = request.decode_body(DeploymentPauseRequest)
        deployment_id = await self._about(request, asked.deployment_id)
        wanted = PauseDeploymentRequest(deployment_id, asked.pause, cause=request.id)
        return _told(await self._server.leader.call(PAUSE_DEPLOYMENT, wanted))

    async def promote_deployment(self, request: Request) -> ActionResult:
        asked = request.decode_body(DeploymentPromoteRequest)
        deployment_id = await self._about(request, asked.deployment_id)
        wanted = PromoteDeploymentRequest(deployment_id, asked.all, asked.groups or (), cause=request.id)
        return _told(await self._server.leader.call(PROMOTE_DEPLOYMENT, wanted))

    async def unblock_deployment(self, request: Request) -> ActionResult:
        asked = request.decode_body(DeploymentUnblockRequest)
        deployment_id = await self._about(request, asked.deployment_id)
        wanted = UnblockDeploymentRequest(deployment_id, cause=request.id)
        return _told(await self._server.leader.call(UNBLOCK_DEPLOYMENT, wanted))

    async def set_allocation_health(self, request: Request) -> ActionResult:
        asked = request.decode_body(DeploymentHealthRequest)
        deployment_id = await self._about(request, asked.deployment_id)
        healthy, unhealthy = asked.healthy_allocation_ids or (), asked.unhealthy_allocation_ids or ()
        if len(healthy) + len(unhealthy) > MAX_HEALTH_IDS:
            raise invalid_request(
                f"{len(healthy) + len(unhealthy)} ids are too many; say it of {MAX_HEALTH_IDS} at a time"
            )
        kept = self._server.job_settings.versions_kept
        told = SetHealthRequest(deployment_id, healthy, unhealthy, kept, cause=request.id)
        return _told(await self._server.leader.call(SET_ALLOCATION_HEALTH, told))

    async def _about(self, request: Request, said: str | None = None) -> str:
        """The deployment of the path, if the body (where it must) says the same and the caller may write it."""
        deployment_id = _id_of(request)
        if said == "":
            raise invalid_request("DeploymentID must be specified")
        if said is not None and said != request.get_path_value("deployment_id"):
            raise invalid_request("Deployment ID does not match")
        deployment = await require_record(
            self._server, DEPLOYMENTS, deployment_id, not_found_text="deployment not found"
        )
        request.require_permission(namespace=deployment.namespace)
        return deployment_id


def _told(written: DeploymentWriteResult) -> ActionResult:
    reply = DeploymentUpdateResponse(
        eval_id=written.eval_id,
        eval_create_index=written.eval_create_index,
        deployment_modify_index=written.deployment_modify_index,
        reverted_job_version=written.reverted_job_version,
        index=written.index,
    )
    return ActionResult(reply, written.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    acts = DeploymentActions(server)
    return {
        "deployment.fail": acts.fail_deployment,
        "deployment.pause": acts.pause_deployment,
        "deployment.promote": acts.promote_deployment,
        "deployment.unblock": acts.unblock_deployment,
        "deployment.health": acts.set_allocation_health,
    }
