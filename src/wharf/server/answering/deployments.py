"""What the leader answers about deployments: it alone moves their statuses and counts."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wharf.operations import deployments
from wharf.operations.deployments import DeploymentWritten
from wharf.server.brain import Brain
from wharf.server.subject import AnsweredBy, Subject


class DeploymentToFail(msgspec.Struct, frozen=True):
    deployment_id: str
    versions_kept: int
    cause: str = ""


class DeploymentToPause(msgspec.Struct, frozen=True):
    """`pause` False: it goes on."""

    deployment_id: str
    pause: bool
    cause: str = ""


class DeploymentToPromote(msgspec.Struct, frozen=True):
    deployment_id: str
    everything: bool
    groups: tuple[str, ...] = ()
    cause: str = ""


class DeploymentToUnblock(msgspec.Struct, frozen=True):
    deployment_id: str
    cause: str = ""


class AllocationHealth(msgspec.Struct, frozen=True):
    deployment_id: str
    healthy: tuple[str, ...]
    unhealthy: tuple[str, ...]
    versions_kept: int
    cause: str = ""


FAIL_DEPLOYMENT: Final = Subject("fail-deployment", DeploymentToFail, DeploymentWritten)
PAUSE_DEPLOYMENT: Final = Subject("pause-deployment", DeploymentToPause, DeploymentWritten)
PROMOTE_DEPLOYMENT: Final = Subject("promote-deployment", DeploymentToPromote, DeploymentWritten)
UNBLOCK_DEPLOYMENT: Final = Subject("unblock-deployment", DeploymentToUnblock, DeploymentWritten)
SET_HEALTH: Final = Subject("set-health", AllocationHealth, DeploymentWritten)


class Deployments:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def fail(self, wanted: DeploymentToFail) -> DeploymentWritten:
        return await self._brain.decide(
            lambda snapshot, moment: deployments.fail(
                snapshot, wanted.deployment_id, moment, versions_kept=wanted.versions_kept, cause=wanted.cause
            )
        )

    async def pause(self, wanted: DeploymentToPause) -> DeploymentWritten:
        change = deployments.pause if wanted.pause else deployments.resume
        return await self._brain.decide(
            lambda snapshot, moment: change(snapshot, wanted.deployment_id, moment, cause=wanted.cause)
        )

    async def promote(self, wanted: DeploymentToPromote) -> DeploymentWritten:
        return await _until_done(
            lambda: self._brain.decide(
                lambda snapshot, moment: deployments.promote(
                    snapshot,
                    wanted.deployment_id,
                    moment,
                    everything=wanted.everything,
                    groups=wanted.groups,
                    changes_max=self._brain.changes_max,
                    cause=wanted.cause,
                )
            )
        )

    async def unblock(self, wanted: DeploymentToUnblock) -> DeploymentWritten:
        return await self._brain.decide(
            lambda snapshot, moment: deployments.unblock(snapshot, wanted.deployment_id, moment, cause=wanted.cause)
        )

    async def set_health(self, told: AllocationHealth) -> DeploymentWritten:
        return await _until_done(
            lambda: self._brain.decide(
                lambda snapshot, moment: deployments.set_health(
                    snapshot,
                    told.deployment_id,
                    moment,
                    healthy=told.healthy,
                    unhealthy=told.unhealthy,
                    changes_max=self._brain.changes_max,
                    versions_kept=told.versions_kept,
                    cause=told.cause,
                )
            )
        )


async def _until_done(step: Callable[[], Awaitable[DeploymentWritten]]) -> DeploymentWritten:
    """What does not fit in one write is done in several: each marks what the one before has left."""
    written = await step()
    while not written.is_done:
        written = await step()
    return written


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    answers = Deployments(brain)
    return (
        (FAIL_DEPLOYMENT, answers.fail),
        (PAUSE_DEPLOYMENT, answers.pause),
        (PROMOTE_DEPLOYMENT, answers.promote),
        (UNBLOCK_DEPLOYMENT, answers.unblock),
        (SET_HEALTH, answers.set_health),
    )
