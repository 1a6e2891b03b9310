"""Watches over running deployments: whenever one changes, or its time is over, it gets what it needs next.

One of the leader's duties. What a deployment needs is decided by `controllers.rollouts`.
"""

from typing import Final

from wharf.cluster.controllers import deployments
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.duties.watch_loop import MAX_WAIT_S, run_watch_loop
from wharf.cluster.state.tables import DEPLOYMENTS
from wharf.cluster.state.watches import watch_table
from wharf.world import World

SECOND_NS: Final = 1_000_000_000


class DeploymentDuty:
    def __init__(self, world: World, brain: Brain) -> None:
        self._world = world
        self._brain = brain
        brain.duties.append(self.run)

    async def run(self) -> None:
        """As long as the brain leads."""
        await run_watch_loop(
            self._brain, list_watched=lambda: [watch_table(DEPLOYMENTS)], run_pass=self._look, wait_s=self._wait_s
        )

    async def _look(self) -> None:
        replica = self._brain.follower.replica
        running = [deployment.id for deployment in replica.iter_all(DEPLOYMENTS) if deployment.is_active]
        for deployment_id in running:
            while await self._step(deployment_id):
                pass

    async def _step(self, deployment_id: str) -> bool:
        """Whether something was done."""
        most = self._brain.max_changes
        done = await self._brain.execute_if_due(
            lambda snapshot, moment: deployments.decide_next_step(snapshot, deployment_id, moment, max_changes=most)
        )
        return done is not None

    def _wait_s(self) -> float:
        replica, now_ns = self._brain.follower.replica, self._world.now_ns()
        deadlines = [
            deadline
            for deployment in replica.iter_all(DEPLOYMENTS)
            if (deadline := deployments.next_deadline_ns(deployment)) is not None
        ]
        until_s = (min(deadlines) - now_ns) / SECOND_NS if deadlines else MAX_WAIT_S
        return max(0.1, until_s)
