"""RPC handlers for deployments. Only the leader changes their statuses and counts."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wharf.cluster.operations import deployments
from wharf.cluster.operations.deployments import DeploymentWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute


class FailDeploymentRequest(msgspec.Struct, frozen=True):
    """A request to mark a running deployment as failed. `cause`: the id of the HTTP request."""

    deployment_id: str
    versions_kept: int
    """How many job versions are stored; older ones are deleted if a failure reverts the job."""
    cause: str = ""


class PauseDeploymentRequest(msgspec.Struct, frozen=True):
    """A request to pause a deployment, or to resume it if `pause` is false. `cause`: the id of the HTTP request."""

    deployment_id: str
    pause: bool
    cause: str = ""


class PromoteDeploymentRequest(msgspec.Struct, frozen=True):
    """A request to promote the canaries of a deployment. `cause`: the id of the HTTP request."""

    deployment_id: str
    everything: bool
    """Promote all groups; `groups` is ignored then."""
    groups: tuple[str, ...] = ()
    """Names of the groups to promote."""
    cause: str = ""


class UnblockDeploymentRequest(msgspec.Struct, frozen=True):
    """A request to continue a deployment that waits for the deployments of other regions. `cause`: the id of the HTTP request."""

    deployment_id: str
    cause: str = ""


class SetHealthRequest(msgspec.Struct, frozen=True):
    """A request to set the health of allocations of a deployment. `cause`: the id of the HTTP request."""

    deployment_id: str
    healthy: tuple[str, ...]
    """Ids of allocations to mark healthy."""
    unhealthy: tuple[str, ...]
    """Ids of allocations to mark unhealthy. They can fail the deployment."""
    versions_kept: int
    """How many job versions are stored; older ones are deleted if a failure reverts the job."""
    cause: str = ""


FAIL_DEPLOYMENT: Final = RpcMethod("fail-deployment", FailDeploymentRequest, DeploymentWriteResult)
PAUSE_DEPLOYMENT: Final = RpcMethod("pause-deployment", PauseDeploymentRequest, DeploymentWriteResult)
PROMOTE_DEPLOYMENT: Final = RpcMethod("promote-deployment", PromoteDeploymentRequest, DeploymentWriteResult)
UNBLOCK_DEPLOYMENT: Final = RpcMethod("unblock-deployment", UnblockDeploymentRequest, DeploymentWriteResult)
MAX_ALLOCATIONS_ON_LOOP: Final = 500
"""The health of more allocations is decided off the event loop: to check 10,000 takes 10 ms for each write."""
SET_ALLOCATION_HEALTH: Final = RpcMethod("set-health", SetHealthRequest, DeploymentWriteResult)


class DeploymentHandlers:
    """Handles the calls of other servers and processes that concern deployments."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def fail_deployment(self, request: FailDeploymentRequest) -> DeploymentWriteResult:
        """Mark the deployment as failed, which may revert its job to the last stable version."""
        return await self._brain.execute(
            lambda snapshot, context: deployments.fail_deployment(
                snapshot, request.deployment_id, context, max_versions=request.versions_kept, cause=request.cause
            )
        )

    async def pause_deployment(self, request: PauseDeploymentRequest) -> DeploymentWriteResult:
        """Pause the deployment, or resume it if the request says so."""
        change = deployments.pause_deployment if request.pause else deployments.resume_deployment
        return await self._brain.execute(
            lambda snapshot, context: change(snapshot, request.deployment_id, context, cause=request.cause)
        )

    async def promote_deployment(self, request: PromoteDeploymentRequest) -> DeploymentWriteResult:
        """Promote the requested canaries, in as many writes as needed. Return the result of the last write."""
        return await _until_done(
            lambda: self._brain.execute(
                lambda snapshot, context: deployments.promote_deployment(
                    snapshot,
                    request.deployment_id,
                    context,
                    should_promote_all=request.everything,
                    groups=request.groups,
                    max_changes=self._brain.max_changes,
                    cause=request.cause,
                )
            )
        )

    async def unblock_deployment(self, request: UnblockDeploymentRequest) -> DeploymentWriteResult:
        """Continue a deployment that waits for the deployments of other regions."""
        return await self._brain.execute(
            lambda snapshot, context: deployments.unblock_deployment(
                snapshot, request.deployment_id, context, cause=request.cause
            )
        )

    async def set_health(self, request: SetHealthRequest) -> DeploymentWriteResult:
        """Set the health of the requested allocations, in as many writes as needed.

        Return the result of the last write.
        """
        is_long = len(request.healthy) + len(request.unhealthy) > MAX_ALLOCATIONS_ON_LOOP
        return await _until_done(
            lambda: self._brain.execute(
                lambda snapshot, context: deployments.set_allocation_health(
                    snapshot,
                    request.deployment_id,
                    context,
                    healthy=request.healthy,
                    unhealthy=request.unhealthy,
                    max_changes=self._brain.max_changes,
                    max_versions=request.versions_kept,
                    cause=request.cause,
                ),
                is_long=is_long,
            )
        )


async def _until_done(step: Callable[[], Awaitable[DeploymentWriteResult]]) -> DeploymentWriteResult:
    """Repeat a step, which makes one write, until its result is marked done. Return the last result."""
    result = await step()
    while not result.is_done:
        result = await step()
    return result


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of deployments with their handlers."""
    handlers = DeploymentHandlers(brain)
    return (
        (FAIL_DEPLOYMENT, handlers.fail_deployment),
        (PAUSE_DEPLOYMENT, handlers.pause_deployment),
        (PROMOTE_DEPLOYMENT, handlers.promote_deployment),
        (UNBLOCK_DEPLOYMENT, handlers.unblock_deployment),
        (SET_ALLOCATION_HEALTH, handlers.set_health),
    )
