"""A node that runs nothing: it registers, sends heartbeats and reports the states that the job's configuration
describes.

For development, simulation, tests and benchmarks. It uses the server session of a real node, so servers cannot detect
the difference. The described behavior is the configuration of the `mock` driver: `run_for` (nanoseconds or a duration
such as 5s), `exit_code`, `start_error`, and `go_silent`, the duration for which the whole node neither sends nor
receives anything, beginning `go_silent_after` (default 1 s) after the start of the task.
"""

import asyncio
from collections.abc import Container, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

import msgspec

from wharf import __version__
from wharf.contract.client import AsyncClient, ClientReply, ClientRequest, Transport
from wharf.contract.client.transport import StreamedReply
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.nodes.node import DriverInfo, Node
from wharf.contract.model.nodes.resources import NodeCpu, NodeDisk, NodeMemory, NodeResources
from wharf.contract.model.times import SECOND, to_datetime
from wharf.contract.wire.nodes import messages
from wharf.node.agent.servers.session import ServerSession
from wharf.node.credentials import NodeCredentials
from wharf.node.drivers.mock import read_duration_s, read_int
from wharf.world import World

DEFAULT_BATCH_RUN_S: Final = 1.0
DEFAULT_SILENT_AFTER_S: Final = 1.0
DRIVER_NAMES: Final = ("mock", "mock_driver", "raw_exec", "exec", "docker")
"""A fake node claims every driver, so that any job can be tried on it."""
PRODUCT_ATTRIBUTES: Final = {"version": __version__, "service_discovery": "true"}
"""Attributes that exist under both product names."""


class FakeMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that a fake node reports to servers."""

    name: str
    datacenter: str = "dc1"
    node_class: str = ""
    cpu_mhz: int = 4_000
    memory_mb: int = 8_192
    disk_mb: int = 100_000


class _FakeAllocation(msgspec.Struct):
    """An allocation of a fake node, with its simulated state."""

    id: str
    seen_index: int  # the modify index of its latest assignment
    status: ClientStatus = ClientStatus.PENDING
    end_timer: asyncio.TimerHandle | None = None  # ends the allocation
    tasks: tuple[str, ...] = ("task",)
    started_ns: int = 0
    finished_ns: int = 0
    deployment_id: str = ""
    is_health_watched: bool = False
    """Whether a deployment or a drain waits for its health."""
    min_healthy_s: float = 0.0  # how long it must run to be healthy
    healthy: bool | None = None
    """`None`: not decided yet."""
    is_killed: bool = False
    """Whether it was stopped before its end. Servers must not take it for completed batch work."""
    is_end_acknowledged: bool = False
    """Whether servers have acknowledged that it has ended."""
    healthy_timer: asyncio.TimerHandle | None = None  # makes the allocation healthy
    script: "_SimulatedBehavior | None" = None
    """The simulated behavior of its tasks; `None` before they have started."""


class _SilenceableTransport:
    """A transport of the API client that delays requests and replies while the fake node is silent.

    Each request uses one of the `request_slots` that the fake nodes of a process share; blocking queries use none.
    """

    def __init__(
        self, transport: Transport, can_communicate: asyncio.Event, request_slots: asyncio.Semaphore | None
    ) -> None:
        self._transport = transport
        self._can_communicate = can_communicate
        self._request_slots = request_slots

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send a request and return the reply. Both wait until the node may communicate."""
        await self._can_communicate.wait()
        async with self._get_slot(request):
            reply = await self._transport.send(request)
        await self._can_communicate.wait()
        return reply

    def _get_slot(self, request: ClientRequest) -> AbstractAsyncContextManager[None]:
        """Return the slots if the request needs one. A blocking query takes no time of a server while it waits."""
        is_blocking = any(name == "index" for name, _ in request.query)
        return nullcontext() if self._request_slots is None or is_blocking else self._request_slots

    async def open(self, request: ClientRequest) -> StreamedReply:
        """Wait until the node may communicate, then open a stream."""
        await self._can_communicate.wait()
        return await self._transport.open(request)

    async def close(self) -> None:
        """Do nothing: the wrapped transport belongs to the client."""


class FakeNode:
    """A node that runs nothing, but registers and reports simulated allocations like a real node."""

    def __init__(
        self,
        world: World,
        client: AsyncClient,
        machine: FakeMachine,
        *,
        identity: NodeCredentials | None = None,
        request_slots: asyncio.Semaphore | None = None,
    ) -> None:
        """Create a fake node; without `identity` it gets a new id and a new secret.

        `request_slots` limits how many requests the nodes that share it send at the same time; `None` means no limit.
        """
        identity = identity or NodeCredentials(world.new_id(), world.new_secret())
        self.id = identity.id
        self._world = world
        self._machine = machine
        self._allocations: dict[str, _FakeAllocation] = {}
        self._can_communicate = asyncio.Event()
        self._can_communicate.set()
        self._silence_timers: list[asyncio.TimerHandle] = []
        """The timers that begin and end the silence."""
        silenceable_client = client.with_transports(
            lambda transport: _SilenceableTransport(transport, self._can_communicate, request_slots)
        )
        self._session = ServerSession(
            world, silenceable_client, identity, self, self._build_node_async, log_name=machine.name
        )

    @property
    def is_registered(self) -> asyncio.Event:
        """Set once a server has accepted the node's registration and first heartbeat."""
        return self._session.is_registered

    async def run(self) -> None:
        """Run the node until canceled."""
        try:
            await self._session.run()
        finally:
            for allocation in self._allocations.values():
                self._cancel_timers(allocation)
            for timer in self._silence_timers:
                timer.cancel()

    async def _build_node_async(self) -> Node:
        return self.build_node()

    def build_node(self) -> Node:
        """Return the description that the fake node registers with."""
        return build_fake_node(self.id, self._machine, self._world.now_ns())

    # -- assignments and reports (implements `AssignmentHandler`)

    def find_assignment_index(self, allocation_id: str) -> int | None:
        """Return the modify index of the last assignment of this allocation; `None` if the allocation is unknown."""
        allocation = self._allocations.get(allocation_id)
        return allocation.seen_index if allocation is not None else None

    def list_allocations(self) -> list[str]:
        """Return the ids of all allocations."""
        return list(self._allocations)

    def has_allocation(self, allocation_id: str) -> bool:
        """Return whether the node has the allocation."""
        return allocation_id in self._allocations

    def is_end_acknowledged(self, allocation_id: str) -> bool:
        """Return whether servers have acknowledged that the allocation has ended."""
        allocation = self._allocations.get(allocation_id)
        return allocation is not None and allocation.is_end_acknowledged

    def drop_allocation(self, allocation_id: str) -> None:
        """Delete the allocation and cancel its timers. Raises `KeyError` if it is unknown."""
        self._cancel_timers(self._allocations.pop(allocation_id))

    def list_held(self) -> list[str]:
        """Return nothing: fake nodes forget their allocations when they end."""
        return []

    def confirm_allocation(self, allocation_id: str) -> None:
        """Do nothing: no allocation is held."""

    def end_allocations(self, assignments: Sequence[messages.Assignment]) -> None:
        """Do nothing: no allocation is held."""

    def list_droppable(self, _cluster_id: str, known: Container[str]) -> list[str]:
        """Return the ids of the allocations that servers do not know."""
        return [id for id in self.list_allocations() if id not in known]

    def apply_assignment(self, assignment: messages.Assignment) -> None:
        """Start, update or stop the simulated allocation as the assignment requires.

        A new allocation or deployment also begins to wait for its health.
        """
        assigned, job = assignment.allocation, assignment.job
        is_new = assigned.id not in self._allocations
        allocation = self._allocations.setdefault(
            assigned.id, _FakeAllocation(assigned.id, 0, status=assigned.client_status)
        )
        allocation.seen_index = assigned.alloc_modify_index
        if allocation.status in (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST):
            return
        if assigned.desired_status is not DesiredStatus.RUN:
            allocation.is_killed = job is not None and job.is_finite
            self._finish(allocation, ClientStatus.COMPLETE)
        elif is_new:
            self._start(allocation, job, assigned.task_group)
        if is_new or allocation.deployment_id != assigned.deployment_id:
            # A new deployment needs a new decision, also for an allocation that is updated in place.
            allocation.deployment_id = assigned.deployment_id
            allocation.healthy = None
            is_service = job is not None and job.type == JobType.SERVICE
            allocation.is_health_watched = bool(allocation.deployment_id) or is_service
            allocation.min_healthy_s = _get_min_healthy_s(
                job, assigned.task_group, is_deployed=bool(allocation.deployment_id)
            )
            self._decide_health(allocation)

    def build_update(self, allocation_id: str) -> messages.AllocationUpdate:
        """Return the report about the allocation's simulated state."""
        allocation = self._allocations[allocation_id]
        states = {ClientStatus.RUNNING: TaskStatus.RUNNING, ClientStatus.PENDING: TaskStatus.PENDING}
        state = TaskState(
            state=states.get(allocation.status, TaskStatus.DEAD),
            failed=allocation.status is ClientStatus.FAILED,
            started_at=to_datetime(allocation.started_ns) if allocation.started_ns else None,
            finished_at=to_datetime(allocation.finished_ns) if allocation.finished_ns else None,
            events=_build_failure_events(allocation),
        )
        return messages.AllocationUpdate(
            id=allocation_id,
            client_status=allocation.status,
            client_description=STATUS_DESCRIPTIONS.get(allocation.status, ""),
            task_states=dict.fromkeys(allocation.tasks, state),
            deployment_status=AllocDeploymentStatus(healthy=allocation.healthy)
            if allocation.healthy is not None
            else None,
        )

    async def wait_until_stored(self) -> None:
        """Return at once: a fake node stores nothing."""

    def on_end_acknowledged(self, allocation_id: str) -> None:
        """Leave the allocation out of full reports. Everything else stays: a fake node holds little data about it."""
        if (allocation := self._allocations.get(allocation_id)) is not None:
            allocation.is_end_acknowledged = True

    def on_server_contact(self) -> None:
        """Do nothing: simulated tasks continue with or without contact."""

    def on_server_silence(self, since_s: float) -> None:
        """Do nothing: simulated tasks continue with or without contact."""

    # -- simulated tasks

    def _start(self, allocation: _FakeAllocation, job: Job | None, group_name: str) -> None:
        """Start the simulated tasks: set the state and the timers that the job's configuration describes."""
        script = _read_behavior(job, group_name)
        allocation.script, allocation.tasks = script, script.tasks
        allocation.started_ns = self._world.now_ns()
        if script.start_error:
            self._finish(allocation, ClientStatus.FAILED)
            return
        allocation.status = ClientStatus.RUNNING
        self._session.mark_changed(allocation.id)
        if script.run_for_s is not None:
            ended = ClientStatus.FAILED if script.exit_code else ClientStatus.COMPLETE
            allocation.end_timer = asyncio.get_running_loop().call_later(
                script.run_for_s, self._finish, allocation, ended
            )

        if script.silent_s:
            self._go_silent(script.silent_after_s, script.silent_s)

    def _go_silent(self, after_s: float, duration_s: float) -> None:
        """Schedule a silence of `duration_s` that begins after `after_s`; it replaces an earlier one."""
        for timer in self._silence_timers:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._silence_timers = [
            loop.call_later(after_s, self._can_communicate.clear),
            loop.call_later(after_s + duration_s, self._can_communicate.set),
        ]

    def _decide_health(self, allocation: _FakeAllocation) -> None:
        """Make a failed allocation unhealthy, or start the timer that makes a running one healthy.

        Does nothing if no deployment or drain waits for its health.
        """
        if not allocation.is_health_watched:
            return
        if allocation.status is ClientStatus.FAILED:
            allocation.healthy = False
            self._session.mark_changed(allocation.id)
        elif allocation.status is ClientStatus.RUNNING and allocation.healthy_timer is None:
            loop = asyncio.get_running_loop()
            allocation.healthy_timer = loop.call_later(allocation.min_healthy_s, self._become_healthy, allocation)

    def _become_healthy(self, allocation: _FakeAllocation) -> None:
        """Mark the allocation as healthy and report it."""
        allocation.healthy_timer = None
        allocation.healthy = True
        self._session.mark_changed(allocation.id)

    def _finish(self, allocation: _FakeAllocation, status: ClientStatus) -> None:
        """End the simulated allocation with this status and report it."""
        self._cancel_timers(allocation)
        allocation.status = status
        self._decide_health(allocation)
        allocation.finished_ns = self._world.now_ns()
        self._session.mark_changed(allocation.id)

    @staticmethod
    def _cancel_timers(allocation: _FakeAllocation) -> None:
        """Cancel the timers that end the allocation or make it healthy."""
        for timer in (allocation.end_timer, allocation.healthy_timer):
            if timer is not None:
                timer.cancel()
        allocation.end_timer = allocation.healthy_timer = None


def build_fake_node(node_id: str, machine: FakeMachine, now_ns: int) -> Node:
    """Return the description of a fake node with this machine; all drivers are reported as healthy."""
    healthy = DriverInfo(
        attributes={},
        detected=True,
        healthy=True,
        health_description="fake",
        update_time=to_datetime(now_ns),
    )
    return Node(
        id=node_id,
        name=machine.name,
        datacenter=machine.datacenter,
        node_class=machine.node_class,
        attributes={
            "kernel.name": "linux",
            "kernel.arch": "x86_64",
            "cpu.arch": "amd64",
            "os.signals": "SIGHUP,SIGINT,SIGKILL,SIGQUIT,SIGTERM,SIGUSR1,SIGUSR2",
            "wharf.fake": "true",
            "unique.hostname": machine.name,
            # Both names: constraints that servers add use `wharf`, job files that were written for Nomad use `nomad`.
            **{
                f"{product}.{name}": value
                for product in ("wharf", "nomad")
                for name, value in PRODUCT_ATTRIBUTES.items()
            },
            **{f"driver.{name}": "1" for name in DRIVER_NAMES},
        },
        node_resources=NodeResources(
            cpu=NodeCpu(cpu_shares=machine.cpu_mhz, total_cpu_cores=max(1, machine.cpu_mhz // 1_000)),
            memory=NodeMemory(memory_mb=machine.memory_mb),
            disk=NodeDisk(disk_mb=machine.disk_mb),
        ),
        drivers=dict.fromkeys(DRIVER_NAMES, healthy),
    )


def _build_failure_events(allocation: _FakeAllocation) -> tuple[TaskEvent, ...] | None:
    """Return the task events of a failed allocation, or of a batch job's that was stopped; `None` for any other.

    Other events are left out, because simulated clusters have up to a million allocations.
    """
    if allocation.is_killed and allocation.status is ClientStatus.COMPLETE:
        return (TaskEvent(type=TaskEventType.KILLED, time=allocation.finished_ns),)
    if allocation.script is None or allocation.status is not ClientStatus.FAILED:
        return None
    if allocation.script.start_error:
        details = {"driver_error": allocation.script.start_error, "fails_task": "true"}
        return (TaskEvent(type=TaskEventType.DRIVER_FAILURE, time=allocation.finished_ns, details=details),)
    details = {"exit_code": str(allocation.script.exit_code)}
    return (TaskEvent(type=TaskEventType.TERMINATED, time=allocation.finished_ns, details=details),)


STATUS_DESCRIPTIONS: Final = {
    ClientStatus.RUNNING: "Tasks are running",
    ClientStatus.COMPLETE: "All tasks have completed",
    ClientStatus.FAILED: "Failed tasks",
}
"""The client description for each status."""


class _SimulatedBehavior(msgspec.Struct, frozen=True):
    """The behavior of the simulated tasks of an allocation."""

    run_for_s: float | None  # None: until they are stopped
    tasks: tuple[str, ...] = ("task",)  # their names
    exit_code: int = 0
    start_error: str = ""  # why the start fails; empty: it succeeds
    silent_s: float = 0.0  # how long the whole node is silent
    silent_after_s: float = 1.0  # from the start to the silence


def _read_behavior(job: Job | None, group_name: str) -> _SimulatedBehavior:
    """Return the simulated behavior that the configuration of the group's first task describes.

    By default, tasks of service jobs run until they are stopped, and tasks of batch jobs end after a second.
    """
    group = job.find_group(group_name) if job is not None else None
    if job is None or group is None or not group.tasks:
        return _SimulatedBehavior(None)
    config = group.tasks[0].config or {}
    run_for_s = read_duration_s(config, "run_for")
    if run_for_s is None and job.is_finite:
        run_for_s = DEFAULT_BATCH_RUN_S
    return _SimulatedBehavior(
        tasks=tuple(task.name for task in group.tasks),
        run_for_s=run_for_s,
        exit_code=read_int(config, "exit_code"),
        start_error=str(config.get("start_error") or ""),
        silent_s=read_duration_s(config, "go_silent") or 0.0,
        silent_after_s=read_duration_s(config, "go_silent_after") or DEFAULT_SILENT_AFTER_S,
    )


def _get_min_healthy_s(job: Job | None, group_name: str, *, is_deployed: bool) -> float:
    """Return how long the allocation must run to be healthy: from the group's `update` block if `is_deployed`, else
    `migrate`.

    0 if there is no such block.
    """
    group = job.find_group(group_name) if job is not None else None
    if group is None:
        return 0.0
    policy = group.update if is_deployed else group.migrate
    return policy.min_healthy_time / SECOND if policy is not None else 0.0
