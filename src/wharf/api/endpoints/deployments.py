"""Endpoints of deployments."""

from typing import Final

from wharf.api.answers import Act, Done, Missing, Reading, by_creation, one
from wharf.api.endpoints.allocations import allocation_stub
from wharf.api.finding import found_or_unknown
from wharf.api.ids import read_id
from wharf.api.listing import Listing, by_creation_or_prefix
from wharf.api.request import ReadOptions, Request
from wharf.model.deployment import Deployment
from wharf.model.refusal import invalid
from wharf.operations.deployments import DeploymentWritten
from wharf.server.answering.deployments import (
    FAIL_DEPLOYMENT,
    PAUSE_DEPLOYMENT,
    PROMOTE_DEPLOYMENT,
    SET_HEALTH,
    UNBLOCK_DEPLOYMENT,
    AllocationHealth,
    DeploymentToFail,
    DeploymentToPause,
    DeploymentToPromote,
    DeploymentToUnblock,
)
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, DEPLOYMENTS
from wharf.wire.work_shapes import (
    DeploymentHealthRequest,
    DeploymentPauseRequest,
    DeploymentPromoteRequest,
    DeploymentUnblockRequest,
    DeploymentUpdateResponse,
)

PREFIX_FAILED: Final = "index error: "
LOOKUP_FAILED: Final = "deployment lookup failed: index error: "
HEALTH_IDS_MAX: Final = 10_000


def deployment_list(replica: Replica, _request: Request, options: ReadOptions) -> Listing[Deployment]:
    return by_creation_or_prefix(replica, DEPLOYMENTS, options, where=PREFIX_FAILED, form="deployment.list")


def deployment_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    found, index, watched = one(replica, DEPLOYMENTS, _id_of(request), missing="deployment not found")
    if not isinstance(found, Missing):
        request.require(namespace=found.namespace)
    return Found(found, index, watched)


def deployment_allocations(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    deployment_id = _id_of(request)
    index = replica.last_change(ALLOCATIONS)
    deployment = replica.get(DEPLOYMENTS, deployment_id)
    if deployment is None:
        return Found([], index, [watch.one(DEPLOYMENTS, deployment_id)])
    request.require(namespace=deployment.namespace)
    key = (deployment.namespace, deployment.job_id)
    placed = (each for each in replica.those(ALLOCATIONS_OF_JOB, *key) if each.deployment_id == deployment_id)
    stubs = [allocation_stub(replica, allocation) for allocation in by_creation(placed)]
    return Found(stubs, index, [watch.those(ALLOCATIONS_OF_JOB, *key)])


def _id_of(request: Request) -> str:
    return read_id(request.value("deployment_id"), where=LOOKUP_FAILED)


READS: Final[dict[str, Reading]] = {
    "deployment.list": deployment_list,
    "deployment.read": deployment_read,
    "deployment.allocations": deployment_allocations,
}


class DeploymentActs:
    """What is asked of the leader."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def fail(self, request: Request) -> Done:
        deployment_id = await self._about(request)
        kept = self._server.job_settings.versions_kept
        wanted = DeploymentToFail(deployment_id, kept, cause=request.id)
        return _told(await self._server.leader.ask(FAIL_DEPLOYMENT, wanted))

    async def pause(self, request: Request) -> Done:
        asked = request.read_body(DeploymentPauseRequest)
        deployment_id = await self._about(request, asked.deployment_id)
        wanted = DeploymentToPause(deployment_id, asked.pause, cause=request.id)
        return _told(await self._server.leader.ask(PAUSE_DEPLOYMENT, wanted))

    async def promote(self, request: Request) -> Done:
        asked = request.read_body(DeploymentPromoteRequest)
        deployment_id = await self._about(request, asked.deployment_id)
        wanted = DeploymentToPromote(deployment_id, asked.all, asked.groups or (), cause=request.id)
        return _told(await self._server.leader.ask(PROMOTE_DEPLOYMENT, wanted))

    async def unblock(self, request: Request) -> Done:
        asked = request.read_body(DeploymentUnblockRequest)
        deployment_id = await self._about(request, asked.deployment_id)
        wanted = DeploymentToUnblock(deployment_id, cause=request.id)
        return _told(await self._server.leader.ask(UNBLOCK_DEPLOYMENT, wanted))

    async def health(self, request: Request) -> Done:
        asked = request.read_body(DeploymentHealthRequest)
        deployment_id = await self._about(request, asked.deployment_id)
        healthy, unhealthy = asked.healthy_allocation_ids or (), asked.unhealthy_allocation_ids or ()
        if len(healthy) + len(unhealthy) > HEALTH_IDS_MAX:
            raise invalid(f"{len(healthy) + len(unhealthy)} ids are too many; say it of {HEALTH_IDS_MAX} at a time")
        kept = self._server.job_settings.versions_kept
        told = AllocationHealth(deployment_id, healthy, unhealthy, kept, cause=request.id)
        return _told(await self._server.leader.ask(SET_HEALTH, told))

    async def _about(self, request: Request, said: str | None = None) -> str:
        """The deployment of the path, if the body (where it must) says the same and the caller may write it."""
        deployment_id = _id_of(request)
        if said == "":
            raise invalid("DeploymentID must be specified")
        if said is not None and said != request.value("deployment_id"):
            raise invalid("Deployment ID does not match")
        deployment = await found_or_unknown(
            self._server, DEPLOYMENTS, deployment_id, unknown_text="deployment not found"
        )
        request.require(namespace=deployment.namespace)
        return deployment_id


def _told(written: DeploymentWritten) -> Done:
    reply = DeploymentUpdateResponse(
        eval_id=written.eval_id,
        eval_create_index=written.eval_create_index,
        deployment_modify_index=written.deployment_modify_index,
        reverted_job_version=written.reverted_job_version,
        index=written.index,
    )
    return Done(reply, written.index)


def acts_of(server: Server) -> dict[str, Act]:
    acts = DeploymentActs(server)
    return {
        "deployment.fail": acts.fail,
        "deployment.pause": acts.pause,
        "deployment.promote": acts.promote,
        "deployment.unblock": acts.unblock,
        "deployment.health": acts.health,
    }
