"""The journal of a node contains an assignment only together with its effects."""

import asyncio
from collections.abc import Collection
from contextvars import copy_context
from random import Random

import pytest
from msgspec.structs import replace

from simulation.core_node import MAX_KILL_TIMEOUT_S, REGION, SimulatedFolders, SimulatedTaskHooks
from simulation.loop import SimulatedLoop
from simulation.machine import SimulatedDisk
from tests.builders import a_group, a_job, a_task
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.nodes.messages import AssignedAllocation, Assignment
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.agent.allocations.assignments import MAX_HOLD_S, LocalAssignmentHandler
from wharf.node.agent.allocations.ended_files import EndedAllocationFiles
from wharf.node.agent.allocations.journal import NodeJournal, find_entry_end
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.agent.allocations.run_events import RunEvents
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.core.outcome import UNKNOWN
from wharf.node.drivers.port import Health, TaskOrder, View
from wharf.node.fake_node import FakeMachine, build_fake_node
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.interpolation import build_reference_values
from wharf.world import SimulatedWorld

BOOT_ID = "boot-1"


class ImmediateDriver:
    """A driver whose runs begin at once and never end."""

    name = "mock"
    view = View.OWN

    def __init__(self) -> None:
        self.run_events: RunEvents | None = None
        self.started_runs: list[str] = []

    async def probe(self) -> Health:
        return Health(is_healthy=True)

    async def start(self, order: TaskOrder) -> None:
        assert self.run_events is not None
        self.started_runs.append(order.run)
        self.run_events.on_begun(order.run)

    async def recover(self, runs: Collection[str]) -> None:
        """Report that the runs have ended: the machine of a restored node runs nothing."""
        assert self.run_events is not None
        for run in runs:
            self.run_events.on_ended(run, UNKNOWN)

    def signal(self, *_: str) -> None:
        return

    def give_up(self, *_: str) -> None:
        return

    def kill(self, *_: str) -> None:
        return

    def forget(self, *_: str) -> None:
        return


def create_disk(data: bytes = b"") -> SimulatedDisk:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    disk = SimulatedDisk(loop, Random(1), copy_context())
    disk.append(data)
    return disk


class RestoredNode:
    """The allocations of a node that was restored from a journal on this disk."""

    def __init__(
        self, disk: SimulatedDisk, *, is_damaged: bool = False, hooks: SimulatedTaskHooks | None = None
    ) -> None:
        machine, journal = FakeMachine(name="node-1"), NodeJournal(disk, BOOT_ID)
        world = SimulatedWorld(7, asyncio.get_running_loop().time, member="node-1")
        self.allocations = AllocationTable(journal)
        self.driver, folders, hooks = ImmediateDriver(), SimulatedFolders(), hooks or SimulatedTaskHooks()
        driver = self.driver
        manager = AllocationManager(
            world,
            journal,
            self.allocations,
            folders,
            {"mock": driver},
            host=TaskHost(machine.datacenter, REGION, "10.0.0.1", node_id="n1", node_name=machine.name),
            reference_values=build_reference_values(build_fake_node("n1", machine, 0), region=REGION),
            task_hooks=hooks,
            on_change=lambda _id: None,
            max_kill_timeout_s=MAX_KILL_TIMEOUT_S,
        )
        driver.run_events = RunEvents(manager, lambda _run: None)
        files = EndedAllocationFiles(self.allocations, folders)
        self.handler = LocalAssignmentHandler(manager, journal, files, hooks, read_monotonic_s=world.monotonic_s)
        self.manager = manager
        manager.restore(journal.load(), has_rebooted=False)
        if is_damaged:
            journal.damage_text = "10 bytes at the end of the node's journal are missing"


RUN = Assignment(
    allocation=AssignedAllocation(id="a1", task_group="web", alloc_modify_index=5, deployment_id="d1"),
    job=a_job("shop", a_group("web", a_task("server", driver="mock"))),
)
STOP = replace(RUN, allocation=replace(RUN.allocation, alloc_modify_index=9, desired_status=DesiredStatus.STOP))


@pytest.mark.parametrize("is_gone", [False, True], ids=["stop requested", "unknown to servers"])
@in_virtual_time
async def test_a_truncated_journal_never_contains_an_assignment_without_its_effects(
    is_gone: bool,
) -> None:
    disk = create_disk()
    node = RestoredNode(disk)
    node.handler.apply_assignment(RUN)
    await pass_time(1.0)
    if is_gone:
        node.handler.drop_allocation("a1")
    else:
        node.handler.apply_assignment(STOP)

    data = disk.read()
    ends = [0]
    while (end := find_entry_end(data, ends[-1])) is not None:
        ends.append(end)
    states = []
    for end in ends:
        restored = RestoredNode(create_disk(data[:end]))
        allocation = restored.allocations.find("a1")
        if allocation is not None:
            is_sent_again = (
                restored.handler.find_assignment_index("a1") == RUN.allocation.alloc_modify_index
                and "a1" in restored.handler.list_allocations()
            )
            states.append((is_sent_again, allocation.record.is_to_stop))

    assert ((True, False), (False, True)) == (states[0], states[-1])
    assert (False, False) not in states


BATCH = replace(RUN, job=a_job("shop", a_group("web", a_task("server", driver="mock")), type="batch"))


async def restore_every_truncation(*, is_damaged: bool = False) -> list[RestoredNode]:
    """Return nodes whose journals end after each entry that a node wrote when it started an allocation."""
    disk = create_disk()
    node = RestoredNode(disk)
    node.handler.apply_assignment(BATCH)
    await pass_time(1.0)
    data, ends, nodes = disk.read(), [0], list[RestoredNode]()
    while (end := find_entry_end(data, ends[-1])) is not None:
        ends.append(end)
    for end in ends[3:]:
        restored = RestoredNode(create_disk(data[:end]), is_damaged=is_damaged)
        await restored.manager.recover_driver(restored.driver)
        await pass_time(20.0)
        nodes.append(restored)
    return nodes


async def stop_all(nodes: list[RestoredNode]) -> None:
    """Stop the allocations, so that no task of the loop is left."""
    for node in nodes:
        node.handler.apply_assignment(STOP)
    await pass_time(10.0)


@in_virtual_time
async def test_no_task_of_a_restored_allocation_starts_before_servers_confirm_it() -> None:
    nodes = await restore_every_truncation()

    held = [node.handler.list_held() for node in nodes]
    started_runs = [list(node.driver.started_runs) for node in nodes]
    await stop_all(nodes)

    assert ([["a1"]] * 3, [[]] * 3) == (held, started_runs)


@in_virtual_time
async def test_a_confirmed_allocation_starts_its_tasks() -> None:
    nodes = (await restore_every_truncation())[:2]
    for node in nodes:
        node.handler.confirm_allocation("a1")
    await pass_time(1.0)

    assert [["a1.0.1"]] * 2 == [node.driver.started_runs for node in nodes]


@pytest.mark.parametrize("status", [ClientStatus.COMPLETE, ClientStatus.FAILED])
@in_virtual_time
async def test_a_restored_allocation_that_has_ended_as_servers_know_is_not_started_again(status: ClientStatus) -> None:
    nodes = await restore_every_truncation()
    ended = replace(BATCH, allocation=replace(BATCH.allocation, client_status=status))
    for node in nodes:
        node.handler.end_allocations([ended])
    await pass_time(100.0)

    assert [([], [], True)] * 3 == [
        (node.driver.started_runs, node.handler.list_held(), node.handler.build_update("a1").client_status.is_terminal)
        for node in nodes
    ]
    assert status == nodes[0].handler.build_update("a1").client_status


@in_virtual_time
async def test_a_stop_of_a_held_allocation_needs_no_confirmation() -> None:
    nodes = await restore_every_truncation()
    for node in nodes:
        node.handler.apply_assignment(STOP)
    await pass_time(1.0)

    assert [([], True)] * 3 == [
        (node.driver.started_runs, node.handler.build_update("a1").client_status.is_terminal) for node in nodes
    ]


@pytest.mark.parametrize("is_damaged", [False, True])
@in_virtual_time
async def test_restored_tasks_start_without_servers_only_if_the_journal_is_complete(is_damaged: bool) -> None:
    nodes = await restore_every_truncation(is_damaged=is_damaged)
    node = nodes[0]
    now_s = asyncio.get_running_loop().time()
    node.handler.on_server_silence(now_s - MAX_HOLD_S + 1.0)
    await pass_time(0.1)
    early_starts = list(node.driver.started_runs)
    node.handler.on_server_silence(now_s - MAX_HOLD_S)
    await pass_time(1.0)
    late_starts = list(node.driver.started_runs)
    await stop_all(nodes)

    assert ([], [] if is_damaged else ["a1.0.1"]) == (early_starts, late_starts)


class FailingTaskHooks(SimulatedTaskHooks):
    """Hooks of a node with a mistake that shows only for the allocation `a1`."""

    def on_record_changed(self, allocation: object) -> None:
        _fail_for_first(allocation)

    def list_services(self, allocation: object) -> tuple[ServiceRegistration, ...]:
        _fail_for_first(allocation)
        return ()


def _fail_for_first(allocation: object) -> None:
    assert isinstance(allocation, ManagedAllocation)
    if allocation.record.id == "a1":
        raise ZeroDivisionError


@in_virtual_time
async def test_an_unexpected_error_about_one_allocation_ends_neither_it_nor_others() -> None:
    node = RestoredNode(create_disk(), hooks=FailingTaskHooks())
    other = replace(RUN, allocation=replace(RUN.allocation, id="a2"))

    node.handler.apply_assignment(RUN)
    node.handler.apply_assignment(other)
    await pass_time(1.0)
    updates = [node.handler.build_update(id) for id in ("a1", "a2")]
    for assignment in (RUN, other):
        stopped = replace(assignment.allocation, alloc_modify_index=9, desired_status=DesiredStatus.STOP)
        node.handler.apply_assignment(replace(assignment, allocation=stopped))
    await pass_time(10.0)

    assert [("running", ()), ("running", ())] == [(update.client_status, update.services) for update in updates]
