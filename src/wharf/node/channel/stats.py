"""Handles requests for resource usage of the machine and of tasks, now and over the last minutes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec

from wharf.contract.wire.nodes import channel
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.channel.allocations import require_allocation
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.node.statistics import MachineMeter, MeasurableDriver, TaskMeter, UsageHistory
from wharf.node.statistics.history import SAMPLE_INTERVAL_S, render_samples, sum_histories
from wharf.node.statistics.tasks import build_empty_usage, sum_usage
from wharf.world import World

MAX_RUNS_PER_PASS: Final = 10
"""How many runs are measured before other tasks of the event loop may continue."""


class StatsHandlers:
    """Handles requests for resource usage of the machine and of tasks.

    `mhz` is the speed of all processors together, `core_mhz` that of one processor.
    """

    def __init__(
        self,
        world: World,
        manager: AllocationManager,
        machine: MachineMeter,
        tasks: TaskMeter,
        *,
        mhz: int,
        core_mhz: int,
    ) -> None:
        self._world = world
        self._manager = manager
        self._machine = machine
        self._tasks = tasks
        self._history = UsageHistory()
        self._mhz = mhz
        self._core_mhz = core_mhz

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handlers of requests for resource usage, by verb of the node channel."""
        return {"stats": self._stats, "alloc_stats": self._alloc_stats}

    async def record_history(self) -> None:
        """Record the usage of machine and tasks every `SAMPLE_INTERVAL_S`. Runs until canceled."""
        while True:
            await self._record_samples()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _record_samples(self) -> None:
        """Add one sample for the machine and one for every run to the history; delete histories of ended runs.

        A run is one start of a task.
        """
        at_ns = self._world.now_ns()
        self._history.record_machine(at_ns)
        runs = []
        for run, driver in list(self._iter_measurable_runs()):
            self._history.record_run(run, driver.processes_of(run), at_ns=at_ns, at_s=self._world.monotonic_s())
            runs.append(run)
            if len(runs) % MAX_RUNS_PER_PASS == 0:
                await asyncio.sleep(0)
        self._history.drop_other_runs(runs)

    def _iter_measurable_runs(self) -> Iterator[tuple[str, MeasurableDriver]]:
        """Yield (name of the run, driver) for every running task whose driver can measure usage.

        A run is one start of a task.
        """
        for allocation in self._manager.table.list_live():
            for task in allocation.record.tasks:
                driver = self._manager.tasks.find_driver(allocation, task.name)
                if task.has_process and isinstance(driver, MeasurableDriver):
                    yield allocation.make_run_name(task.name, task.run), driver

    async def _stats(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the usage of the machine as JSON, with its history if requested."""
        statistics = await self._machine.read_statistics()
        if since_ns := self._get_history_start_ns(request):
            statistics = {
                **statistics,
                "History": render_samples(self._history.list_machine_samples(since_ns), mhz=self._mhz),
            }
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(statistics))

    async def _alloc_stats(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the usage of one task or of all tasks of an allocation as JSON, with their total.

        The histories are included if requested. Raises `Refusal` if the allocation is unknown.
        """
        allocation = require_allocation(self._manager.table, request.about)
        task_name = str(request.parameters.get("task", ""))
        since_ns = self._get_history_start_ns(request)
        tasks, histories = {}, []
        for task in allocation.record.tasks:
            if task.has_process and task_name in ("", task.name):
                statistics = await self._read_task_statistics(allocation, task.name, task.run)
                if statistics is None:
                    continue
                tasks[task.name] = statistics
                if since_ns:
                    samples = self._history.list_run_samples(allocation.make_run_name(task.name, task.run), since_ns)
                    statistics["History"] = render_samples(samples, mhz=self._core_mhz)
                    histories.append(samples)
        total = (
            sum_usage([statistics["ResourceUsage"] for statistics in tasks.values()]) if tasks else build_empty_usage()
        )
        total["DeviceStats"] = []
        newest = max((statistics["Timestamp"] for statistics in tasks.values()), default=0)
        reply = {"ResourceUsage": total, "Tasks": tasks, "Timestamp": newest}
        if since_ns:
            reply["History"] = render_samples(sum_histories(histories), mhz=self._core_mhz)
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(reply))

    def _get_history_start_ns(self, request: channel.ChannelRequest) -> int:
        """Return the wall clock time at which the requested history begins; 0 if no history is requested."""
        duration_ns = request.parameters.get("history", 0)
        return self._world.now_ns() - duration_ns if isinstance(duration_ns, int) and duration_ns > 0 else 0

    async def _read_task_statistics(self, allocation: ManagedAllocation, name: str, run: int) -> dict[str, Any] | None:
        """Return the usage of a task; `None` if its driver cannot measure usage.

        `run` is the number of the task's start.
        """
        driver = self._manager.tasks.find_driver(allocation, name)
        if not isinstance(driver, MeasurableDriver):
            return None
        return await self._tasks.read_statistics(driver.processes_of(allocation.make_run_name(name, run)))
