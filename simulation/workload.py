"""The clients of a run: users, operators and watchers, all at the same time."""

import asyncio
from typing import Final

from simulation.client_records import ClientRecords
from simulation.flow_runs import FlowUser
from simulation.lock_runs import LockUser
from simulation.operator import Operator
from simulation.run_operator import RunOperator
from simulation.user import SimulatedUser

USER_COUNT: Final = 8
OPERATOR_COUNT: Final = 2
WATCHER_COUNT: Final = 10


class Workload:
    """Starts and stops the clients."""

    def __init__(self, records: ClientRecords) -> None:
        self._records = records
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all clients."""
        for number in range(USER_COUNT):
            user = SimulatedUser(self._records, f"person-{number + 1}")
            self._tasks.append(user.process.start(user.run(), name=user.name))
        for number in range(OPERATOR_COUNT):
            operator = Operator(self._records, f"operator-{number + 1}")
            self._tasks.append(operator.process.start(operator.run(), name=operator.name))
        flow_user = FlowUser(self._records, "flow-user")
        self._tasks.append(flow_user.process.start(flow_user.run(), name=flow_user.name))
        lock_user = LockUser(self._records)
        world = self._records.cluster.log_world
        self._tasks.append(world.start_task(lock_user.run(), name=lock_user.name))
        run_operator = RunOperator(self._records, "run-operator")
        self._tasks.append(world.start_task(run_operator.run(), name=run_operator.name))
        for number in range(WATCHER_COUNT):
            watcher = SimulatedUser(self._records, f"watcher-{number + 1}")
            self._tasks.append(watcher.process.start(watcher.run_watcher(), name=watcher.name))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def tidy_up(self) -> None:
        """Resume paused deployments, and stop flows and jobs that always fail. Otherwise the cluster never becomes steady."""
        operator = Operator(self._records, "the tidy one")
        await operator.process.start(operator.tidy_up(), name=operator.name)
        flow_user = FlowUser(self._records, "the last user of flows")
        await flow_user.process.start(flow_user.stop_flows(), name=flow_user.name)
