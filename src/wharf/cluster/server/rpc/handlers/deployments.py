"""What the leader answers about deployments: it alone moves their statuses and counts."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wharf.cluster.operations import deployments
from wharf.cluster.operations.deployments import DeploymentWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute


class FailDeploymentRequest(msgspec.Struct, frozen=True):
    deployment_id: str
    versions_kept: int
    cause: str = ""


class PauseDeploymentRequest(msgspec.Struct, frozen=True):
    """`pause` False: it goes on."""

    deployment_id: str
    pause: bool
    cause: str = ""


class PromoteDeploymentRequest(msgspec.Struct, frozen=True):
    deployment_id: str
    everything: bool
    groups: tuple[str, ...] = ()
    cause: str = ""


class UnblockDeploymentRequest(msgspec.Struct, frozen=True):
    deployment_id: str
    cause: str = ""


class SetHealthRequest(msgspec.Struct, frozen=True):
    deployment_id: str
    healthy: tuple[str, ...]
    unhealthy: tuple[str, ...]
    versions_kept: int
    cause: str = ""


FAIL_DEPLOYMENT: Final = RpcMethod("fail-deployment", FailDeploymentRequest, DeploymentWriteResult)
PAUSE_DEPLOYMENT: Final = RpcMethod("pause-deployment", PauseDeploymentRequest, DeploymentWriteResult)
PROMOTE_DEPLOYMENT: Final = RpcMethod("promote-deployment", PromoteDeploymentRequest, DeploymentWriteResult)
UNBLOCK_DEPLOYMENT: Final = RpcMethod("unblock-deployment", UnblockDeploymentRequest, DeploymentWriteResult)
SET_ALLOCATION_HEALTH: Final = RpcMethod("set-health", SetHealthRequest, DeploymentWriteResult)


class DeploymentHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def fail_deployment(self, wanted: FailDeploymentRequest) -> DeploymentWriteResult:
        return await self._brain.execute(
            lambda snapshot, moment: deployments.fail_deployment(
                snapshot, wanted.deployment_id, moment, max_versions=wanted.versions_kept, cause=wanted.cause
            )
        )

    async def pause_deployment(self, wanted: PauseDeploymentRequest) -> DeploymentWriteResult:
        change = deployments.pause_deployment if wanted.pause else deployments.resume_deployment
        return await self._brain.execute(
            lambda snapshot, moment: change(snapshot, wanted.deployment_id, moment, cause=wanted.cause)
        )

    async def promote_deployment(self, wanted: PromoteDeploymentRequest) -> DeploymentWriteResult:
        return await _until_done(
            lambda: self._brain.execute(
                lambda snapshot, moment: deployments.promote_deployment(
                    snapshot,
                    wanted.deployment_id,
                    moment,
                    should_promote_all=wanted.everything,
                    groups=wanted.groups,
                    max_changes=self._brain.max_changes,
                    cause=wanted.cause,
                )
            )
        )

    async def unblock_deployment(self, wanted: UnblockDeploymentRequest) -> DeploymentWriteResult:
        return await self._brain.execute(
            lambda snapshot, moment: deployments.unblock_deployment(
                snapshot, wanted.deployment_id, moment, cause=wanted.cause
            )
        )

    async def set_health(self, told: SetHealthRequest) -> DeploymentWriteResult:
        return await _until_done(
            lambda: self._brain.execute(
                lambda snapshot, moment: deployments.set_allocation_health(
                    snapshot,
                    told.deployment_id,
                    moment,
                    healthy=told.healthy,
                    unhealthy=told.unhealthy,
                    max_changes=self._brain.max_changes,
                    max_versions=told.versions_kept,
                    cause=told.cause,
                )
            )
        )


async def _until_done(step: Callable[[], Awaitable[DeploymentWriteResult]]) -> DeploymentWriteResult:
    """What does not fit in one write is done in several: each marks what the one before has left."""
    written = await step()
    while not written.is_done:
        written = await step()
    return written


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    answers = DeploymentHandlers(brain)
    return (
        (FAIL_DEPLOYMENT, answers.fail_deployment),
        (PAUSE_DEPLOYMENT, answers.pause_deployment),
        (PROMOTE_DEPLOYMENT, answers.promote_deployment),
        (UNBLOCK_DEPLOYMENT, answers.unblock_deployment),
        (SET_ALLOCATION_HEALTH, answers.set_health),
    )
