"""Endpoints about agents: members, health, logs, processes, metrics, and relays to other servers."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest
from msgspec.structs import replace

from tests.cluster.api.test_operator import get, put, with_failed_server, with_member
from tests.cluster.api.test_regions import fetch
from tests.kit.cluster import ACluster
from tests.kit.in_memory_relay import InMemoryRelay
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.api.relay.members import find_member_secret
from wharf.cluster.server.agent_interface import AgentInfo, NoAgentInterface, ProcessInfo
from wharf.cluster.server.log.reader import CONTACT_LOST_AFTER_S
from wharf.cluster.server.metrics import MetricFilter, RequestMeter
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NodeReply, NodeStream, build_no_node_path
from wharf.cluster.server.relay import HOPS_HEADER, RequestRelay
from wharf.cluster.state.tables import KNOWN_SERVERS, MEMBERS, NODES
from wharf.contract.client.relay.port import RelayReply, RelayRequest
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.wire.credentials import RELAY_SECRET_HEADER

NODE_ID = "8a6f0c44-0000-0000-0000-000000000001"
OTHER_ID = "8a6f0c44-0000-0000-0000-000000000002"


class FakeAgentInterface(NoAgentInterface):
    """An agent that logs three lines and nothing afterwards."""

    followers = 0

    async def open_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        return self._follow_log(level, as_json=as_json)

    async def _follow_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        self.followers += 1
        try:
            for number in range(3):
                yield f"line {number} of {level}{' as JSON' if as_json else ''}"
            await pass_time(1_000)
        finally:
            self.followers -= 1

    async def list_processes(self) -> Sequence[ProcessInfo]:
        return [ProcessInfo("brain", 7, "ready", 0, "task think\n")]


DEBUG_AGENT_INFO = AgentInfo(
    is_debug_enabled=True, is_prometheus_enabled=True, has_node=True, node_servers=("10.0.0.1:4646",)
)


# -- members


@in_virtual_time
async def test_members_are_shown_as_clients_expect_and_never_with_their_secret() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2", door_secret="a secret", build="1.0", datacenter="dc2")

        reply = await get(server, "/v1/agent/members")

        result = json.loads(reply.body)
        (member,) = [item for item in result["Members"] if item["Name"] == "m2.global"]
        assert (result["ServerName"], result["ServerRegion"], result["ServerDC"]) == ("m1", "global", "dc1")
        assert (member["Addr"], member["Port"], member["Status"], member["Tags"]["dc"]) == ("m2", 4646, "alive", "dc2")
        assert b"secret" not in reply.body.lower()


@in_virtual_time
async def test_the_tags_of_members_say_how_many_servers_there_are() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")

        async def read_tags() -> list[tuple[str | None, str | None, str]]:
            members = json.loads((await get(server, "/v1/agent/members")).body)["Members"]
            tags = [member["Tags"] for member in members]
            return [(each.get("bootstrap"), each.get("expect"), each["raft_vsn"]) for each in tags]

        count = server.replica.count_records(MEMBERS)
        await with_member(server, "m2")
        await with_member(server, "m3")
        several = await read_tags()
        for name in ("m2", "m3"):
            await server.server.writer.commit(Write("test", Cause(CauseKind.REQUEST), [MEMBERS.build_delete(name)]))
        await server.server.writer.catch_up()

        assert several == [(None, str(count + 2), "3")] * (count + 2)
        assert await read_tags() == [("1", None, "3")] * count


@in_virtual_time
async def test_a_failed_member_is_removed_by_name_or_id() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        for name in ("m2", "m3"):
            await with_failed_server(server, name)

        replies = [
            await put(server, "/v1/agent/force-leave", query=query)
            for query in ("node=m2.global", "node=m3&prune=true")
        ]

        assert [(reply.status, reply.body) for reply in replies] == [(200, b""), (200, b"")]
        assert not [known for known in server.replica.iter_all(KNOWN_SERVERS) if known.id != "m1"]


@in_virtual_time
async def test_a_member_that_is_alive_is_not_removed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2")

        reply = await put(server, "/v1/agent/force-leave", query="node=m2")

        assert (reply.status, reply.body.decode()) == (
            409,
            "m2 at m2:4646 is listed as alive: stop it, which removes it from the list; one that was killed can be removed after about 10 s, when it is listed as failed",
        )
        assert server.replica.get(MEMBERS, "m2") is not None


M1_ALIVE_TEXT = (
    "m1 at m1:4646 is listed as alive: stop it, which removes it from the list; one that was killed can be removed after "
    "about 10 s, when it is listed as failed"
)


@pytest.mark.parametrize(
    ("path", "query", "status", "text"),
    [
        ("/v1/agent/force-leave", "", 400, "missing node to force leave"),
        ("/v1/agent/force-leave", "node=m1&prune=x", 400, "invalid prune value"),
        ("/v1/agent/force-leave", "node=nobody", 404, "unknown server nobody"),
        ("/v1/agent/force-leave", "node=m1", 409, M1_ALIVE_TEXT),
        ("/v1/agent/join", "", 400, "missing address to join"),
        ("/v1/agent/servers", "", 400, "missing server address"),
        ("/v1/agent/servers", "address=a", 501, "Invalid method"),
    ],
)
def test_invalid_requests_to_agents_are_refused_and_change_nothing(
    path: str, query: str, status: int, text: str
) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            before = server.replica.index

            reply = await put(server, path, query=query)

            assert (reply.status, reply.body.decode(), server.replica.index) == (status, text, before)

    run()


@in_virtual_time
async def test_joining_reports_which_addresses_are_members() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2")

        reply = await put(server, "/v1/agent/join", query="address=m2:4646&address=stranger:1")

        result = json.loads(reply.body)
        assert (reply.status, result["num_joined"], result["warning"]) == (200, 1, "")
        assert result["error"].startswith("stranger:1: not a member")


@in_virtual_time
async def test_only_an_agent_with_a_node_has_a_list_of_servers() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        without = await get(server, "/v1/agent/servers")
        server.server.agent = NoAgentInterface(DEBUG_AGENT_INFO)

        reply = await get(server, "/v1/agent/servers")

        assert (without.status, without.body) == (501, b"Invalid method")
        assert json.loads(reply.body) == ["10.0.0.1:4646", "m1:4646"]


# -- health


@in_virtual_time
async def test_health_reports_the_requested_parts() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        result = {
            query: (reply.status, json.loads(reply.body))
            for query in ("", "type=server", "type=client", "type=nothing")
            for reply in [await get(server, "/v1/agent/health", query)]
        }

        healthy = {"ok": True, "message": "ok"}
        assert result == {
            "": (200, {"server": healthy}),
            "type=server": (200, {"server": healthy}),
            "type=client": (500, {"client": {"ok": False, "message": "client not enabled"}}),
            "type=nothing": (200, {}),
        }


@in_virtual_time
async def test_a_server_without_a_leader_is_unhealthy() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(leads=False), "/v1/agent/health")

        assert (reply.status, json.loads(reply.body)) == (500, {"server": {"ok": False, "message": "no leader"}})


# -- own agent


@in_virtual_time
async def test_an_agent_reports_its_configuration_its_member_and_statistics() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.server.agent = NoAgentInterface(AgentInfo(configuration={"region": "global"}, version="1.2.3"))

        result = json.loads((await get(server, "/v1/agent/self")).body)

        assert result["config"] == {"region": "global", "Version": {"Version": "1.2.3"}}
        assert (result["stats"]["wharf"]["leader"], result["stats"]["raft"]["state"]) == ("true", "Leader")
        assert all(isinstance(value, str) for part in result["stats"].values() for value in part.values())


@in_virtual_time
async def test_an_agent_with_a_node_reports_the_id_of_the_node() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        without_node = json.loads((await get(server, "/v1/agent/self")).body)
        server.server.agent = NoAgentInterface(AgentInfo(has_node=True, node_id="n1"))

        result = json.loads((await get(server, "/v1/agent/self")).body)

        assert (result["stats"]["client"], "client" in without_node["stats"]) == ({"node_id": "n1"}, False)


@in_virtual_time
async def test_the_scheduler_of_a_server_is_reported() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")

        result = json.loads((await get(server, "/v1/agent/schedulers")).body)
        config = json.loads((await get(server, "/v1/agent/schedulers/config")).body)

        assert [(item["id"], item["status"], item["workload_status"]) for item in result["schedulers"]] == [
            ("m1", "started", "idle")
        ]
        assert (result["server_id"], config["num_schedulers"]) == ("m1", 1)


@in_virtual_time
async def test_only_the_scheduler_that_a_server_has_is_accepted() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.server.agent = NoAgentInterface(AgentInfo(enabled_schedulers=("service", "batch")))
        path = "/v1/agent/schedulers/config"

        same = await put(server, path, {"num_schedulers": 1, "enabled_schedulers": ["batch", "service"]})
        more = await put(server, path, {"num_schedulers": 9})
        fewer = await put(server, path, {"enabled_schedulers": ["batch"]})

        assert (same.status, json.loads(same.body)) == (200, json.loads((await get(server, path)).body))
        assert (more.status, more.body) == (
            400,
            b"Invalid request: num_schedulers is 9, but each server has one scheduler process: use 1",
        )
        assert (fewer.status, fewer.body.partition(b" from")[0]) == (
            400,
            b"Invalid request: enabled_schedulers differs",
        )


@in_virtual_time
async def test_a_join_counts_members_by_any_form_of_their_address() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await with_member(server, "m2")

        async def join(*addresses: str) -> tuple[int, str]:
            query = "&".join(f"address={address}" for address in addresses)
            result = json.loads((await put(server, "/v1/agent/join", query=query)).body)
            return result["num_joined"], result["error"]

        assert await join("m2:4646", "m2", "https://m2:4646/") == (3, "")
        assert await join("m2:4646", "m9") == (
            1,
            "m9: not a member; a server joins by using the same log, set in [state] of its configuration",
        )


# -- monitoring


@in_virtual_time
async def test_log_lines_are_streamed_plain_or_in_frames_until_the_caller_disconnects() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        agent = server.server.agent = FakeAgentInterface()
        transport = InMemoryRelay(server.api)

        async with transport.open(RelayRequest("GET", b"/v1/agent/monitor?plain=true&log_level=WARN", ())) as incoming:
            lines = [await anext(incoming.parts) for _ in range(3)]
            assert agent.followers == 1
        assert (incoming.status, lines) == (200, [f"line {number} of warn\n".encode() for number in range(3)])
        assert agent.followers == 0

        async with transport.open(RelayRequest("GET", b"/v1/agent/monitor", ())) as incoming:
            frames = [json.loads(await anext(incoming.parts)) for _ in range(5)]
        assert [sorted(frame) for frame in frames] == [["Data"], ["Data"], ["Data"], [], []]
        assert agent.followers == 0


class LoggingNode:
    """Node channels with one node that logs two parts and nothing afterwards."""

    calls: list[NodeCall]

    def __init__(self) -> None:
        self.calls = []

    def channel_to(self, node_id: str) -> NodeChannel:
        if node_id != NODE_ID:
            raise build_no_node_path()
        return self

    async def call(self, call: NodeCall) -> NodeReply:
        self.calls.append(call)
        return NodeReply("text/plain", parts=self._stream_parts())

    async def open_stream(self, call: NodeCall) -> NodeStream:
        raise AssertionError(f"{call.verb} has no input")

    async def _stream_parts(self) -> AsyncGenerator[bytes, None]:
        yield b"first\n"
        yield b"second\n"
        await pass_time(1_000)


@in_virtual_time
async def test_the_log_of_a_node_is_streamed_plain_or_in_frames() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        node = LoggingNode()
        server.server.node_channels = node
        await server.server.writer.commit(
            Write(
                "test", Cause(CauseKind.REQUEST), [NODES.build_put(a_node(NODE_ID)), NODES.build_put(a_node(OTHER_ID))]
            )
        )
        await server.server.writer.catch_up()
        transport = InMemoryRelay(server.api)

        def open_log(query: str) -> AbstractAsyncContextManager[RelayReply]:
            path = f"/v1/agent/monitor?node_id={NODE_ID}&log_level=debug&log_json=true{query}"
            return transport.open(RelayRequest("GET", path.encode(), ()))

        async with open_log("&plain=true") as incoming:
            plain = [await anext(incoming.parts) for _ in range(2)]
        async with open_log("") as incoming:
            frames = [json.loads(await anext(incoming.parts)) for _ in range(3)]
        away = await get(server, "/v1/agent/monitor", f"node_id={OTHER_ID}")
        both = await get(server, "/v1/agent/monitor", f"node_id={NODE_ID}&server_id=m1")

        assert plain == [b"first\n", b"second\n"]
        assert frames == [{"Data": "Zmlyc3QK"}, {"Data": "c2Vjb25kCg=="}, {}]
        assert {(call.verb, call.parameters["log_level"], call.parameters["log_json"]) for call in node.calls} == {
            ("agent.monitor", "debug", "true")
        }
        assert (away.status, away.body) == (404, b"No path to node")
        assert (both.status, both.body) == (400, b"Cannot target node and server simultaneously")


@in_virtual_time
async def test_without_access_control_processes_are_inspected_only_with_debugging_enabled() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.server.agent = FakeAgentInterface()
        paths = ("/v1/agent/host", "/v1/agent/pprof/goroutine", "/v1/agent/pprof/profile", "/v1/agent/pprof/cmdline")

        replies = [await get(server, path) for path in paths]
        server.server.agent = FakeAgentInterface(DEBUG_AGENT_INFO)
        stacks = await get(server, "/v1/agent/pprof/goroutine")

        assert [(reply.status, reply.body) for reply in replies] == [(403, b"Permission denied")] * 4
        assert (stacks.status, stacks.headers["content-type"]) == (200, "text/plain")
        assert stacks.body == b"process brain (7), ready\n\ntask think\n"


# -- relays to other servers


@in_virtual_time
async def test_a_request_that_names_another_server_is_relayed_once() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await with_member(first, "m2")
        await until(lambda: second.server.replica.get(MEMBERS, "m2"), what="the second server has its own record")
        second.server.agent = FakeAgentInterface(DEBUG_AGENT_INFO)
        first.server.agent = NoAgentInterface(DEBUG_AGENT_INFO)
        to_second = InMemoryRelay(second.api)
        first.server.relay = RequestRelay(first.world, {"m2:4646": to_second}.__getitem__)

        remote = await fetch(first.api, "GET", "/v1/agent/pprof/goroutine?server_id=m2")
        missing = await fetch(first.api, "GET", "/v1/agent/pprof/goroutine?server_id=nobody")
        relayed_twice = await fetch(
            first.api, "GET", "/v1/agent/pprof/goroutine?server_id=m2", headers=((HOPS_HEADER, b"member"),)
        )

        assert (remote.status, remote.body) == (200, b"process brain (7), ready\n\ntask think\n")
        assert (missing.status, missing.body) == (400, b"unknown Wharf server nobody")
        assert (relayed_twice.status, len(to_second.sent)) == (503, 1)
        assert to_second.open_count == 0


@in_virtual_time
async def test_a_relayed_request_has_the_secret_of_its_server_and_not_that_of_another_region() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        await with_member(first, "m2", door_secret="secret of m2")
        first.server.agent = NoAgentInterface(DEBUG_AGENT_INFO)
        relays = {"m2:4646": InMemoryRelay(first.api), "east:4646": InMemoryRelay(first.api)}
        first.server.relay = RequestRelay(
            first.world,
            relays.__getitem__,
            regions={"east": ["east:4646"]},
            find_secret=lambda address: find_member_secret(first.replica, address),
        )
        request = RelayRequest("GET", b"/v1/status/leader", [])

        await (await first.server.relay.send_to_member("m2:4646", request)).aclose()
        await (await first.server.relay.send_to_region("east", request)).aclose()

        secrets = [dict(relay.sent[0].headers).get(RELAY_SECRET_HEADER) for relay in relays.values()]
        assert secrets == [b"secret of m2", None]


@in_virtual_time
async def test_a_server_that_does_not_answer_is_503() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        await with_member(first, "m2")
        first.server.agent = NoAgentInterface(DEBUG_AGENT_INFO)
        first.server.relay = RequestRelay(first.world, {"m2:4646": InMemoryRelay(None)}.__getitem__)

        reply = await fetch(first.api, "GET", "/v1/agent/host?server_id=m2")

        assert (reply.status, reply.body) == (503, b"no server at this address")


# -- metrics


@in_virtual_time
async def test_metrics_cover_requests_the_replica_and_the_queue() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.server.agent = NoAgentInterface(DEBUG_AGENT_INFO)
        for _ in range(3):
            await get(server, "/v1/jobs")
        await get(server, "/v1/job/nobody")
        await pass_time(10)

        result = json.loads((await get(server, "/v1/metrics")).body)

        counters = {(item["Labels"]["noun"], item["Labels"]["status"]): item["Count"] for item in result["Counters"]}
        gauges = {item["Name"]: item["Value"] for item in result["Gauges"] if not item["Labels"]}
        assert counters == {("job", "2xx"): 3, ("job", "4xx"): 1}
        assert gauges["wharf.raft.appliedIndex"] == server.replica.index
        assert (gauges["wharf.replica.index_behind"], gauges["wharf.broker.total_ready"]) == (0, 0)
        assert (gauges["wharf.http.blocked_queries"], gauges["wharf.raft.state.leader"]) == (0, 1)


@in_virtual_time
async def test_metrics_of_a_leader_without_contact_to_its_log_do_not_say_that_it_leads() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.faults.disconnect()
        await pass_time(CONTACT_LOST_AFTER_S + 1.0)

        result = json.loads((await get(server, "/v1/metrics")).body)

        gauges = {item["Name"]: item["Value"] for item in result["Gauges"] if not item["Labels"]}
        assert (gauges["wharf.raft.state.leader"], gauges["wharf.state.known_leader"]) == (0, 0)


@in_virtual_time
async def test_filtered_metrics_are_omitted_and_gauges_have_the_host_label() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        published = MetricFilter(
            prefixes=("+wharf.raft", "-wharf.raft.state", "+wharf.http.requests"),
            is_published_by_default=False,
            host="h1",
        )
        server.server.agent = NoAgentInterface(replace(DEBUG_AGENT_INFO, metric_filter=published))
        await get(server, "/v1/jobs")
        await pass_time(10)

        result = json.loads((await get(server, "/v1/metrics")).body)
        text = (await get(server, "/v1/metrics", "format=prometheus")).body.decode()

        assert [(gauge["Name"], gauge["Labels"]) for gauge in result["Gauges"]] == [
            ("wharf.raft.appliedIndex", {"host": "h1"}),
            ("wharf.raft.leader.lastContact", {"host": "h1"}),
        ]
        assert (len(result["Counters"]), result["Samples"], "request_ms" in text) == (1, [], False)


@in_virtual_time
async def test_a_past_interval_is_returned_while_it_is_retained() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        server.server.meter = RequestMeter(server.world, interval_s=10.0, retention_s=30.0)
        await get(server, "/v1/jobs")
        await pass_time(26)

        async def counts(ago: str) -> list[int]:
            return [
                item["Count"] for item in json.loads((await get(server, "/v1/metrics", f"ago={ago}")).body)["Counters"]
            ]

        later, last, removed = await counts("12s"), await counts("0s"), await get(server, "/v1/metrics", "ago=1m")
        assert (later, last, removed.status) == ([1], [], 404)


@in_virtual_time
async def test_prometheus_text_is_served_if_enabled() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        refusal = await get(server, "/v1/metrics", "format=prometheus")
        server.server.agent = NoAgentInterface(DEBUG_AGENT_INFO)
        await get(server, "/v1/jobs")

        reply = await get(server, "/v1/metrics", "format=prometheus")

        lines = reply.body.decode().splitlines()
        assert (refusal.status, refusal.body) == (400, b"Prometheus is not enabled")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
        assert 'wharf_http_request_ms_bucket{kind="read",le="1",noun="job",status="2xx"} 1' in lines
        assert f"wharf_raft_appliedIndex {server.replica.index}" in lines
        assert len([line for line in lines if line.startswith("# TYPE")]) == len(
            {line.split()[2] for line in lines if line.startswith("# TYPE")}
        )


@in_virtual_time
async def test_a_follower_omits_gauges_that_only_the_leader_has() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        names = {item["Name"] for item in json.loads((await get(server, "/v1/metrics")).body)["Gauges"]}

        assert "wharf.raft.appliedIndex" in names
        assert not any(name.startswith("wharf.broker.") for name in names)


def test_no_message_type_of_agents_has_a_field_for_a_secret() -> None:
    from wharf.contract.wire import agents

    fields = {
        field.encode_name.lower()
        for shape in vars(agents).values()
        if isinstance(shape, type) and issubclass(shape, msgspec.Struct)
        for field in msgspec.structs.fields(shape)
    }
    assert not any("secret" in field for field in fields)
