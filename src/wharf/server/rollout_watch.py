"""Watches over running deployments: whenever one changes, or its time is over, it gets what it needs next.

One of the leader's duties. What a deployment needs is decided by `controllers.rollouts`.
"""

import asyncio
from typing import Final

from wharf.controllers import rollouts
from wharf.model.moment import Moment
from wharf.operations.decision import Decision
from wharf.operations.deployments import DeploymentWritten
from wharf.server.brain import Brain
from wharf.state import Replica, Watched
from wharf.state.tables import DEPLOYMENTS
from wharf.state.watches import whole
from wharf.world import World

SECOND_NS: Final = 1_000_000_000
LOOK_AT_LEAST_EVERY_S: Final = 60.0
GATHER_S: Final = 0.2
"""Healths that come close together are looked at together."""


class RolloutWatch:
    def __init__(self, world: World, brain: Brain) -> None:
        self._world = world
        self._brain = brain
        brain.duties.append(self.watch)

    async def watch(self) -> None:
        """As long as the brain leads."""
        changed = asyncio.Event()
        watched: list[Watched] = [whole(DEPLOYMENTS)]
        subscription = self._brain.follower.replica.watches.subscribe(watched, changed.set)
        try:
            while self._brain.is_leading:
                changed.clear()
                subscription.rearm()
                await self._look()
                try:
                    async with asyncio.timeout(self._wait_s()):
                        await changed.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(GATHER_S)
        finally:
            subscription.end()

    async def _look(self) -> None:
        replica = self._brain.follower.replica
        running = [deployment.id for deployment in replica.all(DEPLOYMENTS) if deployment.is_active]
        for deployment_id in running:
            while await self._step(deployment_id):
                pass

    async def _step(self, deployment_id: str) -> bool:
        """Whether something was done."""
        most = self._brain.changes_max

        def decide(snapshot: Replica, moment: Moment) -> Decision[bool]:
            step: Decision[DeploymentWritten] | None = rollouts.next_step(
                snapshot, deployment_id, moment, changes_max=most
            )
            if step is None or step.write is None:
                return Decision(None, lambda _index: False)
            return Decision(step.write, lambda _index: True)

        if rollouts.next_step(self._brain.follower.replica, deployment_id, self._moment(), changes_max=most) is None:
            return False  # Nearly always; the log need not be asked for its turn.
        return await self._brain.decide(decide)

    def _moment(self) -> Moment:
        return Moment(self._world.now_ns(), self._world.new_id)

    def _wait_s(self) -> float:
        replica, now_ns = self._brain.follower.replica, self._world.now_ns()
        deadlines = [
            deadline
            for deployment in replica.all(DEPLOYMENTS)
            if (deadline := rollouts.next_deadline_ns(deployment)) is not None
        ]
        until_s = (min(deadlines) - now_ns) / SECOND_NS if deadlines else LOOK_AT_LEAST_EVERY_S
        return min(LOOK_AT_LEAST_EVERY_S, max(0.1, until_s))
