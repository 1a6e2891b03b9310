"""What is asked of a node about figures: of its machine, and of the tasks of an allocation, now and in the last minutes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec

from wharf.contract.wire.nodes import channel
from wharf.node.agent.allocations.manager import AllocationManager, ManagedAllocation
from wharf.node.channel.allocations import require_allocation
from wharf.node.channel.endpoint import ChannelReply
from wharf.node.channel.files import JSON_CONTENT_TYPE, VerbHandler
from wharf.node.statistics import MachineMeter, MeasurableDriver, TaskMeter, UsageHistory
from wharf.node.statistics import history as past
from wharf.node.statistics.tasks import build_empty_usage, sum_usage
from wharf.world import World

MAX_RUNS_PER_PASS: Final = 10
"""So many runs are looked at before others have their turn."""


class StatsHandlers:
    """`mhz`: of all processors together; `core_mhz`: of one."""

    def __init__(
        self,
        world: World,
        works: AllocationManager,
        machine: MachineMeter,
        tasks: TaskMeter,
        *,
        mhz: int,
        core_mhz: int,
    ) -> None:
        self._world = world
        self._works = works
        self._machine = machine
        self._tasks = tasks
        self._history = UsageHistory()
        self._mhz = mhz
        self._core_mhz = core_mhz

    def handlers(self) -> dict[str, VerbHandler]:
        return {"stats": self._stats, "alloc_stats": self._alloc_stats}

    async def record_history(self) -> None:
        """Until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(past.SAMPLE_INTERVAL_S)

    async def _look(self) -> None:
        at_ns = self._world.now_ns()
        self._history.record_machine(at_ns)
        seen = []
        for run, driver in list(self._running()):
            self._history.record_run(run, driver.processes_of(run), at_ns=at_ns, at_s=self._world.monotonic_s())
            seen.append(run)
            if len(seen) % MAX_RUNS_PER_PASS == 0:
                await asyncio.sleep(0)
        self._history.drop_other_runs(seen)

    def _running(self) -> Iterator[tuple[str, MeasurableDriver]]:
        for work in self._works.list_live():
            for task in work.record.tasks:
                driver = self._works.find_driver(work, task.name)
                if task.has_process and isinstance(driver, MeasurableDriver):
                    yield work.make_run_name(task.name, task.run), driver

    async def _stats(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        told = await self._machine.read_statistics()
        if since_ns := self._since_ns(question):
            told = {
                **told,
                "History": past.render_samples(self._history.list_machine_samples(since_ns), mhz=self._mhz),
            }
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(told))

    async def _alloc_stats(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        work = require_allocation(self._works, question.about)
        wanted = str(question.parameters.get("task", ""))
        since_ns = self._since_ns(question)
        tasks, histories = {}, []
        for task in work.record.tasks:
            if task.has_process and wanted in ("", task.name):
                told = await self._of_task(work, task.name, task.run)
                if told is None:
                    continue
                tasks[task.name] = told
                if since_ns:
                    samples = self._history.list_run_samples(work.make_run_name(task.name, task.run), since_ns)
                    told["History"] = past.render_samples(samples, mhz=self._core_mhz)
                    histories.append(samples)
        total = sum_usage([told["ResourceUsage"] for told in tasks.values()]) if tasks else build_empty_usage()
        total["DeviceStats"] = []
        newest = max((told["Timestamp"] for told in tasks.values()), default=0)
        reply = {"ResourceUsage": total, "Tasks": tasks, "Timestamp": newest}
        if since_ns:
            reply["History"] = past.render_samples(past.sum_histories(histories), mhz=self._core_mhz)
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(reply))

    def _since_ns(self, question: channel.ChannelRequest) -> int:
        """From when on what was is to be told; 0: not at all."""
        length_ns = question.parameters.get("history", 0)
        return self._world.now_ns() - length_ns if isinstance(length_ns, int) and length_ns > 0 else 0

    async def _of_task(self, work: ManagedAllocation, name: str, run: int) -> dict[str, Any] | None:
        """None where its driver measures nothing."""
        driver = self._works.find_driver(work, name)
        if not isinstance(driver, MeasurableDriver):
            return None
        return await self._tasks.read_statistics(driver.processes_of(work.make_run_name(name, run)))
