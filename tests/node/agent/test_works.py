"""What the node's journal remembers of orders, and of what followed from them."""

import asyncio
from collections.abc import Collection
from contextvars import copy_context
from random import Random

import pytest
from msgspec.structs import replace

from simulation.core_node import MAX_KILL_TIMEOUT_S, REGION, PlayedFolders, PlayedUpkeep
from simulation.loop import SimulatedLoop
from simulation.machine import PlayedDisk
from tests.builders import a_group, a_job, a_task
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.model.allocation import DesiredStatus
from wharf.node.agent.environment import Place
from wharf.node.agent.interpolation import facts_of
from wharf.node.agent.journal import Journal, entry_end
from wharf.node.agent.works import Works
from wharf.node.drivers.port import Health, TaskOrder, View
from wharf.node.fake import FakeMachine, describe
from wharf.wire.shapes import DesiredAllocation, DesiredWork
from wharf.world import SimulatedWorld

BOOT = "boot-1"


class Patient:
    """A driver whose runs begin at once, and never end."""

    name = "mock"
    view = View.OWN

    def __init__(self) -> None:
        self.works: Works | None = None

    async def probe(self) -> Health:
        return Health(is_healthy=True)

    async def start(self, order: TaskOrder) -> None:
        assert self.works is not None
        self.works.on_begun(order.run)

    async def recover(self, *_: Collection[str]) -> None:
        return

    def signal(self, *_: str) -> None:
        return

    def give_up(self, *_: str) -> None:
        return

    def kill(self, *_: str) -> None:
        return

    def forget(self, *_: str) -> None:
        return


def a_disk(data: bytes = b"") -> PlayedDisk:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    disk = PlayedDisk(loop, Random(1), copy_context())
    disk.append(data)
    return disk


def works_of(disk: PlayedDisk) -> Works:
    driver, looks, journal = Patient(), FakeMachine(name="node-1"), Journal(disk, BOOT)
    world = SimulatedWorld(7, asyncio.get_running_loop().time, member="node-1")
    works = Works(
        world, journal, PlayedFolders(), {"mock": driver},
        place=Place(looks.datacenter, REGION, "10.0.0.1", node_id="n1", node_name=looks.name),
        facts=facts_of(describe("n1", looks, 0), region=REGION), upkeep=PlayedUpkeep(), on_change=lambda _id: None,
        max_kill_timeout_s=MAX_KILL_TIMEOUT_S,
    )  # fmt: skip
    driver.works = works
    works.load(journal.load(), is_other_boot=False)
    return works


RUN = DesiredAllocation(
    allocation=DesiredWork(id="a1", task_group="web", alloc_modify_index=5, deployment_id="d1"),
    job=a_job("shop", a_group("web", a_task("server", driver="mock"))),
)
STOP = replace(RUN, allocation=replace(RUN.allocation, alloc_modify_index=9, desired_status=DesiredStatus.STOP))


@pytest.mark.parametrize("is_gone", [False, True], ids=["it is to stop", "servers do not know it any more"])
@in_virtual_time
async def test_wherever_the_journal_is_cut_off_no_order_is_remembered_without_what_follows_from_it(
    is_gone: bool,
) -> None:
    disk = a_disk()
    works = works_of(disk)
    works.take(RUN)
    await pass_time(1.0)
    if is_gone:
        works.drop("a1")
    else:
        works.take(STOP)

    data = disk.read()
    ends = [0]
    while (end := entry_end(data, ends[-1])) is not None:
        ends.append(end)
    found = []
    for end in ends:
        cut = works_of(a_disk(data[:end]))
        work = cut.find("a1")
        if work is not None:
            is_told_again = cut.seen_index("a1") == RUN.allocation.alloc_modify_index and "a1" in cut.known()
            found.append((is_told_again, work.record.is_to_stop))

    assert ((True, False), (False, True)) == (found[0], found[-1])
    assert (False, False) not in found
