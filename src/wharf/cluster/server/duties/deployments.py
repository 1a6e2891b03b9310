"""A duty of the leader: moves running deployments forward when they change or a deadline passes.

`controllers.deployments` decides the next step.
"""

import asyncio
import math
from typing import Final

from wharf.cluster.controllers import deployments
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.cpu_budget import SLICE_S
from wharf.cluster.server.duties.watch_loop import MAX_PASS_INTERVAL_S, run_watch_loop
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, DEPLOYMENTS
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.times import SECOND
from wharf.world import World

FULL_PASS_INTERVAL_S: Final = MAX_PASS_INTERVAL_S
"""How often all running deployments are checked, in case the wall clock was changed. Other passes check only those that
changed or have a deadline that passed, because thousands may be running.
"""
MAX_ALLOCATIONS_ON_LOOP: Final = 500
"""With more allocations of the job, the decision is made off the event loop."""


class DeploymentDuty:
    """Makes the next changes of running deployments, such as promotion or failure, when they are due."""

    def __init__(self, world: World, brain: Brain, settings: JobSettings) -> None:
        self._world = world
        self._brain = brain
        self._settings = settings
        self._checked_index = 0
        """All changes up to this log index were considered."""
        self._checked_epoch = -1
        self._full_pass_s = -math.inf
        """When all running deployments were checked last, in seconds of the monotonic clock."""
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Check running deployments while the brain leads: when one changes, and when a deadline passes."""
        self._full_pass_s = -math.inf
        await run_watch_loop(
            self._brain,
            list_watched=lambda: [watch_table(DEPLOYMENTS)],
            run_pass=self._check_deployments,
            wait_s=self._wait_s,
        )

    async def _check_deployments(self) -> None:
        """Make all changes that are due now of running deployments that changed or have a deadline that passed."""
        replica = self._brain.replica
        index, epoch, began_s = replica.index, replica.epoch, self._world.monotonic_s()
        is_full = epoch != self._checked_epoch or began_s - self._full_pass_s >= FULL_PASS_INTERVAL_S
        slice_began_s = self._world.cpu_s()
        for deployment_id in self._list_unchecked(is_full=is_full):
            while await self._take_step(deployment_id):
                pass
            if self._world.cpu_s() - slice_began_s >= SLICE_S:
                await asyncio.sleep(0)
                slice_began_s = self._world.cpu_s()
        self._checked_index, self._checked_epoch = index, epoch
        if is_full:
            self._full_pass_s = began_s

    def _list_unchecked(self, *, is_full: bool) -> list[str]:
        """Return the ids of active deployments that changed since the last pass or have a deadline that passed.

        `is_full`: return those of all active deployments.
        """
        now_ns = self._world.now_ns()
        return [
            deployment.id
            for deployment in self._brain.replica.iter_all(DEPLOYMENTS)
            if deployment.is_active
            and (
                is_full
                or deployment.modify_index > self._checked_index
                or ((deadline := deployments.next_deadline_ns(deployment)) is not None and deadline <= now_ns)
            )
        ]

    async def _take_step(self, deployment_id: str) -> bool:
        """Make the next change of the deployment that is due. Return whether there was one."""
        replica, limit = self._brain.replica, self._brain.max_changes
        deployment = replica.get(DEPLOYMENTS, deployment_id)
        count = 0
        if deployment is not None:
            count = replica.count_by_index(ALLOCATIONS_OF_JOB, deployment.namespace, deployment.job_id)
        result = await self._brain.execute_if_due(
            lambda snapshot, context: deployments.decide_next_step(
                snapshot, deployment_id, context, max_changes=limit, max_versions=self._settings.versions_kept
            ),
            is_long=count > MAX_ALLOCATIONS_ON_LOOP,
        )
        return result is not None

    def _wait_s(self) -> float:
        """Return the seconds until the next deadline of a deployment, at least 0.1; `MAX_PASS_INTERVAL_S` if there is
        none.
        """
        replica, now_ns = self._brain.replica, self._world.now_ns()
        deadlines = [
            deadline
            for deployment in replica.iter_all(DEPLOYMENTS)
            if (deadline := deployments.next_deadline_ns(deployment)) is not None
        ]
        wait_s = (min(deadlines) - now_ns) / SECOND if deadlines else MAX_PASS_INTERVAL_S
        return max(0.1, wait_s)
