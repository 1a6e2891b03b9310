"""Endpoints about the agent that answers: members, health, who may ask what, and servers that answer for others."""

import json
from collections.abc import AsyncGenerator, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from tests.cluster.api.test_operator import get, put, with_member
from tests.cluster.api.test_regions import fetch
from tests.kit.cluster import ACluster
from tests.kit.passage import InMemoryPassage
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.server.agent_interface import AgentInfo, NoAgentInterface, ProcessInfo
from wharf.cluster.server.metrics import MetricFilter, RequestMeter
from wharf.cluster.server.relay import HOPS_HEADER, RequestRelay
from wharf.cluster.state.tables import MEMBERS
from wharf.contract.client.relay.port import RelayRequest


class Talking(NoAgentInterface):
    """An agent that logs three lines and then falls silent."""

    followers = 0

    async def follow_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        self.followers += 1
        try:
            for number in range(3):
                yield f"line {number} of {level}{' as JSON' if as_json else ''}"
            await pass_time(1_000)
        finally:
            self.followers -= 1

    async def list_processes(self) -> Sequence[ProcessInfo]:
        return [ProcessInfo("brain", 7, "ready", 0, "task think\n")]


DEBUGGED = AgentInfo(is_debug_enabled=True, is_prometheus_enabled=True, has_node=True, node_servers=("10.0.0.1:4646",))


# -- members


@in_virtual_time
async def test_members_are_shown_as_clients_know_them_and_never_with_their_secret() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2", door_secret="a secret", build="1.0", datacenter="dc2")

        reply = await get(server, "/v1/agent/members")

        told = json.loads(reply.body)
        (member,) = [one for one in told["Members"] if one["Name"] == "m2.global"]
        assert (told["ServerName"], told["ServerRegion"], told["ServerDC"]) == ("m1", "global", "dc1")
        assert (member["Addr"], member["Port"], member["Status"], member["Tags"]["dc"]) == ("m2", 4646, "alive", "dc2")
        assert b"secret" not in reply.body.lower()


@in_virtual_time
async def test_a_member_that_is_gone_is_forgotten_by_name_or_id() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        for name in ("m2", "m3"):
            await with_member(server, name)

        replies = [
            await put(server, "/v1/agent/force-leave", query=query)
            for query in ("node=m2.global", "node=m3&prune=true")
        ]

        assert [(reply.status, reply.body) for reply in replies] == [(200, b""), (200, b"")]
        assert [member.id for member in server.replica.iter_all(MEMBERS)] == ["m1"]


@pytest.mark.parametrize(
    ("path", "query", "status", "text"),
    [
        ("/v1/agent/force-leave", "", 400, "missing node to force leave"),
        ("/v1/agent/force-leave", "node=m1&prune=x", 400, "invalid prune value"),
        ("/v1/agent/force-leave", "node=nobody", 404, "no server nobody is known"),
        ("/v1/agent/force-leave", "node=m1", 409, "m1 is the leader: make another server the leader first"),
        ("/v1/agent/join", "", 400, "missing address to join"),
        ("/v1/agent/servers", "", 400, "missing server address"),
        ("/v1/agent/servers", "address=a", 501, "Invalid method"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(path: str, query: str, status: int, text: str) -> None:
    @in_virtual_time
    async def scene() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            before = server.replica.index

            reply = await put(server, path, query=query)

            assert (reply.status, reply.body.decode(), server.replica.index) == (status, text, before)

    scene()


@in_virtual_time
async def test_joining_tells_which_servers_share_our_log() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2")

        reply = await put(server, "/v1/agent/join", query="address=m2:4646&address=stranger:1")

        told = json.loads(reply.body)
        assert (reply.status, told["num_joined"], told["warning"]) == (200, 1, "")
        assert told["error"].startswith("stranger:1: not a member")


@in_virtual_time
async def test_only_an_agent_with_a_node_knows_servers() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        without = await get(server, "/v1/agent/servers")
        server.server.agent = NoAgentInterface(DEBUGGED)

        reply = await get(server, "/v1/agent/servers")

        assert (without.status, without.body) == (501, b"Invalid method")
        assert json.loads(reply.body) == ["10.0.0.1:4646", "m1:4646"]


# -- health


@in_virtual_time
async def test_health_tells_of_what_is_asked_for() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        told = {
            query: (reply.status, json.loads(reply.body))
            for query in ("", "type=server", "type=client", "type=nothing")
            for reply in [await get(server, "/v1/agent/health", query)]
        }

        well = {"ok": True, "message": "ok"}
        assert told == {
            "": (200, {"server": well}),
            "type=server": (200, {"server": well}),
            "type=client": (500, {"client": {"ok": False, "message": "client not enabled"}}),
            "type=nothing": (200, {}),
        }


@in_virtual_time
async def test_a_server_without_a_leader_is_not_well() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(leads=False), "/v1/agent/health")

        assert (reply.status, json.loads(reply.body)) == (500, {"server": {"ok": False, "message": "no leader"}})


# -- who is it


@in_virtual_time
async def test_an_agent_tells_its_configuration_itself_and_figures() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.server.agent = NoAgentInterface(AgentInfo(configuration={"region": "global"}, version="1.2.3"))

        told = json.loads((await get(server, "/v1/agent/self")).body)

        assert told["config"] == {"region": "global", "Version": {"Version": "1.2.3"}}
        assert (told["stats"]["wharf"]["leader"], told["stats"]["raft"]["state"]) == ("true", "Leader")
        assert all(isinstance(value, str) for part in told["stats"].values() for value in part.values())


@in_virtual_time
async def test_the_one_scheduler_of_a_server_is_told() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")

        told = json.loads((await get(server, "/v1/agent/schedulers")).body)
        config = json.loads((await get(server, "/v1/agent/schedulers/config")).body)
        changed = await put(server, "/v1/agent/schedulers/config", {"num_schedulers": 9})

        assert [(one["id"], one["status"], one["workload_status"]) for one in told["schedulers"]] == [
            ("m1", "started", "idle")
        ]
        assert (told["server_id"], config["num_schedulers"], changed.status) == ("m1", 1, 501)


# -- looking on


@in_virtual_time
async def test_lines_of_the_log_come_plain_or_in_frames_and_end_with_the_listener() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        talking = server.server.agent = Talking()
        passage = InMemoryPassage(server.api)

        async with passage.open(RelayRequest("GET", b"/v1/agent/monitor?plain=true&log_level=WARN", ())) as incoming:
            lines = [await anext(incoming.parts) for _ in range(3)]
            assert talking.followers == 1
        assert (incoming.status, lines) == (200, [f"line {number} of warn\n".encode() for number in range(3)])
        assert talking.followers == 0

        async with passage.open(RelayRequest("GET", b"/v1/agent/monitor", ())) as incoming:
            frames = [json.loads(await anext(incoming.parts)) for _ in range(5)]
        assert [sorted(frame) for frame in frames] == [["Data"], ["Data"], ["Data"], [], []]
        assert talking.followers == 0


@in_virtual_time
async def test_without_access_control_processes_are_looked_at_only_where_debugging_is_on() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.server.agent = Talking()
        paths = ("/v1/agent/host", "/v1/agent/pprof/goroutine", "/v1/agent/pprof/profile", "/v1/agent/pprof/cmdline")

        refused = [await get(server, path) for path in paths]
        server.server.agent = Talking(DEBUGGED)
        stacks = await get(server, "/v1/agent/pprof/goroutine")

        assert [(reply.status, reply.body) for reply in refused] == [(403, b"Permission denied")] * 4
        assert (stacks.status, stacks.headers["content-type"]) == (200, "text/plain")
        assert stacks.body == b"process brain (7), ready\n\ntask think\n"


# -- servers that answer for others


@in_virtual_time
async def test_who_names_another_server_gets_its_answer_and_once_passed_on_is_enough() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await with_member(first, "m2")
        await until(lambda: second.server.replica.get(MEMBERS, "m2"), what="the second server knows of itself")
        second.server.agent = Talking(DEBUGGED)
        first.server.agent = NoAgentInterface(DEBUGGED)
        to_second = InMemoryPassage(second.api)
        first.server.relay = RequestRelay({"m2:4646": to_second}.__getitem__)

        there = await fetch(first.api, "GET", "/v1/agent/pprof/goroutine?server_id=m2")
        missing = await fetch(first.api, "GET", "/v1/agent/pprof/goroutine?server_id=nobody")
        twice = await fetch(
            first.api, "GET", "/v1/agent/pprof/goroutine?server_id=m2", headers=((HOPS_HEADER, b"member"),)
        )

        assert (there.status, there.body) == (200, b"process brain (7), ready\n\ntask think\n")
        assert (missing.status, missing.body) == (400, b"unknown Wharf server nobody")
        assert (twice.status, len(to_second.sent)) == (503, 1)
        assert to_second.open_count == 0


@in_virtual_time
async def test_a_server_that_does_not_answer_is_503() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        await with_member(first, "m2")
        first.server.agent = NoAgentInterface(DEBUGGED)
        first.server.relay = RequestRelay({"m2:4646": InMemoryPassage(None)}.__getitem__)

        reply = await fetch(first.api, "GET", "/v1/agent/host?server_id=m2")

        assert (reply.status, reply.body) == (503, b"nobody answers")


# -- figures


@in_virtual_time
async def test_figures_tell_of_requests_the_replica_and_the_queue() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.server.agent = NoAgentInterface(DEBUGGED)
        for _ in range(3):
            await get(server, "/v1/jobs")
        await get(server, "/v1/job/nobody")
        await pass_time(10)

        told = json.loads((await get(server, "/v1/metrics")).body)

        counters = {(one["Labels"]["noun"], one["Labels"]["status"]): one["Count"] for one in told["Counters"]}
        gauges = {one["Name"]: one["Value"] for one in told["Gauges"] if not one["Labels"]}
        assert counters == {("job", "2xx"): 3, ("job", "4xx"): 1}
        assert gauges["wharf.raft.appliedIndex"] == server.replica.index
        assert (gauges["wharf.replica.index_behind"], gauges["wharf.broker.total_ready"]) == (0, 0)
        assert (gauges["wharf.http.blocked_queries"], gauges["wharf.raft.state.leader"]) == (0, 1)


@in_virtual_time
async def test_figures_that_are_withheld_are_not_told_and_gauges_name_the_host() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        published = MetricFilter(
            prefixes=("+wharf.raft", "-wharf.raft.state", "+wharf.http.requests"),
            is_published_by_default=False,
            host="h1",
        )
        server.server.agent = NoAgentInterface(replace(DEBUGGED, metric_filter=published))
        await get(server, "/v1/jobs")
        await pass_time(10)

        told = json.loads((await get(server, "/v1/metrics")).body)
        text = (await get(server, "/v1/metrics", "format=prometheus")).body.decode()

        assert [(gauge["Name"], gauge["Labels"]) for gauge in told["Gauges"]] == [
            ("wharf.raft.appliedIndex", {"host": "h1"}),
            ("wharf.raft.leader.lastContact", {"host": "h1"}),
        ]
        assert (len(told["Counters"]), told["Samples"], "request_ms" in text) == (1, [], False)


@in_virtual_time
async def test_an_interval_of_a_while_ago_is_told_as_long_as_it_is_kept() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.server.meter = RequestMeter(server.world, interval_s=10.0, retention_s=30.0)
        await get(server, "/v1/jobs")
        await pass_time(26)

        async def counts(ago: str) -> list[int]:
            return [
                one["Count"] for one in json.loads((await get(server, "/v1/metrics", f"ago={ago}")).body)["Counters"]
            ]

        then, last, gone = await counts("12s"), await counts("0s"), await get(server, "/v1/metrics", "ago=1m")
        assert (then, last, gone.status) == ([1], [], 404)


@in_virtual_time
async def test_prometheus_gets_its_text_where_it_is_enabled() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        refused = await get(server, "/v1/metrics", "format=prometheus")
        server.server.agent = NoAgentInterface(DEBUGGED)
        await get(server, "/v1/jobs")

        reply = await get(server, "/v1/metrics", "format=prometheus")

        lines = reply.body.decode().splitlines()
        assert (refused.status, refused.body) == (415, b"Prometheus is not enabled")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
        assert 'wharf_http_request_ms_bucket{kind="read",le="1",noun="job",status="2xx"} 1' in lines
        assert f"wharf_raft_appliedIndex {server.replica.index}" in lines
        assert len([line for line in lines if line.startswith("# TYPE")]) == len(
            {line.split()[2] for line in lines if line.startswith("# TYPE")}
        )


@in_virtual_time
async def test_what_a_server_that_follows_cannot_know_is_left_out_of_its_figures() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        names = {one["Name"] for one in json.loads((await get(server, "/v1/metrics")).body)["Gauges"]}

        assert "wharf.raft.appliedIndex" in names
        assert not any(name.startswith("wharf.broker.") for name in names)


def test_no_shape_of_an_agent_has_a_place_for_a_secret() -> None:
    from wharf.contract.wire import agents

    fields = {
        field.encode_name.lower()
        for shape in vars(agents).values()
        if isinstance(shape, type) and issubclass(shape, msgspec.Struct)
        for field in msgspec.structs.fields(shape)
    }
    assert not any("secret" in field for field in fields)
