"""A node of the simulation that is the product's own: its core, what drives it, its journal, its talk with servers.

Played are its disk, its supervisor and its programs (`machine`), that it has folders, and what goes on around tasks. It is put together as
`wharf.node.agent.node_agent` does it.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from simulation.machine import RunReport, SimulatedMachine, TaskStart
from simulation.process import Process
from wharf.contract.client import AsyncClient
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.services import ServiceRegistration
from wharf.node.agent.allocations.assignments import LocalAssignmentHandler
from wharf.node.agent.allocations.ended_files import EndedAllocationFiles
from wharf.node.agent.allocations.journal import NodeJournal
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.agent.allocations.run_events import RunEvents
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.agent.servers.session import ServerSession
from wharf.node.core.outcome import UNKNOWN
from wharf.node.credentials import NodeCredentials
from wharf.node.devices.port import NOTHING_RESERVED, Reserved
from wharf.node.drivers.port import CannotStart, Health, TaskOrder, View
from wharf.node.fake_node import FakeMachine, build_fake_node
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.folders import AllocationFolders, TaskFolders
from wharf.node.tasks.interpolation import build_reference_values
from wharf.world import World

JOURNAL_RETRY_INTERVAL_S: Final = 1.0
REGION: Final = "global"
MAX_KILL_TIMEOUT_S: Final = 30.0


class SimulatedFolders(AllocationFolders):
    """Nothing is on any disk."""

    def __init__(self) -> None:
        self._root = Path("/nowhere")

    def create_task_folders(self, allocation_id: str, task: str) -> TaskFolders:
        return self.get_task_folders(allocation_id, task)

    def move_predecessor_data(self, *_: str) -> None:
        return

    def list_allocations(self) -> list[str]:
        return []

    def remove_folder(self, _allocation_id: str) -> None:
        return


class SimulatedTaskHooks:
    """Tasks here need nothing, and no service is checked."""

    async def prepare_task(self, *_: object) -> None:
        return

    async def ensure_prepared(self, *_: object) -> None:
        return

    def build_environment(self, *_: str) -> dict[str, str]:
        return {}

    def find_network(self, _allocation_id: str) -> None:
        return

    def find_network_status(self, _allocation_id: str) -> None:
        return

    def find_device_reservation(self, *_: str) -> Reserved:
        return NOTHING_RESERVED

    def on_record_changed(self, _work: object) -> None:
        return

    def list_services(self, _work: object) -> tuple[ServiceRegistration, ...]:
        return ()

    def release(self, *_: object) -> None:
        return


class SimulatedDriver:
    """The driver of all tasks: what is said to the supervisor takes a while, keeps its order, and may never arrive."""

    name = "mock"
    view = View.OWN

    def __init__(self, process: Process, machine: SimulatedMachine, node: "CoreNode", random: Random) -> None:
        self._process = process
        self._machine = machine
        self._node = node
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._link = 0
        self._is_told = asyncio.Event()
        self._is_lost = asyncio.Event()
        self._known: dict[str, RunReport] = {}
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
            await self._node.on_supervisor_connected()
            await self._is_lost.wait()
            self._is_told.clear()
            self._known = {}

    def _say(self, deed: Callable[[str], None], run: str) -> None:
        link, machine = self._link, self._machine
        self._said_s = max(self._said_s + 0.000_001, self._loop.time() + self._random.uniform(0.000_1, 0.003))
        machine.deliver_at(self._said_s, link, lambda: deed(run))

    def receive_report(self, report: RunReport) -> None:
        self._heard_s = max(self._heard_s + 0.000_001, self._loop.time() + self._random.uniform(0.000_1, 0.003))
        self._process.run(self._loop.call_at, self._heard_s, self._take, self._link, report)

    def on_disconnected(self) -> None:
        self._process.run(self._loop.call_soon, self._is_lost.set)

    def _take(self, link: int, told: RunReport) -> None:
        if link != self._link or self._is_lost.is_set():
            return
        self._known[told.run] = told
        if self._is_told.is_set():
            self._pass_on(told)

    def _pass_on(self, told: RunReport) -> None:
        if told.outcome is not None:
            self._node.run_events.on_ended(told.run, told.outcome)
        elif told.has_begun:
            self._node.run_events.on_begun(told.run)

    def list_runs(self) -> list[str]:
        return list(self._known)

    # -- the port `Driver`

    async def probe(self) -> Health:
        return Health(is_healthy=True)

    async def start(self, order: TaskOrder) -> None:
        if order.config.get("start_error"):
            raise CannotStart(str(order.config["start_error"]))
        work = self._node.allocations.find(order.allocation_id)
        assert work is not None, "what is started is known"
        group = work.job.find_group(work.assignment.allocation.task_group)
        assert group is not None, "and is of a group"
        ordered = TaskStart(order.run, order.allocation_id, order.task, group, order.config)
        self._say(lambda _run: self._machine.start(ordered), order.run)

    async def recover(self, runs: Collection[str]) -> None:
        await self._is_told.wait()
        for run in runs:
            told = self._known.get(run)
            if told is None:
                self._node.run_events.on_ended(run, UNKNOWN)
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
        self, world: World, client: AsyncClient, node_profile: FakeMachine, identity: NodeCredentials, machine: SimulatedMachine,
        process: Process, random: Random,
    ) -> None:  # fmt: skip
        self.id = identity.id
        self._world = world
        self._looks = node_profile
        self._journal = NodeJournal(machine.disk, machine.boot_id)
        self._driver = SimulatedDriver(process, machine, self, random)
        place = TaskHost(node_profile.datacenter, REGION, "10.0.0.1", node_id=identity.id, node_name=node_profile.name)
        self.allocations, folders, hooks = AllocationTable(self._journal), SimulatedFolders(), SimulatedTaskHooks()
        self._manager = AllocationManager(
            world, self._journal, self.allocations, folders, {"mock": self._driver}, host=place,
            reference_values=build_reference_values(self.build_node(), region=REGION), task_hooks=hooks,
            on_change=self._on_change, max_kill_timeout_s=MAX_KILL_TIMEOUT_S,
        )  # fmt: skip
        self.run_events = RunEvents(self._manager, self._forget_when_stored)
        files = EndedAllocationFiles(self.allocations, folders)
        handler = LocalAssignmentHandler(self._manager, self._journal, files, hooks)
        self._talk = ServerSession(world, client, identity, handler, self._describe, log_name=node_profile.name)

    async def run(self) -> None:
        """Until cancelled, or killed."""
        self._manager.restore(self._journal.load(), has_rebooted=self._journal.has_rebooted)
        parts = (self._driver.run(), self._manager.run_deadlines(), self._talk.run(), self._mend_journal())
        await asyncio.gather(*[self._world.start_task(part, name=f"{self._looks.name} part") for part in parts])

    def build_node(self) -> Node:
        return build_fake_node(self.id, self._looks, self._world.now_ns())

    async def _describe(self) -> Node:
        return self.build_node()

    def _on_change(self, allocation_id: str) -> None:
        self._talk.mark_changed(allocation_id)

    async def _mend_journal(self) -> None:
        while True:
            await asyncio.sleep(JOURNAL_RETRY_INTERVAL_S)
            self._journal.retry_write()

    async def on_supervisor_connected(self) -> None:
        await self._manager.recover_driver(self._driver)
        for run in self._driver.list_runs():
            if not self.allocations.is_current_run(run):
                self._driver.kill(run)
                self._forget_when_stored(run)

    def _forget_when_stored(self, run: str) -> None:
        self._manager.tasks.run_when_stored(partial(self._driver.forget, run))
