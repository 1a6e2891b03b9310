"""Endpoints for operators: configurations, servers, cluster health."""

import json
import re
from typing import Any

import pytest

from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.state.tables import KNOWN_SERVERS, LEADER, MEMBERS
from wharf.contract.client import ClientReply
from wharf.contract.model.cluster import KnownServer, Member
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.world.failover import MAX_PART_S

SCHEDULER = "/v1/operator/scheduler/configuration"
AUTOPILOT = "/v1/operator/autopilot/configuration"


async def get(server: OneServer, path: str, query: str = "") -> ClientReply:
    return await send_raw(server.api, "GET", path, query=query)


async def put(
    server: OneServer, path: str, body: object = None, query: str = "", *, method: str = "PUT"
) -> ClientReply:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return await send_raw(server.api, method, path, query=query, body=data)


async def with_member(server: OneServer, name: str, **fields: Any) -> None:
    """Store the record of a server without a process."""
    member = Member(id=name, name=name, address=f"{name}:4646", create_index=WRITE_INDEX, **fields)
    await server.server.writer.commit(Write("joined", Cause(CauseKind.LEASE), [MEMBERS.build_put(member)]))
    await until(lambda: server.replica.get(MEMBERS, name), what=f"{name} is a member")


async def with_failed_server(server: OneServer, name: str) -> None:
    """Store the record of a server that ended without leaving."""
    known = KnownServer(id=name, name=name, address=f"{name}:4646", failed_at=1, create_index=WRITE_INDEX)
    await server.server.writer.commit(Write("failed", Cause(CauseKind.LEASE), [KNOWN_SERVERS.build_put(known)]))
    await until(lambda: server.replica.get(KNOWN_SERVERS, name), what=f"{name} is known")


# -- scheduler configuration


@in_virtual_time
async def test_a_new_cluster_has_the_configuration_of_its_bootstrap() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), SCHEDULER)

        result = json.loads(reply.body)
        assert set(result) == {"SchedulerConfig", "Index", "LastContact", "KnownLeader", "NextToken"}
        assert result["SchedulerConfig"]["SchedulerAlgorithm"] == "binpack"
        assert result["SchedulerConfig"]["PreemptionConfig"]["SystemSchedulerEnabled"] is True


@in_virtual_time
async def test_a_configuration_is_replaced_as_a_whole_and_missing_fields_are_off() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        stored = await put(server, SCHEDULER, {"SchedulerAlgorithm": "spread", "NodeLimitForFeasibilityChecks": 7})

        result = json.loads((await get(server, SCHEDULER)).body)["SchedulerConfig"]
        assert json.loads(stored.body) == {"Updated": True, "Index": result["ModifyIndex"]}
        assert stored.headers["x-cluster-index"] == str(result["ModifyIndex"])
        # Stored and returned without any effect.
        assert (result["SchedulerAlgorithm"], result["NodeLimitForFeasibilityChecks"]) == ("spread", 7)
        assert result["PreemptionConfig"]["SystemSchedulerEnabled"] is False


@in_virtual_time
async def test_a_check_and_set_of_a_configuration_needs_the_current_version() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        version = json.loads((await get(server, SCHEDULER)).body)["SchedulerConfig"]["ModifyIndex"]

        invalid = await put(server, SCHEDULER, {"SchedulerAlgorithm": "spread"}, f"cas={version + 1}")
        right = await put(server, SCHEDULER, {"SchedulerAlgorithm": "spread"}, f"cas={version}")

        assert (invalid.status, json.loads(invalid.body)["Updated"]) == (200, False)
        assert (right.status, json.loads(right.body)["Updated"]) == (200, True)


@pytest.mark.parametrize(
    ("body", "query", "text"),
    [
        ({"SchedulerAlgorithm": "best"}, "", "invalid scheduler algorithm: best"),
        (
            {"SchedulerAlgorithm": "spread"},
            "cas=x",
            'Error parsing cas value: strconv.ParseUint: parsing "x": invalid syntax',
        ),
        (b"", "", "Request body is empty"),
    ],
)
def test_an_invalid_configuration_is_400_and_changes_nothing(body: object, query: str, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            before = server.replica.index

            reply = await put(server, SCHEDULER, body, query)

            assert (reply.status, reply.body.decode()) == (400, text)
            assert server.replica.index == before

    run()


@in_virtual_time
async def test_a_configuration_that_cannot_be_parsed_is_refused_with_the_reason() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = [await put(server, path, b"{") for path in (SCHEDULER, AUTOPILOT)]

        assert [reply.status for reply in replies] == [400, 400]
        assert replies[0].body.startswith(b"Error parsing scheduler config: ")
        assert replies[1].body.startswith(b"Error parsing autopilot config: ")


# -- autopilot


@in_virtual_time
async def test_autopilot_durations_are_texts_in_replies_and_bodies() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        result = json.loads((await get(server, AUTOPILOT)).body)
        assert (result["LastContactThreshold"], result["ServerStabilizationTime"]) == ("200ms", "10s")
        assert (result["CleanupDeadServers"], result["MaxTrailingLogs"]) == (True, 250)

        stored = await put(server, AUTOPILOT, result | {"LastContactThreshold": "1.5s", "MinQuorum": 3})

        assert (stored.status, stored.body, "x-cluster-index" in stored.headers) == (200, b"true", False)
        after = json.loads((await get(server, AUTOPILOT)).body)
        assert (after["LastContactThreshold"], after["MinQuorum"]) == ("1.5s", 3)
        assert (await put(server, AUTOPILOT, result, "cas=0")).body == b"false"


@in_virtual_time
async def test_an_invalid_autopilot_duration_is_400_and_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        before = server.replica.index

        reply = await put(server, AUTOPILOT, {"LastContactThreshold": "soon"})

        assert (reply.status, reply.body) == (400, b'Error parsing autopilot config: time: invalid duration "soon"')
        assert server.replica.index == before


@in_virtual_time
async def test_servers_that_answer_and_are_up_to_date_are_healthy() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")

        reply = await get(first, "/v1/operator/autopilot/health")

        result = json.loads(reply.body)
        assert (reply.status, result["Healthy"], result["Leader"], result["Voters"]) == (200, True, "m1", ["m1"])
        (server,) = result["Servers"]
        assert (server["Healthy"], server["Leader"], server["LastIndex"]) == (True, True, first.replica.index)


@in_virtual_time
async def test_a_server_that_does_not_answer_makes_the_cluster_unhealthy_with_429() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await with_member(first, "m2")
        second.faults.disconnect()
        await pass_time(10)  # The second server has noticed that its store does not reply.

        reply = await get(first, "/v1/operator/autopilot/health")

        result = {server["ID"]: server for server in json.loads(reply.body)["Servers"]}
        assert (reply.status, json.loads(reply.body)["Healthy"]) == (429, False)
        assert (result["m1"]["Healthy"], result["m2"]["Healthy"]) == (True, False)
        assert result["m2"]["WhyUnhealthy"].startswith("the store has not replied since 20")
        second.faults.reconnect()


# -- servers


@in_virtual_time
async def test_the_servers_of_the_region_are_listed_with_their_leader() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2", datacenter="dc2")

        result = json.loads((await get(server, "/v1/operator/raft/configuration")).body)

        assert [(item["ID"], item["Address"], item["Leader"], item["Voter"]) for item in result["Servers"]] == [
            ("m1", "m1:4646", True, True),
            ("m2", "m2:4646", False, True),
        ]
        assert result["Index"] == server.replica.index


@in_virtual_time
async def test_a_failed_server_can_be_removed_and_one_that_runs_cannot() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2")
        await with_failed_server(server, "m3")

        removed = await put(server, "/v1/operator/raft/peer", query="id=m3", method="DELETE")
        runs = await put(server, "/v1/operator/raft/peer", query="id=m2", method="DELETE")
        leads = await put(server, "/v1/operator/raft/peer", query="id=m1", method="DELETE")

        assert (removed.status, removed.body) == (200, b"")
        assert server.replica.get(KNOWN_SERVERS, "m3") is None
        assert runs.status == 409
        assert runs.body.startswith(b"m2 at m2:4646 is listed as alive: stop it")
        assert server.replica.get(MEMBERS, "m2") is not None
        assert leads.status == 409
        assert leads.body.startswith(b"m1 at m1:4646 is listed as alive: stop it")
        assert server.replica.get(MEMBERS, "m1") is not None


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("", 400, "Must specify the peer's ID to remove"),
        ("address=1.2.3.4:1", 400, "removing a server by its address is not supported: use its id"),
        ("id=nobody", 404, 'id "nobody" was not found in the Raft configuration'),
    ],
)
def test_a_server_that_cannot_be_removed_is_refused_with_the_reason(query: str, status: int, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            before = server.replica.index

            reply = await put(server, "/v1/operator/raft/peer", query=query, method="DELETE")

            assert (reply.status, reply.body.decode()) == (status, text)
            assert server.replica.index == before

    run()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "must specify id or address"),
        ("id=a&address=b", "must specify either id or address"),
        ("id=", "id must be non-empty"),
        ("address=", "address must be non-empty"),
        ("id=short", "id must be a uuid: uuid string is wrong length"),
        ("address=host", "address must be in IP:port format: not an ip:port"),
        (
            "id=00000000-0000-0000-0000-000000000000",
            'id "00000000-0000-0000-0000-000000000000" was not found in the Raft configuration',
        ),
        ("address=1.2.3.4:5", 'address "1.2.3.4:5" was not found in the Raft configuration'),
        ("id=m1", "m1 is already the leader"),
    ],
)
def test_an_impossible_transfer_is_400_and_the_leader_stays(query: str, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            await with_member(server, "m1")
            version = server.replica.get_version(LEADER)

            reply = await put(server, "/v1/operator/raft/transfer-leadership", query=query)

            assert (reply.status, reply.body.decode()) == (400, text)
            assert server.replica.get_version(LEADER) == version

    run()


@in_virtual_time
async def test_leadership_is_transferred_to_the_named_server() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await with_member(first, "m2")
        lock = first.election.term
        assert lock is not None

        pending = cluster.start(put(second, "/v1/operator/raft/transfer-leadership", query="id=m2"), name="transfer")
        await until(lambda: lock.successor == "m2", what="the leader transfers leadership")
        await second.lead()

        reply = await pending
        assert (reply.status, reply.body) == (200, b"")
        assert json.loads((await get(first, "/v1/status/leader")).body) == "m2:4646"


# -- license and rebalance


@in_virtual_time
async def test_the_license_endpoint_returns_no_content() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        read, stored = await get(server, "/v1/operator/license"), await put(server, "/v1/operator/license")

        assert (read.status, read.body) == (204, b"")
        assert (stored.status, stored.body) == (501, b"not supported: every feature is free, so there is no license")


@in_virtual_time
async def test_a_rebalance_plan_describes_the_moves_and_moves_nothing() -> None:
    async with ACluster() as cluster:
        reply = await put(await cluster.a_server(), "/v1/operator/rebalance", query="plan=true")

        result = json.loads(reply.body)
        assert (reply.status, result["Text"], result["Moves"], result["Moving"]) == (
            200,
            "no allocation would have a better score on another node: 0 nodes in use",
            [],
            0,
        )


# -- an unreachable store


@in_virtual_time
async def test_without_its_store_a_server_names_the_cause_and_no_leader() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.faults.disconnect()
        await pass_time(10.0)

        read = await get(server, "/v1/jobs")
        write = await put(server, "/v1/namespace/shop", {"Name": "shop"})
        leader = await get(server, "/v1/status/leader")
        health = await get(server, "/v1/operator/autopilot/health")

        for reply in (read, write):
            text = reply.body.decode()
            assert text.startswith(("No cluster leader: ", "nothing was written: ")), text
            assert "the store has not replied since 20" in text
            assert "the log in memory cannot be reached" in text
            assert reply.headers["x-cluster-error-reason"] == "store-unreachable"
        assert read.body.startswith(b"No cluster leader: ")
        assert leader.body == b'""'
        assert leader.headers["x-cluster-error-reason"] == "store-unreachable"
        assert json.loads(health.body)["Leader"] == ""
        server.faults.reconnect()


@in_virtual_time
async def test_the_health_of_servers_says_why_the_store_accepts_no_writes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        cluster.log.full_reason = "the quota is used up"

        health = await get(server, "/v1/operator/autopilot/health")

        result = json.loads(health.body)
        assert (health.status, result["FailureTolerance"]) == (429, 0)
        assert [each["WhyUnhealthy"] for each in result["Servers"]] == ["the quota is used up"]


@in_virtual_time
async def test_the_health_of_a_server_without_its_store_says_since_when_and_why() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.faults.disconnect()
        await pass_time(30.0)
        await get(server, "/v1/operator/autopilot/health")  # Notices the reason, which takes longer than a request.
        await pass_time(15.0)

        health = await get(server, "/v1/operator/autopilot/health")

        (reported,) = json.loads(health.body)["Servers"]
        assert (health.status, reported["Healthy"]) == (429, False)
        assert re.fullmatch(r"4\d(\.\d+)?s", reported["LastContact"])
        assert re.fullmatch(
            r"the store has not replied since 20\S+Z: the log in memory cannot be reached.*", reported["WhyUnhealthy"]
        )
        server.faults.reconnect()


@in_virtual_time
async def test_the_health_of_servers_is_reported_before_a_client_tries_another_server() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await with_member(first, "m2")
        first.faults.disconnect()
        second.faults.disconnect()
        began_s = first.world.monotonic_s()

        await get(first, "/v1/operator/autopilot/health")

        assert first.world.monotonic_s() - began_s < MAX_PART_S - 0.3
        first.faults.reconnect()
        second.faults.reconnect()
