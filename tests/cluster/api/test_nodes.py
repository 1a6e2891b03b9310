"""Endpoints of nodes (nodes-allocations.md 0, 1.1, 1.2)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_service, a_task
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import DENIED, commit, get, put, read, send, status_and_text
from tests.kit.state import a_node, an_allocation
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOB_VERSIONS, JOBS, NAMESPACES, NODES, SERVICES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import DriverInfo, NodeHostVolume, NodeStatus

ID = "8a6f0c44-0000-0000-0000-{:012}"
ONE, TWO, THREE = (ID.format(number) for number in (1, 2, 3))


async def with_nodes(cluster: ACluster, *ids: str, **fields: Any) -> OneServer:
    server = await cluster.a_server()
    submitted = {"status": NodeStatus.READY, "create_index": WRITE_INDEX, **fields}
    await commit(server, *(NODES.build_put(a_node(node_id, **submitted)) for node_id in ids or (ONE,)))
    return server


def ids(nodes: list[dict[str, Any]]) -> list[str]:
    return [node["ID"] for node in nodes]


# -- lists


@in_virtual_time
async def test_nodes_are_listed_as_stubs_by_id() -> None:
    async with ACluster() as cluster:
        attributes = {"nomad.version": "2.0.6", "os.name": "ubuntu", "cpu.arch": "amd64"}
        server = await with_nodes(
            cluster, TWO, ONE,
            http_addr="10.0.0.1:4646", attributes=attributes, drivers={"exec": DriverInfo(detected=True)},
            host_volumes={"data": NodeHostVolume(name="data", path="/srv")},
        )  # fmt: skip

        nodes = read(await get(server, "/v1/nodes"))

        assert ids(nodes) == [ONE, TWO]
        assert set(nodes[0]) == {
            "Address", "ID", "Datacenter", "Name", "NodePool", "NodeClass", "Version", "Drain", "SchedulingEligibility",
            "Status", "StatusDescription", "Drivers", "HostVolumes", "LastDrain", "CreateIndex", "ModifyIndex",
        }  # fmt: skip
        assert (nodes[0]["Address"], nodes[0]["Version"]) == ("10.0.0.1", "2.0.6")


@in_virtual_time
async def test_resources_and_operating_system_are_listed_on_request() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster, attributes={"os.name": "ubuntu", "cpu.arch": "amd64"})

        (node,) = read(await get(server, "/v1/nodes", "resources=true&os=true"))

        assert node["Attributes"] == {"os.name": "ubuntu"}
        assert node["NodeResources"]["Memory"]["MemoryMB"] == 1_000
        assert "ReservedResources" in node


@in_virtual_time
@pytest.mark.parametrize("name", ["resources", "os"])
async def test_an_invalid_flag_is_refused(name: str) -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)

        status, text = status_and_text(await get(server, "/v1/nodes", f"{name}=perhaps"))

        assert status == 400
        assert text == (
            f'Failed to parse node list fields: Failed to parse value of "{name}" (perhaps) as a bool: '
            'strconv.ParseBool: parsing "perhaps": invalid syntax'
        )


@in_virtual_time
async def test_a_filter_uses_the_whole_node_and_not_its_stub() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster, ONE, attributes={"kernel.name": "linux"}, meta={"rack": "r1"})
        await commit(server, NODES.build_put(a_node(TWO, create_index=WRITE_INDEX, attributes={"kernel.name": "bsd"})))

        for expression in ('Attributes["kernel.name"] == "linux"', "Meta.rack == r1", 'Status == "ready"'):
            reply = await get(server, "/v1/nodes", "filter=" + expression.replace(" ", "%20").replace('"', "%22"))
            assert ids(read(reply)) == [ONE]


@in_virtual_time
async def test_no_filter_can_use_the_secret() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)

        assert (await get(server, "/v1/nodes", "filter=SecretDigest%20is%20not%20empty")).status == 400


@in_virtual_time
async def test_pages_continue_at_the_next_id_and_reverse_is_ignored() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster, ONE, TWO, THREE)

        first = await get(server, "/v1/nodes", "per_page=2&reverse=true")
        second = await get(server, "/v1/nodes", f"per_page=2&next_token={first.headers['x-cluster-nexttoken']}")

        assert (ids(read(first)), ids(read(second))) == ([ONE, TWO], [THREE])
        assert first.headers["x-cluster-nexttoken"] == THREE
        assert "x-cluster-nexttoken" not in second.headers


@in_virtual_time
async def test_a_prefix_has_an_even_number_of_hex_digits() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster, ONE, "ffff0000-0000-0000-0000-000000000000")

        assert ids(read(await get(server, "/v1/nodes", "prefix=8a6f"))) == [ONE]
        assert status_and_text(await get(server, "/v1/nodes", "prefix=8a6")) == (
            400,
            "node lookup failed: index error: Input (without hyphens) must be even length",
        )


@in_virtual_time
async def test_a_blocking_list_of_nodes_wakes_when_one_changes() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)
        index = (await get(server, "/v1/nodes")).headers["x-cluster-index"]

        pending = cluster.start(get(server, "/v1/nodes", f"index={index}&wait=300s"), name="query")
        await put(server, f"/v1/node/{ONE}/eligibility", {"Eligibility": "ineligible"})

        assert read(await pending)[0]["SchedulingEligibility"] == "ineligible"


# -- one node


@in_virtual_time
async def test_a_read_node_has_an_empty_secret_and_no_digest() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)

        reply = await get(server, f"/v1/node/{ONE}")

        node = read(reply)
        assert (node["ID"], node["SecretID"], "SecretDigest" in node) == (ONE, "", False)
        assert reply.headers["x-cluster-index"] == str(node["ModifyIndex"])


@in_virtual_time
async def test_an_unknown_node_is_404_with_an_index_and_a_short_id_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)

        missing = await get(server, f"/v1/node/{TWO}")

        assert status_and_text(missing) == (404, "node not found")
        assert int(missing.headers["x-cluster-index"]) >= 1
        assert status_and_text(await get(server, "/v1/node/8a6f0c44")) == (
            400,
            "node lookup failed: index error: UUID must be 36 characters",
        )


@in_virtual_time
async def test_only_allocations_of_readable_namespaces_are_listed_for_a_node() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)
        own_header, nomad_header = (
            a_job("ours", create_index=1),
            a_job("theirs", namespace="team", create_index=1),
        )
        await commit(
            server,
            NAMESPACES.build_put(Namespace(name="team", create_index=WRITE_INDEX)),
            JOB_VERSIONS.build_put(own_header),
            ALLOCATIONS.build_put(an_allocation(own_header, ID.format(11), node_id=ONE)),
            ALLOCATIONS.build_put(an_allocation(nomad_header, ID.format(12), node_id=ONE)),
        )
        path = f"/v1/node/{ONE}/allocations"
        all_callers = read(await get(server, path))
        enable_acl(server)
        headers = await a_token(server, 'node { policy = "read" } namespace "default" { policy = "read" }')

        readable = read(await get(server, path, headers=headers))

        assert [a["JobID"] for a in all_callers] == ["ours", "theirs"]
        assert [a["JobID"] for a in readable] == ["ours"]
        assert all_callers[0]["Job"]["ID"] == "ours"
        assert read(await get(server, f"/v1/node/{TWO}/allocations", headers=headers)) == []


# -- drain, eligibility


@in_virtual_time
async def test_a_drain_returns_four_fields_and_is_shown_on_the_node() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)
        order = {"DrainSpec": {"Deadline": 3_600_000_000_000, "IgnoreSystemJobs": True}, "Meta": {"why": "disk"}}

        reply = await put(server, f"/v1/node/{ONE}/drain", order)

        index = int(reply.headers["x-cluster-index"])
        assert read(reply) == {"NodeModifyIndex": index, "EvalIDs": None, "EvalCreateIndex": 0, "Index": index}
        node = read(await get(server, f"/v1/node/{ONE}"))
        assert (node["Drain"], node["SchedulingEligibility"]) == (True, "ineligible")
        assert node["DrainStrategy"]["Deadline"] == 3_600_000_000_000
        assert node["DrainStrategy"]["IgnoreSystemJobs"]
        assert node["LastDrain"]["Status"] == "draining"
        assert node["LastDrain"]["AccessorID"] == "token:acls-disabled"
        assert node["LastDrain"]["Meta"] == {"why": "disk"}
        assert node["Events"][-1]["Message"] == "Node drain strategy set"


@in_virtual_time
async def test_a_draining_node_cannot_be_made_eligible() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)
        await put(server, f"/v1/node/{ONE}/drain", {"DrainSpec": {}})

        assert status_and_text(await put(server, f"/v1/node/{ONE}/eligibility", {"Eligibility": "eligible"})) == (
            400,
            "can not set node's scheduling eligibility to eligible while it is draining",
        )


@in_virtual_time
async def test_a_drain_records_the_token_that_started_it() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)
        enable_acl(server)
        headers = await a_token(server, 'node { policy = "write" }')

        await put(server, f"/v1/node/{ONE}/drain", {"DrainSpec": {}}, headers=headers)

        accessor = read(await get(server, f"/v1/node/{ONE}", headers=headers))["LastDrain"]["AccessorID"]
        assert accessor.startswith("token:")
        assert len(accessor) > len("token:acls-disabled")


@in_virtual_time
async def test_an_eligibility_change_returns_no_node_index_and_a_repeated_one_only_zeros() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)
        path = f"/v1/node/{ONE}/eligibility"

        changed = read(await put(server, path, {"Eligibility": "ineligible"}))
        repeated = read(await put(server, path, {"Eligibility": "ineligible"}))

        assert changed == {"NodeModifyIndex": 0, "EvalIDs": None, "EvalCreateIndex": 0, "Index": changed["Index"]}
        assert changed["Index"] > 0
        assert repeated == {"NodeModifyIndex": 0, "EvalIDs": None, "EvalCreateIndex": 0, "Index": 0}
        assert status_and_text(await put(server, path, {"Eligibility": "perhaps"})) == (
            400,
            'invalid scheduling eligibility "perhaps"',
        )


@in_virtual_time
@pytest.mark.parametrize("route", ["drain", "eligibility", "evaluate", "purge"])
async def test_changes_of_an_unknown_node_are_404_and_cannot_be_read(route: str) -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)
        path = f"/v1/node/{TWO}/{route}"

        assert status_and_text(await put(server, path, {"Eligibility": "eligible"})) == (404, "node not found")
        assert (await get(server, path)).status == 405


@in_virtual_time
async def test_post_works_like_put_for_nodes() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)

        assert (await send(server, "POST", f"/v1/node/{ONE}/drain", {"DrainSpec": None})).status == 200


# -- evaluate, purge


async def store_jobs_on_node(server: OneServer, count: int) -> None:
    """Store this number of stopped jobs, each with an unknown allocation on the node."""
    for number in range(count):
        job = a_job(f"job-{number}", create_index=WRITE_INDEX, status="dead", stop=True)
        await commit(
            server,
            JOBS.build_put(job),
            ALLOCATIONS.build_put(
                an_allocation(job, ID.format(100 + number), node_id=ONE, client_status=ClientStatus.UNKNOWN)
            ),
        )


@in_virtual_time
async def test_evaluating_a_node_evaluates_all_its_jobs_in_as_many_writes_as_needed() -> None:
    async with ACluster(limits=WriteLimits(changes=30, conditions=30, bytes=100_000)) as cluster:
        server = await with_nodes(cluster)
        await store_jobs_on_node(server, 12)

        evaluated = read(await put(server, f"/v1/node/{ONE}/evaluate"))

        created = {server.replica.get(EVALUATIONS, each) for each in evaluated["EvalIDs"]}
        assert len(evaluated["EvalIDs"]) == 12
        assert {each.job_id for each in created if each is not None} == {f"job-{number}" for number in range(12)}
        assert evaluated["EvalCreateIndex"] > 0


@in_virtual_time
async def test_a_purged_node_is_deleted_and_all_its_allocations_are_lost() -> None:
    async with ACluster(limits=WriteLimits(changes=30, conditions=30, bytes=100_000)) as cluster:
        server = await with_nodes(cluster)
        await store_jobs_on_node(server, 12)

        purged = read(await put(server, f"/v1/node/{ONE}/purge"))

        def all_lost() -> bool:
            return all(a.client_status is ClientStatus.LOST for a in server.replica.iter_all(ALLOCATIONS))

        assert (await get(server, f"/v1/node/{ONE}")).status == 404
        assert 0 < len(purged["EvalIDs"]) < 12
        await until(all_lost, what="everything on the node is lost")


@in_virtual_time
async def test_a_new_leader_continues_the_evaluations_of_a_purged_node() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await commit(server, NODES.build_put(a_node(ONE, status=NodeStatus.READY, create_index=WRITE_INDEX)))
        await store_jobs_on_node(server, 2)
        await commit(server, NODES.build_delete(ONE))

        await server.lead()

        await until(
            lambda: all(a.client_status is ClientStatus.LOST for a in server.replica.iter_all(ALLOCATIONS)),
            what="everything on the node is lost",
        )


@in_virtual_time
async def test_a_purged_node_that_is_alive_registers_again() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)

        await put(server, f"/v1/node/{node.id}/purge")
        await until(lambda: server.replica.get(NODES, node.id) is None, what="the job is purged")

        await node.wait_ready()


# -- rights


@in_virtual_time
async def test_reading_nodes_needs_the_read_right_and_changing_them_the_write_right() -> None:
    async with ACluster() as cluster:
        server = await with_nodes(cluster)
        enable_acl(server)
        reader = await a_token(server, 'node { policy = "read" }')
        powerless = await a_token(server)
        before = server.replica.get(NODES, ONE)

        reads = [await get(server, path, headers=powerless) for path in ("/v1/nodes", f"/v1/node/{ONE}")]
        writes = [
            await put(server, f"/v1/node/{ONE}/{case}", {"Eligibility": "ineligible"}, headers=reader)
            for case in ("drain", "eligibility", "evaluate", "purge")
        ]

        assert [status_and_text(reply) for reply in (*reads, *writes)] == [DENIED] * 6
        assert server.replica.get(NODES, ONE) == before
        assert (await get(server, "/v1/nodes", headers=reader)).status == 200


@in_virtual_time
async def test_a_node_keeps_its_drain_when_it_registers_again() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await put(server, f"/v1/node/{node.id}/drain", {"DrainSpec": {"Deadline": 0}})
        stored = server.replica.get(NODES, node.id)
        assert stored is not None

        body = {"Node": {"ID": node.id, "Name": "renamed"}, "SecretID": node.secret_id}
        reply = await put(server, f"/v1/node/{node.id}/register", body)

        assert reply.status == 200, status_and_text(reply)
        now = server.replica.get(NODES, node.id)
        assert now is not None
        assert replace(now, events=None, modify_index=0).drain_strategy == stored.drain_strategy
        assert now.last_drain == stored.last_drain


@in_virtual_time
async def test_registrations_that_no_request_could_read_are_left_out_of_a_report_and_the_rest_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        job = a_job("shop", a_group("web", a_task("t", services=(a_service("${meta.name}"),))), create_index=1)
        allocations = an_allocation(job, "a1", node_id=node.id), an_allocation(job, "a2")
        changes = JOBS.build_put(job), JOB_VERSIONS.build_put(job), *map(ALLOCATIONS.build_put, allocations)
        await commit(server, *changes)
        names = ["web", "a\nb", "a\u202eb", "..", "", "x" * 60_000]
        services = [
            *({"ID": f"_nomad-task-a1-t-{name}-", "ServiceName": name, "Namespace": "default"} for name in names),
            {"ID": "_nomad-task-a2-t-web-", "ServiceName": "web", "Namespace": "default"},
            {"ID": "_nomad-task-a1-t-web-" + "p" * 2_000, "ServiceName": "web", "Namespace": "default"},
            {"ID": "_nomad-task-a1-t-web-1", "ServiceName": "web", "Namespace": "default", "Port": 70_000},
        ]

        report = {"Allocations": [{"ID": "a1", "ClientStatus": "running", "Services": services}]}
        secret = {"X-Cluster-Node-Secret": node.secret_id}
        reply = await put(server, f"/v1/node/{node.id}/report", report, headers=secret)

        assert reply.status == 200, status_and_text(reply)
        allocation = server.replica.get(ALLOCATIONS, "a1")
        assert allocation is not None
        assert allocation.client_status is ClientStatus.RUNNING
        stored = [(each.id, each.datacenter) for each in server.replica.iter_all(SERVICES)]
        assert stored == [("_nomad-task-a1-t-web-", "dc1")]
        assert "refused service registrations of a node" in caplog.text


@in_virtual_time
async def test_a_server_follows_the_log_although_a_node_reports_impossible_amounts() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        resources = {"Cpu": {"CpuShares": 2**63 - 1}, "Memory": {"MemoryMB": 2**63 - 1}}
        reserved = {"Cpu": {"CpuShares": -5}, "Memory": {"MemoryMB": -5}}
        reported = {"ID": node.id, "NodeResources": resources, "ReservedResources": reserved}

        reply = await put(server, f"/v1/node/{node.id}/register", {"Node": reported, "SecretID": node.secret_id})

        assert reply.status == 200, status_and_text(reply)
        assert (await put(server, "/v1/namespace", {"Name": "later"})).status == 200
        assert (await get(server, "/v1/namespace/later")).status == 200
