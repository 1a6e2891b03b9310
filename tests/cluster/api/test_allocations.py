"""Endpoints of allocations (nodes-allocations.md 2.1 and 2.5)."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import an_allocation
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from tests.kit.work import (
    DENIED,
    READ,
    WRITE,
    a_namespace,
    a_stored_job,
    an_id,
    get,
    list_ids,
    put,
    read_json,
    read_refusal,
    status_and_body,
    store,
)
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, SERVICES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredTransition, NetworkStatus
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.allocations.task_states import TaskEvent, TaskState, TaskStatus
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.services import ServiceRegistration

A1, A2, A3 = (an_id(0xA000 + number) for number in range(1, 4))
UNKNOWN_ID = an_id(0xFFFF)
RESOURCES = AllocatedResources(
    tasks={"server": AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=100), memory=AllocatedMemory(memory_mb=64))}
)
STATES = {
    "server": TaskState(
        state=TaskStatus.DEAD,
        failed=True,
        events=(TaskEvent(type="Terminated", time=5, details={"exit_code": "3", "signal": "9"}),),
    )
}


async def with_allocations(cluster: ACluster) -> OneServer:
    """Start a server with A2 and A1 of the job shop, in this order, and A3 of another namespace. A1 has task states."""
    server = await cluster.a_server()
    job = await a_stored_job(server, a_job())
    await a_namespace(server, "other")
    second = await a_stored_job(server, a_job("depot", namespace="other"))
    for allocation in (
        an_allocation(job, A2, client_status=ClientStatus.RUNNING),
        an_allocation(
            job,
            A1,
            client_status=ClientStatus.FAILED,
            task_states=STATES,
            allocated_resources=RESOURCES,
            metrics=AllocMetric(nodes_evaluated=3),
        ),
        an_allocation(second, A3, client_status=ClientStatus.RUNNING),
    ):
        await store(server, ALLOCATIONS.build_put(allocation))
    return server


def the_allocation(server: OneServer, id: str) -> Allocation:
    allocation = server.replica.get(ALLOCATIONS, id)
    assert allocation is not None
    return allocation


# -- list


@in_virtual_time
async def test_allocations_are_listed_by_creation_in_both_directions() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        assert await list_ids(server, "/v1/allocations") == [A2, A1]
        assert await list_ids(server, "/v1/allocations", "reverse=true") == [A1, A2]
        assert await list_ids(server, "/v1/allocations", "namespace=*") == [A2, A1, A3]
        assert await list_ids(server, "/v1/allocations", "prefix=0000a0") == [A1, A2]


@in_virtual_time
async def test_page_tokens_of_allocations_hold_index_and_id() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        token = (await get(server, "/v1/allocations", "per_page=1")).headers["x-cluster-nexttoken"]

        assert token == f"{the_allocation(server, A1).create_index}.{A1}"
        assert await list_ids(server, "/v1/allocations", f"per_page=1&next_token={token}") == [A1]


@pytest.mark.parametrize(
    ("expression", "ids"),
    [
        ("ClientStatus==failed", [A1]),
        ("Job.Type==service", [A2, A1]),
        ("Job.Version==0+and+TaskGroup==web", [A2, A1]),
        ("server+in+TaskStates+and+TaskStates.server.Failed==true", [A1]),
        ("ClientStatus==failed+and+AllocatedResources.Tasks.server.Memory.MemoryMB==64", [A1]),
    ],
)
@in_virtual_time
async def test_a_filter_can_use_the_allocation_its_job_and_its_tasks(expression: str, ids: list[str]) -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        assert await list_ids(server, "/v1/allocations", f"filter={expression}") == ids


@in_virtual_time
async def test_an_allocation_stub_has_every_field_except_resources() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        (_, views) = await read_json(server, "/v1/allocations")

        assert set(views) == {
            "ID", "EvalID", "Name", "Namespace", "NodeID", "NodeName", "JobID", "JobType", "JobVersion", "TaskGroup",
            "DesiredStatus", "DesiredDescription", "ClientStatus", "ClientDescription", "DesiredTransition", "TaskStates",
            "DeploymentStatus", "FollowupEvalID", "NextAllocation", "RescheduleTracker", "PreemptedAllocations",
            "PreemptedByAllocation", "CreateIndex", "ModifyIndex", "CreateTime", "ModifyTime",
        }  # fmt: skip
        assert (views["JobType"], views["JobVersion"]) == ("service", 0)


@in_virtual_time
async def test_resources_are_listed_on_request() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        (_, views) = await read_json(server, "/v1/allocations", "resources=true")

        assert views["AllocatedResources"]["Tasks"]["server"]["Memory"] == {"MemoryMB": 64, "MemoryMaxMB": 0}


@in_virtual_time
async def test_task_states_are_omitted_on_request() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        queries = ("", "task_states=true", "task_states=false", "")
        states = [(await read_json(server, "/v1/allocations", query))[1]["TaskStates"] is None for query in queries]

        assert states == [False, False, True, False]


@pytest.mark.parametrize("name", ["resources", "task_states"])
@in_virtual_time
async def test_an_invalid_flag_is_refused(name: str) -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        reply = await get(server, "/v1/allocations", f"{name}=maybe")

        assert (
            reply.status,
            reply.body.startswith(f'Failed to parse value of "{name}" (maybe) as a bool'.encode()),
        ) == (
            400,
            True,
        )


@in_virtual_time
async def test_a_prefix_that_is_not_hex_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        assert status_and_body(await get(server, "/v1/allocations", "prefix=abc")) == (
            400,
            b"alloc lookup failed: index error: Input (without hyphens) must be even length",
        )


# -- read


@in_virtual_time
async def test_a_read_allocation_has_the_job_version_that_was_placed() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)
        await a_stored_job(server, a_job(priority=80, version=1))

        views = await read_json(server, f"/v1/allocation/{A1}")

        assert (views["Job"]["ID"], views["Job"]["Version"], views["Job"]["Priority"]) == ("shop", 0, 50)
        assert views["AllocatedResources"]["Tasks"]["server"]["Cpu"]["CpuShares"] == 100
        assert views["Metrics"]["NodesEvaluated"] == 3


@in_virtual_time
async def test_a_read_allocation_repeats_its_resources_as_older_clients_read_them() -> None:
    network = NetworkResource(mode="host", reserved_ports=(Port(label="http", value=80),))
    task = AllocatedTaskResources(
        cpu=AllocatedCpu(cpu_shares=100), memory=AllocatedMemory(memory_mb=64, memory_max_mb=128)
    )
    cores = AllocatedTaskResources(
        cpu=AllocatedCpu(cpu_shares=4_000, reserved_cores=(2, 3)), memory=AllocatedMemory(memory_mb=32)
    )
    allocated = AllocatedResources(
        tasks={"server": task, "log": cores}, shared=AllocatedSharedResources(disk_mb=300, networks=(network,))
    )
    async with ACluster() as cluster:
        server = await cluster.a_server()
        job = await a_stored_job(server, a_job())
        await store(server, ALLOCATIONS.build_put(an_allocation(job, A1, allocated_resources=allocated)))

        read = await read_json(server, f"/v1/allocation/{A1}")

    def get_amounts(resources: Any) -> dict[str, Any]:
        return {name: resources[name] for name in ("CPU", "Cores", "MemoryMB", "MemoryMaxMB", "DiskMB")}

    assert get_amounts(read["Resources"]) == {
        "CPU": 4_100, "Cores": 2, "MemoryMB": 96, "MemoryMaxMB": 160, "DiskMB": 300,
    }  # fmt: skip
    assert get_amounts(read["TaskResources"]["server"]) == {
        "CPU": 100, "Cores": 0, "MemoryMB": 64, "MemoryMaxMB": 128, "DiskMB": 0,
    }  # fmt: skip
    assert get_amounts(read["TaskResources"]["log"])["MemoryMaxMB"] == 32
    assert get_amounts(read["SharedResources"]) == {
        "CPU": 0, "Cores": 0, "MemoryMB": 0, "MemoryMaxMB": 0, "DiskMB": 300,
    }  # fmt: skip
    assert [read[name]["Networks"][0]["ReservedPorts"][0]["Value"] for name in ("Resources", "SharedResources")] == [
        80,
        80,
    ]


@in_virtual_time
async def test_empty_fields_of_a_read_allocation_are_omitted() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        views = await read_json(server, f"/v1/allocation/{A2}")

        assert set(views) == {
            "ID", "Namespace", "Name", "NodeID", "JobID", "Job", "TaskGroup", "DesiredStatus", "ClientStatus",
            "CreateIndex", "ModifyIndex", "AllocModifyIndex",
        }  # fmt: skip


@pytest.mark.parametrize("is_listed", [True, False])
@in_virtual_time
async def test_task_events_have_a_message_and_the_older_fields(is_listed: bool) -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        views = (
            (await read_json(server, "/v1/allocations"))[1]
            if is_listed
            else await read_json(server, f"/v1/allocation/{A1}")
        )
        state = views["TaskStates"]["server"]
        (event,) = state["Events"]

        assert (state["State"], state["Failed"], state["StartedAt"], state["Restarts"]) == ("dead", True, None, 0)
        assert (event["Type"], event["DisplayMessage"], event["ExitCode"], event["Signal"], event["DriverError"]) == (
            "Terminated",
            "Exit Code: 3, Signal: 9",
            3,
            9,
            "",
        )


@in_virtual_time
async def test_an_invalid_allocation_id_is_refused_and_an_unknown_one_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        assert status_and_body(await get(server, "/v1/allocation/a1")) == (
            400,
            b"alloc lookup failed: index error: UUID must be 36 characters",
        )
        assert status_and_body(await get(server, f"/v1/allocation/{UNKNOWN_ID}")) == (404, b"alloc not found")
        assert status_and_body(await get(server, f"/v1/allocation/{UNKNOWN_ID}/services")) == (404, b"alloc not found")
        assert status_and_body(await put(server, f"/v1/allocation/{UNKNOWN_ID}/stop")) == (404, b"allocation not found")
        assert (await put(server, "/v1/allocation/a1/stop")).status == 400


@in_virtual_time
async def test_a_blocking_read_of_an_allocation_wakes_for_its_changes_only() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)
        observed = (await get(server, f"/v1/allocation/{A1}")).headers["x-cluster-index"]
        pending_read = cluster.start(get(server, f"/v1/allocation/{A1}", f"index={observed}"), name="query")
        await pass_time(0.1)

        await store(server, ALLOCATIONS.build_put(replace(the_allocation(server, A2), client_description="x")))
        await pass_time(1.0)
        assert not pending_read.done()
        index = await store(server, ALLOCATIONS.build_put(replace(the_allocation(server, A1), client_description="y")))

        assert (await pending_read).headers["x-cluster-index"] == str(index)


# -- stop


@in_virtual_time
async def test_a_stop_returns_its_evaluation_and_index() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        reply = await put(server, f"/v1/allocation/{A2}/stop")

        stored = json.loads(reply.body)
        evaluation = server.replica.get(EVALUATIONS, stored["EvalID"])
        assert evaluation is not None
        assert (evaluation.triggered_by, evaluation.create_index) == ("alloc-stop", stored["Index"])
        assert reply.headers["x-cluster-index"] == str(stored["Index"])
        assert the_allocation(server, A2).desired_transition == DesiredTransition(
            migrate=True, reschedule=False, no_shutdown_delay=False
        )


@in_virtual_time
async def test_the_options_of_a_stop_are_stored_in_the_allocation() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        await put(server, f"/v1/allocation/{A2}/stop", query="no_shutdown_delay=true&reschedule=1")

        assert the_allocation(server, A2).desired_transition == DesiredTransition(
            migrate=True, reschedule=True, no_shutdown_delay=True
        )


@pytest.mark.parametrize("name", ["no_shutdown_delay", "reschedule"])
@in_virtual_time
async def test_a_stop_with_an_invalid_flag_changes_nothing(name: str) -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)

        assert (await read_refusal(server, put(server, f"/v1/allocation/{A2}/stop", query=f"{name}=x")))[0] == 400


@in_virtual_time
async def test_a_stopped_allocation_ends_on_its_node_and_is_replaced() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job())
        running = await until(lambda: list_live_allocations(server), what="the job runs")

        await put(server, f"/v1/allocation/{running[0].id}/stop")

        await until(
            lambda: the_allocation(server, running[0].id).is_client_terminal and list_live_allocations(server),
            what="another runs",
        )
        stopped, (second,) = the_allocation(server, running[0].id), list_live_allocations(server)
        assert (stopped.desired_status, stopped.desired_description) == ("stop", "alloc is being migrated")
        assert (second.name, second.id == stopped.id) == (stopped.name, False)


def list_live_allocations(server: OneServer) -> list[Allocation]:
    return [
        each
        for each in server.replica.iter_all(ALLOCATIONS)
        if not each.is_terminal and each.client_status is ClientStatus.RUNNING
    ]


# -- services


@in_virtual_time
async def test_the_services_of_an_allocation_are_listed() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)
        for id, owner in (("s2", A1), ("s1", A1), ("s3", A2)):
            registration = ServiceRegistration(
                id=id, service_name="web", namespace="default", alloc_id=owner, create_index=WRITE_INDEX
            )
            await store(server, SERVICES.build_put(registration))

        assert await list_ids(server, f"/v1/allocation/{A1}/services") == ["s2", "s1"]
        assert await list_ids(server, f"/v1/allocation/{A3}/services") == []


# -- rights


@in_virtual_time
async def test_a_token_sees_and_stops_the_allocations_of_its_namespaces() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)
        enable_acl(server)
        reader, writer = await a_token(server, READ), await a_token(server, WRITE)

        async def replies(headers: dict[str, str], id: str) -> list[int]:
            reads: list[Any] = [get(server, f"/v1/allocation/{id}{end}", headers=headers) for end in ("", "/services")]
            stop = put(server, f"/v1/allocation/{id}/stop", headers=headers)
            return [(await each).status for each in (*reads, stop)]

        assert await list_ids(server, "/v1/allocations", "namespace=*", reader) == [A2, A1]
        assert await replies(reader, A1) == [200, 200, 403]
        assert await replies(writer, A1) == [200, 200, 200]
        assert await replies(writer, A3) == [403, 403, 403]
        assert status_and_body(await put(server, f"/v1/allocation/{A1}/stop")) == DENIED


@in_virtual_time
async def test_the_network_status_of_an_allocation_in_the_host_network_is_empty_once_it_has_started() -> None:
    async with ACluster() as cluster:
        server = await with_allocations(cluster)
        job = a_job()
        await store(
            server,
            ALLOCATIONS.build_put(
                an_allocation(
                    job,
                    an_id(0xB001),
                    client_status=ClientStatus.RUNNING,
                    network_status=NetworkStatus(address="10.0.0.9"),
                )
            ),
            ALLOCATIONS.build_put(an_allocation(job, an_id(0xB002), client_status=ClientStatus.PENDING)),
        )

        host = await read_json(server, f"/v1/allocation/{A1}")
        bridge = await read_json(server, f"/v1/allocation/{an_id(0xB001)}")
        pending = await read_json(server, f"/v1/allocation/{an_id(0xB002)}")

        empty = {"InterfaceName": "", "Address": "", "AddressIPv6": "", "DNS": None}
        assert host["NetworkStatus"] == empty
        assert bridge["NetworkStatus"] == {**empty, "Address": "10.0.0.9"}
        assert "NetworkStatus" not in pending
