"""A duty of the leader: moves running deployments forward when they change or a deadline passes.

`controllers.deployments` decides the next step.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from wharf.cluster.controllers import deployments
from wharf.cluster.controllers.deployment_tracker import DeploymentTracker
from wharf.cluster.engines.port import Batch
from wharf.cluster.operations.deployments import DeploymentDecision
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.cpu_budget import SLICE_S
from wharf.cluster.server.duties.watch_loop import MAX_PASS_INTERVAL_S, run_watch_loop
from wharf.cluster.state import Replica
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, DEPLOYMENTS
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import SECOND, DecisionContext
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
        self._tracker = DeploymentTracker()
        self._is_running = False
        self._full_pass_s = -math.inf
        """When all running deployments were checked last, in seconds of the monotonic clock."""
        brain.follower.change_listeners.append(self._on_batch)
        brain.follower.load_listeners.append(self._on_load)
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Check running deployments while the brain leads: when one changes, and when a deadline passes."""
        self._full_pass_s = -math.inf
        self._is_running = True
        try:
            await run_watch_loop(
                self._brain,
                list_watched=lambda: [watch_table(DEPLOYMENTS)],
                run_pass=self._check_deployments,
                wait_s=self._wait_s,
            )
        finally:
            self._is_running = False

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Record which deployments a batch changed. Does nothing unless this server leads."""
        del batch  # The changed records have all that is needed.
        if self._is_running:
            for table, key, _, deployment in changed_records:
                if table == DEPLOYMENTS.name:
                    self._tracker.update(key, deployment)

    def _on_load(self) -> None:
        """Let the next pass check all deployments, because the replica was reloaded."""
        self._full_pass_s = -math.inf

    async def _check_deployments(self) -> None:
        """Make all changes that are due now of running deployments that changed or have a deadline that passed."""
        began_s = self._world.monotonic_s()
        if began_s - self._full_pass_s >= FULL_PASS_INTERVAL_S:
            self._tracker.reset(self._brain.replica.iter_all(DEPLOYMENTS))
            self._full_pass_s = began_s
        slice_began_s = self._world.cpu_s()
        for deployment_id in self._tracker.take_due(self._world.now_ns()):
            while await self._take_step(deployment_id):
                pass
            if self._world.cpu_s() - slice_began_s >= SLICE_S:
                await asyncio.sleep(0)
                slice_began_s = self._world.cpu_s()

    async def _take_step(self, deployment_id: str) -> bool:
        """Make the next change of the deployment that is due. Return whether there was one."""
        replica, limit = self._brain.replica, self._brain.max_changes
        deployment = replica.get(DEPLOYMENTS, deployment_id)
        if deployment is None:
            return False
        count = replica.count_by_index(ALLOCATIONS_OF_JOB, deployment.namespace, deployment.job_id)

        def decide(snapshot: Replica, context: DecisionContext) -> DeploymentDecision | None:
            return deployments.decide_next_step(
                snapshot, deployment_id, context, max_changes=limit, max_versions=self._settings.versions_kept
            )

        is_long = count > MAX_ALLOCATIONS_ON_LOOP
        if not is_long and self._is_step_missing(decide):
            return False
        return await self._brain.execute_if_due(decide, is_long=is_long) is not None

    def _is_step_missing(self, decide: Callable[[Replica, DecisionContext], DeploymentDecision | None]) -> bool:
        """Return whether the deployment needs no change now.

        Most changes of deployments need no step. This check does not wait for the leader's other writes: each of them that
        changes the deployment causes another check.
        """
        try:
            return decide(self._brain.replica, DecisionContext(self._world.now_ns(), self._world.new_id)) is None
        except (Refusal, InvalidTransition):
            return False  # A refusal counts only after a barrier.

    def _wait_s(self) -> float:
        """Return the seconds until the next deadline of a deployment, at least 0.1; `MAX_PASS_INTERVAL_S` if there is
        none.
        """
        deadline_ns = self._tracker.next_deadline_ns()
        if deadline_ns is None:
            return MAX_PASS_INTERVAL_S
        return max(0.1, (deadline_ns - self._world.now_ns()) / SECOND)
