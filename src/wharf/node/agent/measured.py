"""What is asked of a node about figures: of its machine, and of the tasks of an allocation."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from wharf.node.agent.asked import JSON, Answer
from wharf.node.agent.channel import Reply
from wharf.node.agent.steered import found
from wharf.node.agent.works import Work, Works
from wharf.node.measuring import MachineMeter, Measurable, TaskMeter
from wharf.node.measuring.tasks import added, nothing
from wharf.wire import channel


class Measured:
    def __init__(self, works: Works, machine: MachineMeter, tasks: TaskMeter) -> None:
        self._works = works
        self._machine = machine
        self._tasks = tasks

    def answers(self) -> dict[str, Answer]:
        return {"stats": self._stats, "alloc_stats": self._alloc_stats}

    async def _stats(self, _question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        return Reply(JSON, msgspec.json.encode(await self._machine.read()))

    async def _alloc_stats(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        work = found(self._works, question.about)
        wanted = str(question.parameters.get("task", ""))
        tasks = {}
        for task in work.record.tasks:
            if task.has_process and wanted in ("", task.name):
                told = await self._of_task(work, task.name, task.run)
                if told is not None:
                    tasks[task.name] = told
        total = added([told["ResourceUsage"] for told in tasks.values()]) if tasks else nothing()
        total["DeviceStats"] = []
        newest = max((told["Timestamp"] for told in tasks.values()), default=0)
        return Reply(JSON, msgspec.json.encode({"ResourceUsage": total, "Tasks": tasks, "Timestamp": newest}))

    async def _of_task(self, work: Work, name: str, run: int) -> dict[str, Any] | None:
        """None where its driver measures nothing."""
        driver = self._works.driver_of(work, name)
        if not isinstance(driver, Measurable):
            return None
        return await self._tasks.read(driver.processes_of(work.run_of(name, run)))
