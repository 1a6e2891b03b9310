"""A node that runs nothing: it registers, keeps its heart beating, and reports what a script says.

It talks to servers as a real node does (`agent.servers`), so they cannot tell them apart. For development, simulation,
tests and benchmarks. What its tasks do is told by the `mock` driver's configuration in the job: `run_for` (nanoseconds or a
duration as text), `exit_code`, `start_error`, and `go_silent`: for how long the whole node neither says nor hears anything,
from `go_silent_after` its task began (a second, where nothing is said).
"""

import asyncio
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
from wharf.contract.model.times import to_datetime
from wharf.contract.wire.nodes import messages
from wharf.contract.wire.times import DurationError, parse_duration_ns
from wharf.node.agent.servers.session import NodeCredentials, ServerSession
from wharf.world import World

SECOND_NS: Final = 1_000_000_000
DRIVER_NAMES: Final = ("mock", "mock_driver", "raw_exec", "exec", "docker")
"""A fake node claims every driver, so that any job can be tried on it."""


PRODUCT_ATTRIBUTES: Final = {"version": __version__, "service_discovery": "true"}


class FakeMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What the node claims to be."""

    name: str
    datacenter: str = "dc1"
    node_class: str = ""
    cpu_mhz: int = 4_000
    memory_mb: int = 8_192
    disk_mb: int = 100_000


class _Work(msgspec.Struct):
    """What the node knows of one allocation."""

    id: str
    seen_index: int
    status: ClientStatus = ClientStatus.PENDING
    ends: asyncio.TimerHandle | None = None
    tasks: tuple[str, ...] = ("task",)
    started_ns: int = 0
    finished_ns: int = 0
    deployment_id: str = ""
    is_judged: bool = False
    """Whether somebody waits for its health: its deployment, or whoever drains a node of its group."""
    min_healthy_s: float = 0.0
    healthy: bool | None = None
    """None: not decided yet."""
    becomes_healthy: asyncio.TimerHandle | None = None
    script: "_Script | None" = None
    """What it does, once it has begun."""


class _Muted:
    """The way to a server while the node may speak. What is on its way meanwhile comes when it may again."""

    def __init__(self, exchange: Transport, may_speak: asyncio.Event) -> None:
        self._exchange = exchange
        self._may_speak = may_speak

    async def send(self, request: ClientRequest) -> ClientReply:
        await self._may_speak.wait()
        reply = await self._exchange.send(request)
        await self._may_speak.wait()
        return reply

    async def open(self, request: ClientRequest) -> StreamedReply:
        await self._may_speak.wait()
        return await self._exchange.open(request)

    async def close(self) -> None:
        """It is another's."""


class FakeNode:
    def __init__(
        self, world: World, client: AsyncClient, machine: FakeMachine, *, identity: NodeCredentials | None = None
    ) -> None:
        """Without an identity it is a new node, known to nobody."""
        identity = identity or NodeCredentials(world.new_id(), world.new_secret())
        self.id = identity.id
        self._world = world
        self._machine = machine
        self._work: dict[str, _Work] = {}
        self._may_speak = asyncio.Event()
        self._may_speak.set()
        self._silences: list[asyncio.TimerHandle] = []
        """When it goes silent next, and when it speaks again."""
        muted = client.with_transports(lambda exchange: _Muted(exchange, self._may_speak))
        self._talk = ServerSession(world, muted, identity, self, self._describe, log_name=machine.name)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self._talk.run()
        finally:
            for known in self._work.values():
                self._end(known)
            for timer in self._silences:
                timer.cancel()

    async def _describe(self) -> Node:
        return self.build_node()

    def build_node(self) -> Node:
        return build_fake_node(self.id, self._machine, self._world.now_ns())

    # -- what servers say (the port `Work` of `agent.servers`)

    def find_assignment_index(self, allocation_id: str) -> int | None:
        work = self._work.get(allocation_id)
        return work.seen_index if work is not None else None

    def list_allocations(self) -> list[str]:
        return list(self._work)

    def has_allocation(self, allocation_id: str) -> bool:
        return allocation_id in self._work

    def drop_allocation(self, allocation_id: str) -> None:
        self._end(self._work.pop(allocation_id))

    def apply_assignment(self, order: messages.Assignment) -> None:
        allocation, job = order.allocation, order.job
        is_new = allocation.id not in self._work
        work = self._work.setdefault(allocation.id, _Work(allocation.id, 0, status=allocation.client_status))
        work.seen_index = allocation.alloc_modify_index
        if work.status in (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST):
            return
        if allocation.desired_status is not DesiredStatus.RUN:
            self._finish(work, ClientStatus.COMPLETE)
        elif is_new:
            self._start(work, job, allocation.task_group)
        if is_new or work.deployment_id != allocation.deployment_id:
            # A new deployment wants to know anew, also of what was updated in place.
            work.deployment_id = allocation.deployment_id
            work.healthy = None
            is_service = job is not None and job.type == JobType.SERVICE
            work.is_judged = bool(work.deployment_id) or is_service
            work.min_healthy_s = _min_healthy_s(job, allocation.task_group, is_deployed=bool(work.deployment_id))
            self._judge_health(work)

    def build_update(self, allocation_id: str) -> messages.AllocationUpdate:
        work = self._work[allocation_id]
        states = {ClientStatus.RUNNING: TaskStatus.RUNNING, ClientStatus.PENDING: TaskStatus.PENDING}
        state = TaskState(
            state=states.get(work.status, TaskStatus.DEAD),
            failed=work.status is ClientStatus.FAILED,
            started_at=to_datetime(work.started_ns) if work.started_ns else None,
            finished_at=to_datetime(work.finished_ns) if work.finished_ns else None,
            events=_why_it_failed(work),
        )
        return messages.AllocationUpdate(
            id=allocation_id,
            client_status=work.status,
            client_description=STATUS_DESCRIPTIONS.get(work.status, ""),
            task_states=dict.fromkeys(work.tasks, state),
            deployment_status=AllocDeploymentStatus(healthy=work.healthy) if work.healthy is not None else None,
        )

    async def wait_until_stored(self) -> None:
        """It keeps nothing."""

    def on_end_acknowledged(self, allocation_id: str) -> None:
        """What it remembers is little anyway."""

    def on_server_contact(self) -> None:
        """What it plays goes on in any case."""

    def on_server_silence(self, since_s: float) -> None:
        """As above."""

    # -- what its tasks seem to do

    def _start(self, work: _Work, job: Job | None, group_name: str) -> None:
        script = _script(job, group_name)
        work.script, work.tasks = script, script.tasks
        work.started_ns = self._world.now_ns()
        if script.start_error:
            self._finish(work, ClientStatus.FAILED)
            return
        work.status = ClientStatus.RUNNING
        self._talk.mark_changed(work.id)
        if script.run_for_s is not None:
            ended = ClientStatus.FAILED if script.exit_code else ClientStatus.COMPLETE
            work.ends = asyncio.get_running_loop().call_later(script.run_for_s, self._finish, work, ended)

        if script.silent_s:
            self._go_silent(script.silent_after_s, script.silent_s)

    def _go_silent(self, after_s: float, length_s: float) -> None:
        """One silence at a time: the last that was asked for counts."""
        for timer in self._silences:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._silences = [
            loop.call_later(after_s, self._may_speak.clear),
            loop.call_later(after_s + length_s, self._may_speak.set),
        ]

    def _judge_health(self, work: _Work) -> None:
        """What has run for long enough is healthy; what failed is not, whatever it was before."""
        if not work.is_judged:
            return
        if work.status is ClientStatus.FAILED:
            work.healthy = False
            self._talk.mark_changed(work.id)
        elif work.status is ClientStatus.RUNNING and work.becomes_healthy is None:
            loop = asyncio.get_running_loop()
            work.becomes_healthy = loop.call_later(work.min_healthy_s, self._become_healthy, work)

    def _become_healthy(self, work: _Work) -> None:
        work.becomes_healthy = None
        work.healthy = True
        self._talk.mark_changed(work.id)

    def _finish(self, work: _Work, status: ClientStatus) -> None:
        self._end(work)
        work.status = status
        self._judge_health(work)
        work.finished_ns = self._world.now_ns()
        self._talk.mark_changed(work.id)

    @staticmethod
    def _end(work: _Work) -> None:
        for timer in (work.ends, work.becomes_healthy):
            if timer is not None:
                timer.cancel()
        work.ends = work.becomes_healthy = None


def build_fake_node(node_id: str, machine: FakeMachine, now_ns: int) -> Node:
    """What such a machine says of itself."""
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
            # Both names: constraints that admission adds use ours, job files of the peer use theirs.
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


def _why_it_failed(work: _Work) -> tuple[TaskEvent, ...] | None:
    """Of what goes well nothing is told: there are clusters with a million of these."""
    if work.script is None or work.status is not ClientStatus.FAILED:
        return None
    if work.script.start_error:
        details = {"driver_error": work.script.start_error, "fails_task": "true"}
        return (TaskEvent(type=TaskEventType.DRIVER_FAILURE, time=work.finished_ns, details=details),)
    details = {"exit_code": str(work.script.exit_code)}
    return (TaskEvent(type=TaskEventType.TERMINATED, time=work.finished_ns, details=details),)


STATUS_DESCRIPTIONS: Final = {
    ClientStatus.RUNNING: "Tasks are running",
    ClientStatus.COMPLETE: "All tasks have completed",
    ClientStatus.FAILED: "Failed tasks",
}


class _Script(msgspec.Struct, frozen=True):
    run_for_s: float | None
    tasks: tuple[str, ...] = ("task",)
    exit_code: int = 0
    start_error: str = ""
    silent_s: float = 0.0
    silent_after_s: float = 1.0


def _script(job: Job | None, group_name: str) -> _Script:
    """What the first task's configuration says; without a word services run on and batch work ends after a second."""
    group = job.find_group(group_name) if job is not None else None
    if job is None or group is None or not group.tasks:
        return _Script(None)
    config = group.tasks[0].config or {}
    ends = job.type in (JobType.BATCH, JobType.SYSBATCH)
    return _Script(
        tasks=tuple(task.name for task in group.tasks),
        run_for_s=_seconds(config.get("run_for"), default=1.0 if ends else None),
        exit_code=_number(config.get("exit_code")),
        start_error=str(config.get("start_error") or ""),
        silent_s=_seconds(config.get("go_silent"), default=None) or 0.0,
        silent_after_s=_seconds(config.get("go_silent_after"), default=None) or 1.0,
    )


def _min_healthy_s(job: Job | None, group_name: str, *, is_deployed: bool) -> float:
    """By the rules of its deployment, or by those for what is moved from one node to another."""
    group = job.find_group(group_name) if job is not None else None
    if group is None:
        return 0.0
    policy = group.update if is_deployed else group.migrate
    return policy.min_healthy_time / SECOND_NS if policy is not None else 0.0


def _seconds(given: object, *, default: float | None) -> float | None:
    if isinstance(given, int | float):
        return given / SECOND_NS
    if isinstance(given, str):
        try:
            return parse_duration_ns(given) / SECOND_NS
        except DurationError:
            return default
    return default


def _number(given: object) -> int:
    return given if isinstance(given, int) else 0
