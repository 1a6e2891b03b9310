"""Endpoints for those who run the cluster: configurations, servers, health."""

import json
from typing import Any

import pytest

from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import ask
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.contract.client import ClientReply
from wharf.contract.model.cluster import Member
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write

SCHEDULER = "/v1/operator/scheduler/configuration"
AUTOPILOT = "/v1/operator/autopilot/configuration"


async def get(server: OneServer, path: str, query: str = "") -> ClientReply:
    return await ask(server.api, "GET", path, query=query)


async def put(
    server: OneServer, path: str, body: object = None, query: str = "", *, method: str = "PUT"
) -> ClientReply:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return await ask(server.api, method, path, query=query, body=data)


async def with_member(server: OneServer, name: str, **fields: Any) -> None:
    """A record of a server that no process stands behind."""
    member = Member(id=name, name=name, address=f"{name}:4646", create_index=WRITE_INDEX, **fields)
    await server.server.writer.commit(Write("joined", Cause(CauseKind.LEASE), [MEMBERS.build_put(member)]))
    await until(lambda: server.replica.get(MEMBERS, name), what=f"{name} is a member")


# -- the scheduler's configuration


@in_virtual_time
async def test_a_new_cluster_shows_the_configuration_that_it_was_founded_with() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), SCHEDULER)

        told = json.loads(reply.body)
        assert set(told) == {"SchedulerConfig", "Index", "LastContact", "KnownLeader", "NextToken"}
        assert told["SchedulerConfig"]["SchedulerAlgorithm"] == "binpack"
        assert told["SchedulerConfig"]["PreemptionConfig"]["SystemSchedulerEnabled"] is True


@in_virtual_time
async def test_a_whole_document_is_replaced_and_what_is_left_out_is_off() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        written = await put(server, SCHEDULER, {"SchedulerAlgorithm": "spread", "NodeLimitForFeasibilityChecks": 7})

        told = json.loads((await get(server, SCHEDULER)).body)["SchedulerConfig"]
        assert json.loads(written.body) == {"Updated": True, "Index": told["ModifyIndex"]}
        assert written.headers["x-cluster-index"] == str(told["ModifyIndex"])
        # Stored, shown, and followed by nobody.
        assert (told["SchedulerAlgorithm"], told["NodeLimitForFeasibilityChecks"]) == ("spread", 7)
        assert told["PreemptionConfig"]["SystemSchedulerEnabled"] is False


@in_virtual_time
async def test_a_check_and_set_writes_only_where_the_version_is_the_expected_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        version = json.loads((await get(server, SCHEDULER)).body)["SchedulerConfig"]["ModifyIndex"]

        wrong = await put(server, SCHEDULER, {"SchedulerAlgorithm": "spread"}, f"cas={version + 1}")
        right = await put(server, SCHEDULER, {"SchedulerAlgorithm": "spread"}, f"cas={version}")

        assert (wrong.status, json.loads(wrong.body)["Updated"]) == (200, False)
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
def test_a_bad_configuration_is_400_and_changes_nothing(body: object, query: str, text: str) -> None:
    @in_virtual_time
    async def scene() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            before = server.replica.index

            reply = await put(server, SCHEDULER, body, query)

            assert (reply.status, reply.body.decode()) == (400, text)
            assert server.replica.index == before

    scene()


@in_virtual_time
async def test_a_configuration_that_does_not_parse_says_of_what() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = [await put(server, path, b"{") for path in (SCHEDULER, AUTOPILOT)]

        assert [reply.status for reply in replies] == [400, 400]
        assert replies[0].body.startswith(b"Error parsing scheduler config: ")
        assert replies[1].body.startswith(b"Error parsing autopilot config: ")


# -- autopilot


@in_virtual_time
async def test_autopilot_shows_its_durations_as_text_and_takes_them_so() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        told = json.loads((await get(server, AUTOPILOT)).body)
        assert (told["LastContactThreshold"], told["ServerStabilizationTime"]) == ("200ms", "10s")
        assert (told["CleanupDeadServers"], told["MaxTrailingLogs"]) == (True, 250)

        written = await put(server, AUTOPILOT, told | {"LastContactThreshold": "1.5s", "MinQuorum": 3})

        assert (written.status, written.body, "x-cluster-index" in written.headers) == (200, b"true", False)
        after = json.loads((await get(server, AUTOPILOT)).body)
        assert (after["LastContactThreshold"], after["MinQuorum"]) == ("1.5s", 3)
        assert (await put(server, AUTOPILOT, told, "cas=0")).body == b"false"


@in_virtual_time
async def test_a_bad_duration_of_autopilot_is_400_and_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        before = server.replica.index

        reply = await put(server, AUTOPILOT, {"LastContactThreshold": "soon"})

        assert (reply.status, reply.body) == (400, b'Error parsing autopilot config: time: invalid duration "soon"')
        assert server.replica.index == before


@in_virtual_time
async def test_servers_that_answer_and_keep_up_are_healthy() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")

        reply = await get(first, "/v1/operator/autopilot/health")

        told = json.loads(reply.body)
        assert (reply.status, told["Healthy"], told["Leader"], told["Voters"]) == (200, True, "m1", ["m1"])
        (server,) = told["Servers"]
        assert (server["Healthy"], server["Leader"], server["LastIndex"]) == (True, True, first.replica.index)


@in_virtual_time
async def test_a_server_that_does_not_answer_makes_the_cluster_unhealthy_with_429() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await with_member(first, "m2")
        second.faults.disconnect()

        reply = await get(first, "/v1/operator/autopilot/health")

        told = {server["ID"]: server for server in json.loads(reply.body)["Servers"]}
        assert (reply.status, json.loads(reply.body)["Healthy"]) == (429, False)
        assert (told["m1"]["Healthy"], told["m2"]["Healthy"]) == (True, False)
        assert told["m2"]["LastContact"] == "never"
        second.faults.reconnect()


# -- servers


@in_virtual_time
async def test_the_servers_of_the_region_are_listed_with_their_leader() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2", datacenter="dc2")

        told = json.loads((await get(server, "/v1/operator/raft/configuration")).body)

        assert [(one["ID"], one["Address"], one["Leader"], one["Voter"]) for one in told["Servers"]] == [
            ("m1", "m1:4646", True, True),
            ("m2", "m2:4646", False, True),
        ]
        assert told["Index"] == server.replica.index


@in_virtual_time
async def test_a_server_that_is_gone_is_forgotten_and_the_leader_is_not() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2")

        gone = await put(server, "/v1/operator/raft/peer", query="id=m2", method="DELETE")
        leads = await put(server, "/v1/operator/raft/peer", query="id=m1", method="DELETE")

        assert (gone.status, gone.body) == (200, b"")
        assert server.replica.get(MEMBERS, "m2") is None
        assert (leads.status, leads.body) == (409, b"m1 is the leader: make another server the leader first")
        assert server.replica.get(MEMBERS, "m1") is not None


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("", 400, "Must specify the peer's ID to remove"),
        ("address=1.2.3.4:1", 400, "removing a server by its address is not supported: use its id"),
        ("id=nobody", 404, 'id "nobody" was not found in the Raft configuration'),
    ],
)
def test_a_server_that_cannot_be_removed_is_told_why(query: str, status: int, text: str) -> None:
    @in_virtual_time
    async def scene() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            before = server.replica.index

            reply = await put(server, "/v1/operator/raft/peer", query=query, method="DELETE")

            assert (reply.status, reply.body.decode()) == (status, text)
            assert server.replica.index == before

    scene()


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
        ("id=m1", "m1 leads already"),
    ],
)
def test_a_transfer_to_nobody_is_400_and_the_leader_stays(query: str, text: str) -> None:
    @in_virtual_time
    async def scene() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            await with_member(server, "m1")
            version = server.replica.get_version(LEADER)

            reply = await put(server, "/v1/operator/raft/transfer-leadership", query=query)

            assert (reply.status, reply.body.decode()) == (400, text)
            assert server.replica.get_version(LEADER) == version

    scene()


@in_virtual_time
async def test_the_leadership_is_handed_to_the_server_that_is_named() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await with_member(first, "m2")
        held = first.election.held
        assert held is not None

        asking = cluster.start(put(second, "/v1/operator/raft/transfer-leadership", query="id=m2"), name="transfer")
        await until(lambda: held.heir == "m2", what="the leader hands over")
        await second.lead()

        reply = await asking
        assert (reply.status, reply.body) == (200, b"")
        assert json.loads((await get(first, "/v1/status/leader")).body) == "m2:4646"


# -- what is left out


@in_virtual_time
async def test_there_is_no_licence_and_it_is_said() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        read, written = await get(server, "/v1/operator/license"), await put(server, "/v1/operator/license")

        assert (read.status, read.body) == (204, b"")
        assert (written.status, written.body) == (501, b"not supported: every feature is free, so there is no license")


@in_virtual_time
async def test_what_a_rebalancing_would_move_is_told_in_a_sentence_and_nothing_is_moved() -> None:
    async with ACluster() as cluster:
        reply = await put(await cluster.a_server(), "/v1/operator/rebalance", query="plan=true")

        told = json.loads(reply.body)
        assert (reply.status, told["Text"], told["Moves"], told["Moving"]) == (
            200,
            "no allocation would have a better score on another node: 0 nodes in use",
            [],
            0,
        )
