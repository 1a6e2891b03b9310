"""The identities of a task are signed once and again before they expire, but not after a restart of the agent."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.contract.client import Unreachable
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.identities import WorkloadIdentity
from wharf.contract.model.times import SECOND
from wharf.contract.wire.nodes.messages import SignedIdentity
from wharf.node.drivers.port import View
from wharf.node.tasks.context import TaskContext
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.identities.tokens import TaskIdentities
from wharf.node.tasks.interpolation import ReferenceValues
from wharf.world import SimulatedWorld, World

TTL_S = 100


class FakeServers:
    """Servers whose tokens contain the number of the request, or that cannot be reached."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.request_count = 0
        self.are_unreachable = False
        self.clock_lag_ns = 0
        """How far their clock is behind the node's clock."""

    async def sign_identities(self, _alloc: str, _task: str, names: Sequence[str]) -> Sequence[SignedIdentity]:
        if self.are_unreachable:
            raise Unreachable("no server replied", is_sent=False)
        self.request_count += 1
        assert self.request_count < 20, "too many requests"
        now_ns = self._world.now_ns() - self.clock_lag_ns
        return [
            SignedIdentity(
                name=name, jwt=f"{name}-{self.request_count}", issued=now_ns, expires=now_ns + TTL_S * SECOND
            )
            for name in names
        ]


class RecordedTaskControl:
    """A `TaskControl` that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def record_event(self, event_type: TaskEventType, message: str = "", **_details: str) -> None:
        self.calls.append(f"{event_type}: {message}")

    def restart_task(self, reason: str) -> None:
        self.calls.append(reason)

    def signal_task(self, name: str, reason: str) -> None:
        self.calls.append(f"{name}: {reason}")

    async def run_command(self, _command: tuple[str, ...], *, timeout_s: float) -> tuple[int, str]:
        raise AssertionError(f"no command is expected timeout_s={timeout_s}")


def build_context(folder: Path) -> TaskContext:
    short = WorkloadIdentity(name="short", ttl=TTL_S * SECOND, file=True, change_mode="restart")
    task = Task(name="t", driver="raw_exec", identities=(short,))
    (folder / "secrets").mkdir(exist_ok=True)
    (folder / "private").mkdir(exist_ok=True)
    return TaskContext("a1", "default", "global", task, TaskFolders(folder, folder), View.HOST, {}, ReferenceValues({}))


def create_world() -> SimulatedWorld:
    return SimulatedWorld(7, asyncio.get_running_loop().time)


@in_virtual_time
async def test_an_identity_is_renewed_after_half_its_lifetime_and_not_by_a_restarted_agent(
    tmp_path: Path,
) -> None:
    world, task_control, context = create_world(), RecordedTaskControl(), build_context(tmp_path)
    servers, file = FakeServers(world), tmp_path / "secrets" / "nomad_short.jwt"
    await TaskIdentities(world, servers, context).prepare_task(task_control.record_event)
    await pass_time(TTL_S * 0.3)

    renewing = world.start_task(
        TaskIdentities(world, servers, context).keep_renewed(task_control), name="the next agent"
    )
    await pass_time(TTL_S * 0.1)
    before = (file.read_text(), list(task_control.calls))
    await pass_time(TTL_S * 0.2)
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)

    assert before == ("short-1", [])
    assert (file.read_text(), task_control.calls) == ("short-3", ["identity short was renewed"])


@in_virtual_time
async def test_a_node_clock_ahead_of_the_servers_renews_no_identity_early(tmp_path: Path) -> None:
    world, task_control = create_world(), RecordedTaskControl()
    servers = FakeServers(world)
    servers.clock_lag_ns = TTL_S * SECOND
    identities = TaskIdentities(world, servers, build_context(tmp_path))
    await identities.prepare_task(task_control.record_event)

    renewing = world.start_task(identities.keep_renewed(task_control), name="renews identities")
    await pass_time(TTL_S * 0.6)
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)

    assert (2, ["identity short was renewed"]) == (servers.request_count, task_control.calls)


@in_virtual_time
async def test_an_identity_is_renewed_in_time_after_the_clock_of_the_node_was_set_back(tmp_path: Path) -> None:
    world, task_control = create_world(), RecordedTaskControl()
    servers = FakeServers(world)
    identities = TaskIdentities(world, servers, build_context(tmp_path))
    await identities.prepare_task(task_control.record_event)
    world.clock_offset_ns -= 1_000 * TTL_S * SECOND

    renewing = world.start_task(identities.keep_renewed(task_control), name="renews identities")
    await pass_time(TTL_S * 0.6)
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)

    assert (2, ["identity short was renewed"]) == (servers.request_count, task_control.calls)


@in_virtual_time
async def test_a_task_waits_for_unreachable_servers_and_its_history_shows_that(tmp_path: Path) -> None:
    world, task_control = create_world(), RecordedTaskControl()
    servers = FakeServers(world)
    servers.are_unreachable = True
    identities = TaskIdentities(world, servers, build_context(tmp_path))
    preparing = world.start_task(identities.prepare_task(task_control.record_event), name="prepare")

    await pass_time(20)
    while_unreachable = (preparing.done(), task_control.calls)
    servers.are_unreachable = False
    await pass_time(30)

    assert while_unreachable == (False, ["Task hook message: waiting for its identity to be signed: no server replied"])
    assert (preparing.done(), (tmp_path / "secrets" / "nomad_short.jwt").read_text()) == (True, "short-1")
