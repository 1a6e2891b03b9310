"""A node of the simulation that consists of the product's own core, journal and server session.

Its disk, its supervisor and its programs are simulated (`machine`); it has no folders, and its tasks need no preparation.
`wharf.node.agent.node_agent` connects the same parts in the same way.
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
from wharf.contract.model.jobs.step_outputs import ReportedOutputs
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

TextReader = Callable[[str, Collection[str]], dict[str, str]]
"""Returns the text outputs of an allocation with these names."""


class SimulatedFolders(AllocationFolders):
    """The folders of allocations. None of them exists on a disk. `read_texts` returns what programs wrote."""

    def __init__(self, read_texts: TextReader = lambda _allocation_id, _names: {}) -> None:
        self._root = Path("/nowhere")
        self._read_texts = read_texts

    def create_task_folders(self, allocation_id: str, task: str) -> TaskFolders:
        return self.get_task_folders(allocation_id, task)

    def move_predecessor_data(self, *_: str) -> None:
        return

    def create_outputs_file(self, _allocation_id: str) -> None:
        return

    def read_outputs(self, allocation_id: str, names: Collection[str], _max_bytes: int) -> ReportedOutputs:
        return ReportedOutputs(texts=self._read_texts(allocation_id, names))

    def list_allocations(self) -> list[str]:
        return []

    def remove_folder(self, _allocation_id: str) -> None:
        return


class SimulatedTaskHooks:
    """Hooks that do nothing: simulated tasks need no preparation and register no services."""

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

    def on_record_changed(self, _allocation: object) -> None:
        return

    def list_services(self, _allocation: object) -> tuple[ServiceRegistration, ...]:
        return ()

    def release(self, *_: object) -> None:
        return


class SimulatedDriver:
    """The driver of all tasks. Messages to the supervisor are delayed, stay in order, and may be lost."""

    name = "mock"
    view = View.OWN

    def __init__(self, process: Process, machine: SimulatedMachine, node: "CoreNode", random: Random) -> None:
        self._process = process
        self._machine = machine
        self._node = node
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._connection_number = 0
        self._is_connected = asyncio.Event()
        self._is_disconnected = asyncio.Event()
        self._reports: dict[str, RunReport] = {}
        self._last_send_s = self._last_report_s = 0.0

    # -- the connection to the supervisor

    async def run(self) -> None:
        """Connect to the supervisor again after each disconnection, until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0.01, 0.3))
            self._is_disconnected.clear()
            self._connection_number, reports = self._machine.connect(self)
            await asyncio.sleep(self._random.uniform(0.001, 0.02))
            self._reports = {report.run: report for report in reports} | self._reports
            self._is_connected.set()
            await self._node.on_supervisor_connected()
            await self._is_disconnected.wait()
            self._is_connected.clear()
            self._reports = {}

    def _send(self, request: Callable[[str], None], run: str) -> None:
        connection_number, machine = self._connection_number, self._machine
        self._last_send_s = max(self._last_send_s + 0.000_001, self._loop.time() + self._random.uniform(0.000_1, 0.003))
        machine.deliver_at(self._last_send_s, connection_number, lambda: request(run))

    def receive_report(self, report: RunReport) -> None:
        self._last_report_s = max(
            self._last_report_s + 0.000_001, self._loop.time() + self._random.uniform(0.000_1, 0.003)
        )
        self._process.run(self._loop.call_at, self._last_report_s, self._on_report, self._connection_number, report)

    def on_disconnected(self) -> None:
        self._process.run(self._loop.call_soon, self._is_disconnected.set)

    def _on_report(self, connection_number: int, report: RunReport) -> None:
        if connection_number != self._connection_number or self._is_disconnected.is_set():
            return
        self._reports[report.run] = report
        if self._is_connected.is_set():
            self._notify_node(report)

    def _notify_node(self, report: RunReport) -> None:
        if report.outcome is not None:
            self._node.run_events.on_ended(report.run, report.outcome)
        elif report.has_started:
            self._node.run_events.on_begun(report.run)

    def list_runs(self) -> list[str]:
        return list(self._reports)

    # -- the methods of a `Driver`

    async def probe(self) -> Health:
        return Health(is_healthy=True)

    async def start(self, order: TaskOrder) -> None:
        if order.config.get("start_error"):
            raise CannotStart(str(order.config["start_error"]))
        allocation = self._node.allocations.find(order.allocation_id)
        assert allocation is not None, "only tasks of known allocations are started"
        group = allocation.job.find_group(allocation.assignment.allocation.task_group)
        assert group is not None, "the job of an allocation has its group"
        step_texts = allocation.assignment.allocation.step_outputs or {}
        task_start = TaskStart(order.run, order.allocation_id, order.task, group, order.config, step_texts)
        self._send(lambda _run: self._machine.start(task_start), order.run)

    async def recover(self, runs: Collection[str]) -> None:
        await self._is_connected.wait()
        for run in runs:
            report = self._reports.get(run)
            if report is None:
                self._node.run_events.on_ended(run, UNKNOWN)
            else:
                self._notify_node(report)

    def signal(self, run: str, _name: str) -> None:
        self._send(self._machine.signal, run)

    def give_up(self, run: str) -> None:
        """Do nothing: the run starts soon, and the core stops it then."""

    def kill(self, run: str) -> None:
        self._send(self._machine.kill, run)

    def forget(self, run: str) -> None:
        self._reports.pop(run, None)
        self._send(self._machine.delete_run, run)


class CoreNode:
    """The agent of a node, from one start to its end."""

    def __init__(
        self, world: World, client: AsyncClient, node_profile: FakeMachine, identity: NodeCredentials, machine: SimulatedMachine,
        process: Process, random: Random,
    ) -> None:  # fmt: skip
        self.id = identity.id
        self._world = world
        self._node_profile = node_profile
        self._journal = NodeJournal(machine.disk, machine.boot_id)
        self._driver = SimulatedDriver(process, machine, self, random)
        host = TaskHost(node_profile.datacenter, REGION, "10.0.0.1", node_id=identity.id, node_name=node_profile.name)
        self.allocations, folders, hooks = (
            AllocationTable(self._journal),
            SimulatedFolders(machine.read_texts),
            SimulatedTaskHooks(),
        )
        self._manager = AllocationManager(
            world, self._journal, self.allocations, folders, {"mock": self._driver}, host=host,
            reference_values=build_reference_values(self.build_node(), region=REGION), task_hooks=hooks,
            on_change=self._on_change, max_kill_timeout_s=MAX_KILL_TIMEOUT_S,
        )  # fmt: skip
        self.run_events = RunEvents(self._manager, self._delete_when_stored)
        files = EndedAllocationFiles(self.allocations, folders)
        handler = LocalAssignmentHandler(self._manager, self._journal, files, hooks, read_monotonic_s=world.monotonic_s)
        self._session = ServerSession(world, client, identity, handler, self._describe, log_name=node_profile.name)

    async def run(self) -> None:
        """Restore the journal, and run the parts of the agent until cancelled or killed."""
        self._manager.restore(self._journal.load(), has_rebooted=self._journal.has_rebooted)
        parts = (self._driver.run(), self._manager.run_deadlines(), self._session.run(), self._retry_journal_writes())
        await asyncio.gather(*[self._world.start_task(part, name=f"{self._node_profile.name} part") for part in parts])

    def build_node(self) -> Node:
        return build_fake_node(self.id, self._node_profile, self._world.now_ns())

    async def _describe(self) -> Node:
        return self.build_node()

    def _on_change(self, allocation_id: str) -> None:
        self._session.mark_changed(allocation_id)

    async def _retry_journal_writes(self) -> None:
        while True:
            await asyncio.sleep(JOURNAL_RETRY_INTERVAL_S)
            self._journal.retry_write()

    async def on_supervisor_connected(self) -> None:
        await self._manager.recover_driver(self._driver)
        for run in self._driver.list_runs():
            if not self.allocations.is_current_run(run):
                self._driver.kill(run)
                self._delete_when_stored(run)

    def _delete_when_stored(self, run: str) -> None:
        self._manager.tasks.run_when_stored(partial(self._driver.forget, run))
