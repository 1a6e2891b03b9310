"""A node of the simulation that is the product's own: its core, what drives it, its journal, its talk with servers.

Played are its disk, its supervisor and its programs (`machine`), that it has folders, and what goes on around tasks. It is put together as
`wharf.node.agent.node` does it.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from simulation.machine import Ordered, PlayedMachine, Told
from simulation.process import Process
from wharf.client import AsyncClient
from wharf.model.node import Node
from wharf.model.registration import ServiceRegistration
from wharf.node.agent.environment import Place
from wharf.node.agent.folders import AllocationFolders, TaskFolders
from wharf.node.agent.interpolation import facts_of
from wharf.node.agent.journal import Journal
from wharf.node.agent.servers import NodeIdentity, ServerTalk
from wharf.node.agent.works import Works
from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.devices.port import NOTHING_RESERVED, Reserved
from wharf.node.drivers.port import CannotStart, Health, TaskOrder, View
from wharf.node.fake import FakeMachine, describe
from wharf.world import World

MEND_EVERY_S: Final = 1.0
REGION: Final = "global"
MAX_KILL_TIMEOUT_S: Final = 30.0


class PlayedFolders(AllocationFolders):
    """Nothing is on any disk."""

    def __init__(self) -> None:
        self._root = Path("/nowhere")

    def make(self, allocation_id: str, task: str) -> TaskFolders:
        return self.of_task(allocation_id, task)

    def inherit(self, *_: str) -> None:
        return

    def known(self) -> list[str]:
        return []

    def remove(self, _allocation_id: str) -> None:
        return


class PlayedUpkeep:
    """Tasks here need nothing, and no service is checked."""

    async def prepare(self, *_: object) -> None:
        return

    async def ensure(self, *_: object) -> None:
        return

    def environment(self, *_: str) -> dict[str, str]:
        return {}

    def network_of(self, _allocation_id: str) -> None:
        return

    def network_status(self, _allocation_id: str) -> None:
        return

    def reserved(self, *_: str) -> Reserved:
        return NOTHING_RESERVED

    def look(self, _work: object) -> None:
        return

    def services(self, _work: object) -> tuple[ServiceRegistration, ...]:
        return ()

    def end(self, *_: object) -> None:
        return


class PlayedDriver:
    """The driver of all tasks: what is said to the supervisor takes a while, keeps its order, and may never arrive."""

    name = "mock"
    view = View.OWN

    def __init__(self, process: Process, machine: PlayedMachine, node: "CoreNode", random: Random) -> None:
        self._process = process
        self._machine = machine
        self._node = node
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._link = 0
        self._is_told = asyncio.Event()
        self._is_lost = asyncio.Event()
        self._known: dict[str, Told] = {}
        self._said_s = self._heard_s = 0.0

    # -- the way to the supervisor

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0.01, 0.3))
            self._is_lost.clear()
            self._link, told = self._machine.connect(self)
            await asyncio.sleep(self._random.uniform(0.001, 0.02))
            self._known = {each.run: each for each in told} | self._known
            self._is_told.set()
            await self._node.on_supervisor()
            await self._is_lost.wait()
            self._is_told.clear()
            self._known = {}

    def _say(self, deed: Callable[[str], None], run: str) -> None:
        link, machine = self._link, self._machine
        self._said_s = max(self._said_s + 0.000_001, self._loop.time() + self._random.uniform(0.000_1, 0.003))
        machine.arrive(self._said_s, link, lambda: deed(run))

    def hear(self, told: Told) -> None:
        self._heard_s = max(self._heard_s + 0.000_001, self._loop.time() + self._random.uniform(0.000_1, 0.003))
        self._process.run(self._loop.call_at, self._heard_s, self._take, self._link, told)

    def on_lost(self) -> None:
        self._process.run(self._loop.call_soon, self._is_lost.set)

    def _take(self, link: int, told: Told) -> None:
        if link != self._link or self._is_lost.is_set():
            return
        self._known[told.run] = told
        if self._is_told.is_set():
            self._pass_on(told)

    def _pass_on(self, told: Told) -> None:
        if told.outcome is not None:
            self._node.on_ended(told.run, told.outcome)
        elif told.has_begun:
            self._node.on_begun(told.run)

    def runs(self) -> list[str]:
        return list(self._known)

    # -- the port `Driver`

    async def probe(self) -> Health:
        return Health(is_healthy=True)

    async def start(self, order: TaskOrder) -> None:
        if order.config.get("start_error"):
            raise CannotStart(str(order.config["start_error"]))
        work = self._node.works.find(order.allocation_id)
        assert work is not None, "what is started is known"
        group = work.job.group(work.order.allocation.task_group)
        assert group is not None, "and is of a group"
        ordered = Ordered(order.run, order.allocation_id, order.task, group, order.config)
        self._say(lambda _run: self._machine.start(ordered), order.run)

    async def recover(self, runs: Collection[str]) -> None:
        await self._is_told.wait()
        for run in runs:
            told = self._known.get(run)
            if told is None:
                self._node.on_ended(run, UNKNOWN)
            else:
                self._pass_on(told)

    def signal(self, run: str, _name: str) -> None:
        self._say(self._machine.signal, run)

    def give_up(self, run: str) -> None:
        """It begins in a moment, and is told to end then."""

    def kill(self, run: str) -> None:
        self._say(self._machine.kill, run)

    def forget(self, run: str) -> None:
        self._known.pop(run, None)
        self._say(self._machine.forget, run)


class CoreNode:
    """One life of the node's agent."""

    def __init__(
        self, world: World, client: AsyncClient, looks: FakeMachine, identity: NodeIdentity, machine: PlayedMachine,
        process: Process, random: Random,
    ) -> None:  # fmt: skip
        self.id = identity.id
        self._world = world
        self._looks = looks
        self._journal = Journal(machine.disk, machine.boot_id)
        self._driver = PlayedDriver(process, machine, self, random)
        place = Place(looks.datacenter, REGION, "10.0.0.1", node_id=identity.id, node_name=looks.name)
        self.works = Works(
            world, self._journal, PlayedFolders(), {"mock": self._driver}, place=place,
            facts=facts_of(self.describe(), region=REGION), upkeep=PlayedUpkeep(), on_change=self._on_change,
            max_kill_timeout_s=MAX_KILL_TIMEOUT_S,
        )  # fmt: skip
        self._talk = ServerTalk(world, client, identity, self.works, self._describe, name=looks.name)

    async def run(self) -> None:
        """Until cancelled, or killed."""
        self.works.load(self._journal.load(), is_other_boot=self._journal.was_other_boot)
        parts = (self._driver.run(), self.works.keep_time(), self._talk.run(), self._mend_journal())
        await asyncio.gather(*[self._world.start(part, name=f"{self._looks.name} part") for part in parts])

    def describe(self) -> Node:
        return describe(self.id, self._looks, self._world.now_ns())

    async def _describe(self) -> Node:
        return self.describe()

    def _on_change(self, allocation_id: str) -> None:
        self._talk.changed(allocation_id)

    async def _mend_journal(self) -> None:
        while True:
            await asyncio.sleep(MEND_EVERY_S)
            self._journal.mend()

    async def on_supervisor(self) -> None:
        await self.works.recover(self._driver)
        for run in self._driver.runs():
            if not self.works.is_wanted(run):
                self._driver.kill(run)
                self.works.when_kept(partial(self._driver.forget, run))

    # -- what the driver says (the port `Watcher`)

    def on_begun(self, run: str) -> None:
        self.works.on_begun(run)

    def on_ended(self, run: str, outcome: Outcome) -> None:
        if self.works.is_wanted(run):
            self.works.on_ended(run, outcome)
        else:
            self.works.when_kept(partial(self._driver.forget, run))
