"""Watches over running deployments: whenever one changes, or its time is over, it gets what it needs next.

One of the leader's duties. What a deployment needs is decided by `controllers.rollouts`.
"""

from typing import Final

from wharf.controllers import rollouts
from wharf.server.brain import Brain
from wharf.server.leading.watching import LOOK_AT_LEAST_EVERY_S, watch
from wharf.state.tables import DEPLOYMENTS
from wharf.state.watches import whole
from wharf.world import World

SECOND_NS: Final = 1_000_000_000


class RolloutWatch:
    def __init__(self, world: World, brain: Brain) -> None:
        self._world = world
        self._brain = brain
        brain.duties.append(self.watch)

    async def watch(self) -> None:
        """As long as the brain leads."""
        await watch(self._brain, watched=lambda: [whole(DEPLOYMENTS)], look=self._look, wait_s=self._wait_s)

    async def _look(self) -> None:
        replica = self._brain.follower.replica
        running = [deployment.id for deployment in replica.all(DEPLOYMENTS) if deployment.is_active]
        for deployment_id in running:
            while await self._step(deployment_id):
                pass

    async def _step(self, deployment_id: str) -> bool:
        """Whether something was done."""
        most = self._brain.changes_max
        done = await self._brain.act(
            lambda snapshot, moment: rollouts.next_step(snapshot, deployment_id, moment, changes_max=most)
        )
        return done is not None

    def _wait_s(self) -> float:
        replica, now_ns = self._brain.follower.replica, self._world.now_ns()
        deadlines = [
            deadline
            for deployment in replica.all(DEPLOYMENTS)
            if (deadline := rollouts.next_deadline_ns(deployment)) is not None
        ]
        until_s = (min(deadlines) - now_ns) / SECOND_NS if deadlines else LOOK_AT_LEAST_EVERY_S
        return max(0.1, until_s)
