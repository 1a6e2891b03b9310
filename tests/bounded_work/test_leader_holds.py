"""The leader's work holds its event loop for less than 20 ms of CPU time at a time: plans, drains, purges, large reports.

The cluster runs in virtual time, but its CPU clock and the thread for long computations are real.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import pytest

from tests.kit.cluster import ACluster, OneServer
from tests.kit.loop_holds import NOISE_FACTOR, MeasuredCluster, measure_holds, work_of_others
from tests.kit.state import SETTINGS, a_node
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.agent.roles.server import LoadedStateFreezer
from wharf.cluster.operations.derived_state import get_allocation_health
from wharf.cluster.operations.jobs import registration
from wharf.cluster.operations.jobs.dispatch import DispatchRequest
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.server.duties.deployments import FULL_PASS_INTERVAL_S
from wharf.cluster.server.rpc.handlers.deployments import SET_ALLOCATION_HEALTH, SetHealthRequest
from wharf.cluster.server.rpc.handlers.jobs import (
    DISPATCH_JOB,
    FORCE_PERIODIC,
    STOP_JOB,
    DispatchJobRequest,
    ForcePeriodicRequest,
    StopJobRequest,
)
from wharf.cluster.server.rpc.handlers.nodes import (
    DRAIN_NODE,
    EVALUATE_NODE,
    PURGE_NODE,
    RECORD_NODE_REPORT,
    REGISTER_NODE,
    SET_ELIGIBILITY,
    NodeRequest,
    RecordNodeReportRequest,
    RegistrationRequest,
    SetEligibilityRequest,
)
from wharf.cluster.server.rpc.handlers.operator import RECONCILE_SUMMARIES, MaintenanceRequest
from wharf.cluster.server.rpc.method import RpcMethod
from wharf.cluster.state import Replica
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_ON_NODE,
    DEPLOYMENTS,
    EVALUATIONS,
    IDEMPOTENCY_KEYS,
    JOB_VERSIONS,
    JOBS,
    NODES,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.allocations.task_states import TaskEvent, TaskState, TaskStatus
from wharf.contract.model.body_limits import MAX_REGISTRATION_BYTES
from wharf.contract.model.cluster import IdempotencyKey
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus, JobType, Parameterized, Periodic
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, StoredRecord, Write
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.nodes.resources import NodeCpu, NodeDisk, NodeMemory, NodeResources
from wharf.contract.model.resource_usage import Usage
from wharf.contract.model.times import HOUR

MAX_NODES_PER_WRITE: Final = 500
DEPLOYMENT_COUNT: Final = 5_000
CHILD_HOLD_S: Final = 0.006
"""The longest hold of a launch: to encode the child takes 3 ms. To make the child takes 13 ms, on the thread."""
REPORTED_ALLOCATIONS: Final = 10_000
COUNTED_ALLOCATIONS: Final = 30_000
MAX_COUNTING_HOLD_S: Final = 0.02
"""The longest hold while they are counted, which takes 35 ms on the thread. The event loop needs a millisecond."""
LARGE_NODES: Final = 40
LARGE_NODE_ENTRIES: Final = 2_100
LOADED_NODES: Final = 2_000
LOADED_ALLOCATIONS: Final = 20_000


async def put_nodes(server: OneServer, count: int) -> list[str]:
    """Store ready nodes with much free capacity. Return their ids."""
    ids = [f"node-{number:05}" for number in range(count)]
    resources = NodeResources(
        cpu=NodeCpu(cpu_shares=100_000), memory=NodeMemory(memory_mb=1_000_000), disk=NodeDisk(disk_mb=10_000_000)
    )
    nodes = [
        a_node(node_id, status=NodeStatus.READY, create_index=WRITE_INDEX, node_resources=resources) for node_id in ids
    ]
    for start in range(0, count, MAX_NODES_PER_WRITE):
        changes = [NODES.build_put(node) for node in nodes[start : start + MAX_NODES_PER_WRITE]]
        await server.server.writer.commit(Write("test", Cause(CauseKind.REQUEST, "test"), changes))
    await server.server.writer.catch_up()
    await settled(server)
    return ids


def make_job(kind: JobType, *, groups: int = 1, count: int = 1, env: str = "") -> Job:
    tasks = (Task(name="server", driver="mock", env={"value": env}, resources=Resources(cpu=1, memory_mb=10)),)
    return Job(
        id="large",
        name="large",
        type=kind,
        node_pool="default",
        datacenters=("*",),
        task_groups=tuple(TaskGroup(name=f"group{number}", count=count, tasks=tasks) for number in range(groups)),
    )


async def register(server: OneServer, job: Job) -> None:
    """Register the job as an api process does, and wait until the leader has placed it."""
    with work_of_others():
        await server.server.writer.execute(
            lambda snapshot, context: registration.register_job(
                snapshot, registration.JobRegistration(job=job), context, SETTINGS
            )
        )
    await settled(server)


async def settled(server: OneServer) -> None:
    """Wait until the leader has no work."""

    def has_no_work() -> bool:
        metrics = server.brain.collect_metrics()
        return not (metrics.ready or metrics.behind or metrics.busy or metrics.unsettled_jobs)

    await pass_time(0.01)
    await until(has_no_work, what="the leader has no work")


async def call(server: OneServer, method: RpcMethod[Any, Any], request: Any) -> Any:
    reply = await server.rpc_dispatcher.call(method.name, msgspec.msgpack.encode(request))
    assert reply.code is None, reply.text
    return method.decode_reply(reply.body)


def list_allocations(server: OneServer) -> list[Allocation]:
    return list(server.replica.iter_all(ALLOCATIONS))


def count_running(allocations: Iterable[Allocation]) -> int:
    return sum(not allocation.is_terminal for allocation in allocations)


@pytest.mark.parametrize(
    ("job", "nodes", "expected_count"),
    [
        pytest.param(make_job(JobType.SERVICE, groups=1_000), 300, 1_000, id="1,000 groups"),
        pytest.param(make_job(JobType.SYSTEM), 3_000, 3_000, id="a system job on 3,000 nodes"),
        pytest.param(make_job(JobType.SERVICE, count=10_000), 300, 10_000, id="a count of 10,000"),
    ],
)
def test_no_step_of_a_large_job_holds_the_leader(job: Job, nodes: int, expected_count: int) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            server = await cluster.a_server()
            await put_nodes(server, nodes)
            with measure_holds() as holds:
                await register(server, job)
                assert count_running(list_allocations(server)) == expected_count
                await register(server, msgspec.structs.replace(job, priority=60))
                stop = StopJobRequest(job.namespace, job.id, SETTINGS, purge=True)
                await call(server, STOP_JOB, stop)
                await settled(server)
            assert count_running(list_allocations(server)) == 0
            holds.require_short(f"the leader with {job.id}")

    scenario()


def test_no_reconciliation_of_summaries_of_many_allocations_holds_the_leader() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            server = await cluster.a_server()
            await put_nodes(server, 100)
            await register(server, make_job(JobType.BATCH, count=COUNTED_ALLOCATIONS))
            assert count_running(list_allocations(server)) == COUNTED_ALLOCATIONS
            with measure_holds() as holds:
                await call(server, RECONCILE_SUMMARIES, MaintenanceRequest())
            holds.require_short("a count of allocations", MAX_COUNTING_HOLD_S)

    scenario()


def test_no_launch_of_a_large_child_holds_the_leader() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            server = await cluster.a_server()
            job = make_job(JobType.BATCH, groups=1_000)
            parameterized = msgspec.structs.replace(job, id="dispatched", parameterized_job=Parameterized())
            periodic = msgspec.structs.replace(job, id="periodic", periodic=Periodic(spec="0 0 1 1 *"))
            for parent in (parameterized, periodic):
                await register(server, parent)
            dispatch = DispatchRequest(namespace="default", job_id="dispatched")
            with measure_holds() as holds:
                await call(server, DISPATCH_JOB, DispatchJobRequest(dispatch, SETTINGS))
                await call(server, FORCE_PERIODIC, ForcePeriodicRequest("default", "periodic", SETTINGS))

            children = [stored for stored in server.replica.iter_all(JOBS) if stored.parent_id]
            assert sorted(child.parent_id for child in children) == ["dispatched", "periodic"]
            assert {len(child.groups) for child in children} == {1_000}
            holds.require_short("a launch", CHILD_HOLD_S * NOISE_FACTOR)

    scenario()


def test_no_drain_or_purge_of_a_large_node_holds_the_leader() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            server = await cluster.a_server()
            first, second, third = await put_nodes(server, 3)
            await register(server, make_job(JobType.SERVICE, groups=10, count=600))
            with measure_holds() as holds:
                await call(server, DRAIN_NODE, DrainRequest(node_id=first, order=DrainOptions(deadline_ns=-1)))
                await pass_time(5)
                await settled(server)
                await call(server, PURGE_NODE, NodeRequest(second))
                await settled(server)
            left = [allocation for allocation in list_allocations(server) if not allocation.is_terminal]
            assert {allocation.node_id for allocation in left} == {third}
            assert len(left) == 6_000
            holds.require_short("a drain and a purge")

    scenario()


def test_no_check_of_many_running_deployments_holds_the_leader() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            server = await cluster.a_server()
            await put_nodes(server, 10)
            job = msgspec.structs.replace(make_job(JobType.SERVICE), id="running", create_index=WRITE_INDEX)
            stored = await server.server.writer.commit(
                Write("test", Cause(CauseKind.REQUEST, "test"), [JOB_VERSIONS.build_put(job)])
            )
            index = stored.index  # type: ignore[union-attr]  # Without conditions there is no conflict.
            running = [
                Deployment(
                    id=f"d{number:05}", namespace=job.namespace, job_id=job.id, job_create_index=index,
                    create_index=WRITE_INDEX, status=DeploymentStatus.RUNNING, task_groups={"g": DeploymentGroup()},
                )
                for number in range(DEPLOYMENT_COUNT)
            ]  # fmt: skip
            for start in range(0, DEPLOYMENT_COUNT, MAX_NODES_PER_WRITE):
                changes = [DEPLOYMENTS.build_put(each) for each in running[start : start + MAX_NODES_PER_WRITE]]
                await server.server.writer.commit(Write("test", Cause(CauseKind.REQUEST, "test"), changes))
            with measure_holds() as holds:
                await register(server, make_job(JobType.SERVICE))
                await pass_time(2 * FULL_PASS_INTERVAL_S)

            holds.require_short("running deployments")

    scenario()


def test_no_report_of_the_health_of_many_allocations_holds_the_leader() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            server = await cluster.a_server()
            node_ids = await put_nodes(server, 2)
            await register(server, make_job(JobType.BATCH))
            job = server.replica.get(JOBS, "default", "large")
            assert job is not None
            deployment = Deployment(
                id="d1", namespace=job.namespace, job_id=job.id, job_create_index=job.create_index,
                create_index=WRITE_INDEX, status=DeploymentStatus.RUNNING, task_groups={"group0": DeploymentGroup()},
            )  # fmt: skip
            cause = Cause(CauseKind.REQUEST, "test")
            await server.server.writer.commit(Write("test", cause, [DEPLOYMENTS.build_put(deployment)]))
            await put_allocations(server, node_ids, REPORTED_ALLOCATIONS, deployment_id="d1")
            await settled(server)
            ids = tuple(f"a{number:06}" for number in range(REPORTED_ALLOCATIONS))
            with measure_holds() as holds:
                await call(server, SET_ALLOCATION_HEALTH, SetHealthRequest("d1", ids, (), 6))

            reported = [server.replica.get(ALLOCATIONS, allocation_id) for allocation_id in ids]
            assert all(each is not None and get_allocation_health(each) for each in reported)
            holds.require_short("the health of many allocations")

    scenario()


async def put_allocations(server: OneServer, node_ids: list[str], count: int, *, deployment_id: str = "") -> None:
    """Store running allocations of one job, the same number on each node."""
    job = make_job(JobType.SERVICE)
    shared = AllocatedSharedResources(disk_mb=10)
    for start in range(0, count, MAX_NODES_PER_WRITE):
        resources = AllocatedResources(
            tasks={
                "server": AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=1), memory=AllocatedMemory(memory_mb=10))
            },
            shared=shared,
        )
        running = [
            Allocation(
                id=f"a{number:06}", namespace=job.namespace, job_id=job.id, task_group="group0", create_index=WRITE_INDEX,
                node_id=node_ids[number % len(node_ids)], allocated_resources=resources,
                client_status=ClientStatus.RUNNING, desired_status=DesiredStatus.RUN, deployment_id=deployment_id,
            )
            for number in range(start, start + MAX_NODES_PER_WRITE)
        ]  # fmt: skip
        changes = [ALLOCATIONS.build_put(each) for each in running]
        await server.server.writer.commit(Write("test", Cause(CauseKind.REQUEST, "test"), changes))
    await server.server.writer.catch_up()


def test_no_start_of_a_leader_with_a_large_state_holds_it() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            first = await cluster.a_server()
            node_ids = await put_nodes(first, LOADED_NODES)
            await put_allocations(first, node_ids, LOADED_ALLOCATIONS)
            with measure_holds() as holds:
                second = await cluster.a_server("m2")
                await settled(second)

            per_node = LOADED_ALLOCATIONS // LOADED_NODES
            fleet = second.brain.cache.fleet
            assert [fleet.get_usage(row) for row, _ in fleet.iter_nodes()] == [
                Usage(per_node, 10 * per_node, 10 * per_node)
            ] * LOADED_NODES
            holds.require_short("the start of a leader")

    scenario()


PENDING_EVALUATIONS: Final = 20_000


def has_epoch_above(replica: Replica, epoch: int) -> bool:
    return replica.epoch > epoch


def make_pending_evaluation(number: int, now_ns: int) -> Evaluation:
    """Return an evaluation that waits for an hour."""
    return Evaluation(
        id=f"e{number:06}", namespace="default", job_id=f"job{number}", type=SchedulerType.SERVICE, status=EvaluationStatus.PENDING,
        wait=HOUR, modify_time=now_ns, triggered_by=EvaluationTrigger.JOB_REGISTER, create_index=WRITE_INDEX,
    )  # fmt: skip


def test_no_restore_of_a_large_state_holds_the_leader_or_a_follower() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            leader = await cluster.a_server()
            follower = await cluster.a_server("m2", leads=False)
            node_ids = await put_nodes(leader, LOADED_NODES)
            await put_allocations(leader, node_ids, LOADED_ALLOCATIONS)
            for start in range(0, PENDING_EVALUATIONS, MAX_NODES_PER_WRITE):
                numbers = range(start, start + MAX_NODES_PER_WRITE)
                changes = [
                    EVALUATIONS.build_put(make_pending_evaluation(number, leader.world.now_ns())) for number in numbers
                ]
                await leader.server.writer.commit(Write("test", Cause(CauseKind.REQUEST, "test"), changes))
            await leader.server.writer.catch_up()
            for server in (leader, follower):
                freezer = LoadedStateFreezer()
                freezer.freeze()
                server.server.follower.load_listeners.append(freezer.freeze)
            copy = cluster.log.make_copy()
            epoch = leader.replica.epoch
            with measure_holds() as holds:
                with work_of_others():
                    cluster.log.restore_copy(copy)
                for server in (leader, follower):
                    loaded = server.replica
                    await until(partial(has_epoch_above, loaded, epoch), what="the state is loaded again")
                third = await cluster.a_server("m3")
                await settled(third)

            assert len(third.brain._queues.broker) == PENDING_EVALUATIONS
            assert follower.replica.count_records(ALLOCATIONS) == LOADED_ALLOCATIONS
            holds.require_short("a restore")

    scenario()


STORED_REQUESTS: Final = 150_000


async def store_requests(cluster: ACluster, server: OneServer, count: int) -> None:
    """Add the records of many writes that had an idempotency key, by a restore: commits would take long."""
    kept = [row async for rows in server.engine.load().iter_slices() for row in rows]
    record = IdempotencyKey(
        scope="s", key="", method="PUT", path="/v1/jobs", body_digest="", status=200, create_index=1,
        expires_at=server.world.now_ns() + HOUR,
    )  # fmt: skip
    added = [
        StoredRecord(IDEMPOTENCY_KEYS.name, IDEMPOTENCY_KEYS.get_key(each), 1, encode_record(IDEMPOTENCY_KEYS, each))
        for each in (msgspec.structs.replace(record, key=f"{number:06}") for number in range(count))
    ]
    with work_of_others():
        cluster.log.replace_records([*kept, *added], cluster.log.get_position())
    await until(lambda: server.replica.count_records(IDEMPOTENCY_KEYS) == count, what="the records are loaded")


def test_no_check_for_expired_records_of_a_large_table_holds_the_leader() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            first = await cluster.a_server()
            await store_requests(cluster, first, STORED_REQUESTS)
            with measure_holds() as holds:
                second = await cluster.a_server("m2")
                await settled(second)
                await pass_time(1)
            assert second.replica.count_records(IDEMPOTENCY_KEYS) == STORED_REQUESTS
            holds.require_short("the first checks of a leader")

    scenario()


def make_large_report(allocations: Iterable[Allocation]) -> tuple[AllocationReport, ...]:
    events = tuple(TaskEvent(type="Started", time=number, details={"reason": "x" * 200}) for number in range(5))
    states = {"server": TaskState(state=TaskStatus.RUNNING, events=events)}
    return tuple(AllocationReport(each.id, ClientStatus.RUNNING, task_states=states) for each in allocations)


def test_no_large_report_of_a_node_holds_the_leader() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            server = await cluster.a_server()
            (node_id,) = await put_nodes(server, 1)
            await register(server, make_job(JobType.SERVICE, count=4_000))
            reports = make_large_report(list_allocations(server))
            request = msgspec.msgpack.encode(RecordNodeReportRequest(node_id, reports, "report-1", is_whole=True))
            assert len(request) > 5_000_000
            with measure_holds() as holds:
                reply = await server.rpc_dispatcher.call(RECORD_NODE_REPORT.name, request)
                assert reply.code is None, reply.text
                await settled(server)
            statuses = {allocation.client_status for allocation in list_allocations(server)}
            assert statuses == {ClientStatus.RUNNING}
            holds.require_short("a report of more than 5 MB")

    scenario()


def test_no_registrations_of_many_large_nodes_hold_the_leader() -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            server = await cluster.a_server()
            meta = {f"key{number}": "x" * 200 for number in range(LARGE_NODE_ENTRIES)}
            nodes = [a_node(f"large-{number}", attributes=meta, meta=meta) for number in range(LARGE_NODES)]
            requests = [msgspec.msgpack.encode(RegistrationRequest(**msgspec.structs.asdict(node))) for node in nodes]
            assert MAX_REGISTRATION_BYTES * 0.8 < len(requests[0]) < MAX_REGISTRATION_BYTES
            with measure_holds() as holds:
                calls = [server.rpc_dispatcher.call(REGISTER_NODE.name, request) for request in requests]
                replies = await asyncio.gather(*calls)
                assert [reply.text for reply in replies if reply.code is not None] == []
                await settled(server)
            assert server.replica.count_records(NODES) == LARGE_NODES
            holds.require_short("registrations of large nodes")

    scenario()


@in_virtual_time
async def test_a_report_with_an_undecodable_allocation_changes_nothing() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        (node_id,) = await put_nodes(server, 1)
        await register(server, make_job(JobType.SERVICE, count=2))
        reports = [{"id": each.id, "client_status": "running"} for each in list_allocations(server)]
        reports[1]["client_status"] = "sleeping"
        reply = await server.rpc_dispatcher.call(
            RECORD_NODE_REPORT.name, msgspec.msgpack.encode({"node_id": node_id, "reports": reports})
        )
        assert "cannot decode report 1 of RPC method 'report': Invalid enum value 'sleeping'" in reply.text
        assert {allocation.client_status for allocation in list_allocations(server)} == {ClientStatus.PENDING}


class HeldWork:
    """Work on the thread that has begun, and ends when the test lets it end."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()


def test_the_replica_does_not_change_while_a_plan_is_made_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            server = await cluster.a_server()
            await put_nodes(server, 1)
            held = HeldWork()
            run_off_loop = server.world.run_off_loop

            async def run_slowly(work: Any) -> Any:
                held.has_begun.set()
                await held.may_end.wait()
                return await run_off_loop(work)

            monkeypatch.setattr(server.world, "run_off_loop", run_slowly)
            registering = asyncio.ensure_future(register(server, make_job(JobType.SERVICE, count=1_000)))
            await held.has_begun.wait()
            index = server.replica.index
            node = a_node("late", status=NodeStatus.READY, create_index=WRITE_INDEX)
            cause = Cause(CauseKind.REQUEST, "test")
            await server.server.writer.commit(Write("test", cause, [NODES.build_put(node)]))
            await pass_time(1)
            assert server.replica.index == index
            held.may_end.set()
            await registering
            assert server.replica.get(NODES, "late") is not None
            assert count_running(list_allocations(server)) == 1_000

    scenario()


ENDED_ALLOCATIONS: Final = 40_000
ENDED_PER_JOB: Final = 100
SMALL_HOLD_S: Final = 0.010
"""The longest hold of a change of a node with 20 running allocations, however many have ended."""


async def store_ended_allocations(
    cluster: ACluster, server: OneServer, node_id: str, *, first_report_number: int
) -> OneServer:
    """Add ended allocations of many dead jobs on the node, by a restore: commits would take long.

    Return a new leader, because a restore ends the term of the old one.
    """
    kept = [row async for rows in server.engine.load().iter_slices() for row in rows]
    added: list[StoredRecord] = []
    for number in range(ENDED_ALLOCATIONS):
        if not number % ENDED_PER_JOB:
            job = msgspec.structs.replace(
                make_job(JobType.BATCH), id=f"ended{number:06}", status=JobStatus.DEAD, create_index=1
            )
            added.append(StoredRecord(JOBS.name, JOBS.get_key(job), 1, encode_record(JOBS, job)))
        allocation = Allocation(
            id=f"e{number:06}", namespace=job.namespace, job_id=job.id, task_group="group0", create_index=1,
            node_id=node_id, client_status=ClientStatus.COMPLETE, desired_status=DesiredStatus.RUN,
            report_number=first_report_number + number, modify_time=server.world.now_ns(),
        )  # fmt: skip
        added.append(StoredRecord(ALLOCATIONS.name, allocation.id, 1, encode_record(ALLOCATIONS, allocation)))
    with work_of_others():
        cluster.log.replace_records([*kept, *added], cluster.log.get_position())
    leader = await cluster.a_server("m2")
    assert leader.replica.count_by_index(ALLOCATIONS_ON_NODE, node_id) > ENDED_ALLOCATIONS
    await settled(leader)
    return leader


async def drain_and_cancel(server: OneServer, node_id: str) -> None:
    await call(server, DRAIN_NODE, DrainRequest(node_id=node_id, order=DrainOptions(deadline_ns=-1)))
    await pass_time(5)
    await settled(server)
    await call(server, DRAIN_NODE, DrainRequest(node_id=node_id, order=None, mark_eligible=True))


async def change_eligibility(server: OneServer, node_id: str) -> None:
    await call(server, SET_ELIGIBILITY, SetEligibilityRequest(node_id, eligible=False))
    await call(server, SET_ELIGIBILITY, SetEligibilityRequest(node_id, eligible=True))


async def lose_and_register(server: OneServer, node_id: str) -> None:
    """Let the node miss its heartbeats, register it again and report all that it has."""
    await until(lambda: get_status(server, node_id) is NodeStatus.DOWN, what="the node is down", within_s=600)
    await settled(server)
    node = server.replica.get(NODES, node_id)
    assert node is not None
    lease = await call(
        server, REGISTER_NODE, RegistrationRequest(**{**msgspec.structs.asdict(node), "reports_from": 1})
    )
    assert lease.must_report
    await settled(server)
    await call(
        server,
        RECORD_NODE_REPORT,
        RecordNodeReportRequest(node_id, (), "all", is_whole=True, number=lease.reports_from),
    )
    assert get_status(server, node_id) is NodeStatus.READY


async def evaluate(server: OneServer, node_id: str) -> None:
    await call(server, EVALUATE_NODE, NodeRequest(node_id))


async def purge(server: OneServer, node_id: str) -> None:
    await call(server, PURGE_NODE, NodeRequest(node_id))


def get_status(server: OneServer, node_id: str) -> NodeStatus | None:
    node = server.replica.get(NODES, node_id)
    return node.status if node is not None else None


@pytest.mark.parametrize(
    ("changes", "first_report_number"),
    [
        pytest.param((change_eligibility, evaluate, drain_and_cancel), 1, id="eligibility, evaluation and drain"),
        pytest.param((lose_and_register,), 1, id="registration"),
        pytest.param((lose_and_register,), 10**12, id="registration after reports with high numbers"),
        pytest.param((purge,), 1, id="purge"),
    ],
)
def test_no_change_of_a_node_with_many_ended_allocations_holds_the_leader(
    changes: Sequence[Callable[[OneServer, str], Awaitable[None]]], first_report_number: int
) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with MeasuredCluster() as cluster:
            old_leader = await cluster.a_server()
            first, _second = await put_nodes(old_leader, 2)
            await register(old_leader, make_job(JobType.SERVICE, count=20))
            server = await store_ended_allocations(cluster, old_leader, first, first_report_number=first_report_number)
            for change_node in changes:
                with measure_holds() as holds:
                    await change_node(server, first)
                    await settled(server)
                assert count_running(list_allocations(server)) == 20
                holds.require_short(change_node.__name__, SMALL_HOLD_S * NOISE_FACTOR)

    scenario()
