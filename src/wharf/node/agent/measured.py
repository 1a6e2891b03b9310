"""What is asked of a node about figures: of its machine, and of the tasks of an allocation, now and in the last minutes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec

from wharf.node.agent.asked import JSON, Answer
from wharf.node.agent.channel import Reply
from wharf.node.agent.steered import found
from wharf.node.agent.works import Work, Works
from wharf.node.measuring import History, MachineMeter, Measurable, TaskMeter
from wharf.node.measuring import history as past
from wharf.node.measuring.tasks import added, nothing
from wharf.wire import channel
from wharf.world import World

AT_ONCE: Final = 10
"""So many runs are looked at before others have their turn."""


class Measured:
    """`mhz`: of all processors together; `core_mhz`: of one."""

    def __init__(
        self, world: World, works: Works, machine: MachineMeter, tasks: TaskMeter, *, mhz: int, core_mhz: int
    ) -> None:
        self._world = world
        self._works = works
        self._machine = machine
        self._tasks = tasks
        self._history = History()
        self._mhz = mhz
        self._core_mhz = core_mhz

    def answers(self) -> dict[str, Answer]:
        return {"stats": self._stats, "alloc_stats": self._alloc_stats}

    async def keep_history(self) -> None:
        """Until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(past.EVERY_S)

    async def _look(self) -> None:
        at_ns = self._world.now_ns()
        self._history.note_machine(at_ns)
        seen = []
        for run, driver in list(self._running()):
            self._history.note_run(run, driver.processes_of(run), at_ns=at_ns, at_s=self._world.monotonic_s())
            seen.append(run)
            if len(seen) % AT_ONCE == 0:
                await asyncio.sleep(0)
        self._history.keep_only(seen)

    def _running(self) -> Iterator[tuple[str, Measurable]]:
        for work in self._works.live():
            for task in work.record.tasks:
                driver = self._works.driver_of(work, task.name)
                if task.has_process and isinstance(driver, Measurable):
                    yield work.run_of(task.name, task.run), driver

    async def _stats(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        told = await self._machine.read()
        if since_ns := self._since_ns(question):
            told = {**told, "History": past.shown(self._history.of_machine(since_ns), mhz=self._mhz)}
        return Reply(JSON, msgspec.json.encode(told))

    async def _alloc_stats(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        work = found(self._works, question.about)
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
                    samples = self._history.of_run(work.run_of(task.name, task.run), since_ns)
                    told["History"] = past.shown(samples, mhz=self._core_mhz)
                    histories.append(samples)
        total = added([told["ResourceUsage"] for told in tasks.values()]) if tasks else nothing()
        total["DeviceStats"] = []
        newest = max((told["Timestamp"] for told in tasks.values()), default=0)
        reply = {"ResourceUsage": total, "Tasks": tasks, "Timestamp": newest}
        if since_ns:
            reply["History"] = past.shown(past.added(histories), mhz=self._core_mhz)
        return Reply(JSON, msgspec.json.encode(reply))

    def _since_ns(self, question: channel.Ask) -> int:
        """From when on what was is to be told; 0: not at all."""
        length_ns = question.parameters.get("history", 0)
        return self._world.now_ns() - length_ns if isinstance(length_ns, int) and length_ns > 0 else 0

    async def _of_task(self, work: Work, name: str, run: int) -> dict[str, Any] | None:
        """None where its driver measures nothing."""
        driver = self._works.driver_of(work, name)
        if not isinstance(driver, Measurable):
            return None
        return await self._tasks.read(driver.processes_of(work.run_of(name, run)))
