"""Endpoints that a node executes, and the checks before it is called (nodes-allocations.md 0, 2.2, 2.3, 2.4)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import DENIED, commit, get, put, read, send, status_and_text
from tests.kit.state import SECRET, a_node, an_allocation
from tests.kit.streams import AStream
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NodeReply, NodeStream, build_no_node_path
from wharf.cluster.state.tables import ALLOCATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.jobs.groups import TaskAction
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus

NODE = "8a6f0c44-0000-0000-0000-000000000001"
RUNNING_ID = "8a6f0c44-0000-0000-0000-000000000011"
ENDED_ID = "8a6f0c44-0000-0000-0000-000000000012"
UNKNOWN = "8a6f0c44-0000-0000-0000-000000000099"
NO_CONNECTION = (404, "No path to node")


class EchoChannels:
    """Node channels with a node whose replies contain the call."""

    def __init__(self, content_type: str = "application/json") -> None:
        self.calls: list[NodeCall] = []
        self.content_type = content_type

    def channel_to(self, node_id: str) -> NodeChannel:
        if node_id != NODE:
            raise build_no_node_path()
        return self

    async def call(self, call: NodeCall) -> NodeReply:
        self.calls.append(call)
        if call.verb == "fs_logs":
            return NodeReply(self.content_type, parts=_frames())
        return NodeReply(self.content_type, b'{"Verb": "' + call.verb.encode() + b'"}')

    async def open_stream(self, call: NodeCall) -> NodeStream:
        raise AssertionError(f"{call.verb} is no talk here")


async def _frames() -> AsyncIterator[bytes]:
    for frame in (b'{"Offset": 1}', b"{}"):
        yield frame


async def start_server_with_allocations(
    cluster: ACluster, *, driver: str = "docker", access: bool = False
) -> OneServer:
    """Start a server with a node and allocations of the job shop."""
    server = await cluster.a_server(access=access)
    new_job = a_job("shop", a_group("web", a_task("server", driver=driver)), create_index=WRITE_INDEX)
    node = a_node(NODE, status=NodeStatus.READY, create_index=WRITE_INDEX)
    index = await commit(server, NODES.build_put(node), JOBS.build_put(new_job), JOB_VERSIONS.build_put(new_job))
    job = replace(new_job, create_index=index)
    await commit(
        server,
        ALLOCATIONS.build_put(an_allocation(job, RUNNING_ID, node_id=NODE, client_status=ClientStatus.RUNNING)),
        ALLOCATIONS.build_put(
            an_allocation(
                job, ENDED_ID, node_id=NODE, client_status=ClientStatus.COMPLETE, desired_status=DesiredStatus.STOP
            )
        ),
    )
    return server


NODE_REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/v1/client/metadata", None),
    ("POST", "/v1/client/metadata", {"Meta": {"rack": "r1", "gone": None}}),
    ("GET", "/v1/client/stats", None),
    ("GET", "/v1/client/gc", None),
    ("PUT", "/v1/client/gc", None),
    ("GET", "/v1/client/identity", None),
    ("PUT", "/v1/client/identity/renew", None),
]

ALLOCATION_REQUESTS: list[tuple[str, str, Any]] = [
    ("PUT", "/v1/client/allocation/{}/restart", None),
    ("POST", "/v1/client/allocation/{}/restart", {"TaskName": "server"}),
    ("PUT", "/v1/client/allocation/{}/signal", {"Signal": "SIGHUP"}),
    ("GET", "/v1/client/allocation/{}/pause?task=server", None),
    ("PUT", "/v1/client/allocation/{}/pause", {"Task": "server", "ScheduleState": "pause"}),
    ("GET", "/v1/client/allocation/{}/stats", None),
    ("GET", "/v1/client/allocation/{}/checks", None),
    ("GET", '/v1/client/allocation/{}/exec?task=server&command=["ls"]', None),
    ("GET", "/v1/client/allocation/{}/snapshot", None),
    ("GET", "/v1/client/allocation/{}/gc", None),
    ("PUT", "/v1/client/allocation/{}/gc", None),
    ("GET", "/v1/client/fs/ls/{}", None),
    ("GET", "/v1/client/fs/stat/{}?path=a", None),
    ("GET", "/v1/client/fs/readat/{}?path=a&offset=0&limit=5", None),
    ("GET", "/v1/client/fs/cat/{}?path=a", None),
    ("GET", "/v1/client/fs/stream/{}?path=a&origin=end&offset=5", None),
    ("GET", "/v1/client/fs/logs/{}?task=server&type=stdout&follow=true&plain=true", None),
]


async def send_request(server: OneServer, method: str, target: str, body: Any, **options: Any) -> tuple[int, str]:
    path, _, query = target.partition("?")
    return status_and_text(await send(server, method, path, body, query, **options))


@in_virtual_time
async def test_a_node_without_a_connection_cannot_be_called() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)

        for method, path, body in NODE_REQUESTS:
            assert await send_request(server, method, f"{path}?node_id={NODE}", body) == NO_CONNECTION, (method, path)


@in_virtual_time
async def test_an_unknown_or_missing_node_is_refused() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)

        for method, path, body in NODE_REQUESTS:
            unknown = await send_request(server, method, f"{path}?node_id={UNKNOWN}", body)
            without_id = await send_request(server, method, path, body)
            assert unknown == (404, f"Unknown node {UNKNOWN}"), (method, path)
            assert (without_id[0], "missing node ID" in without_id[1]) == (400, True), (method, path)


@in_virtual_time
async def test_an_allocation_whose_node_has_no_connection_is_unavailable() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)

        for method, target, body in ALLOCATION_REQUESTS:
            assert await send_request(server, method, target.format(RUNNING_ID), body) == NO_CONNECTION, (
                method,
                target,
            )


@in_virtual_time
async def test_an_unknown_allocation_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)

        for method, target, body in ALLOCATION_REQUESTS:
            matches = await send_request(server, method, target.format(UNKNOWN), body)
            assert matches == (404, f'Unknown allocation "{UNKNOWN}"'), (method, target)


@pytest.mark.parametrize(
    ("target", "query"),
    [("cat", "path=a"), ("readat", "path=a&offset=0"), ("stream", "path=a"), ("logs", "task=server&type=stdout")],
)
@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("text/html; charset=utf-8", "text/plain; charset=utf-8"),
        ("application/xhtml+xml", "text/plain; charset=utf-8"),
        ("image/png", "image/png"),
    ],
)
def test_files_of_tasks_cannot_run_scripts_in_a_browser(target: str, query: str, sent: str, received: str) -> None:
    @in_virtual_time
    async def read() -> None:
        async with ACluster() as cluster:
            server = await start_server_with_allocations(cluster)
            server.server.node_channels = EchoChannels(sent)

            reply = await get(server, f"/v1/client/fs/{target}/{RUNNING_ID}", query)

            assert (reply.status, reply.headers["content-type"]) == (200, received)
            assert reply.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'; sandbox"
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["x-xss-protection"] == "1; mode=block"

    read()


@in_virtual_time
async def test_a_call_reaches_the_node_with_its_parameters_and_body() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)
        echo = server.server.node_channels = EchoChannels()

        reply = await get(server, f"/v1/client/fs/readat/{RUNNING_ID}", "path=a&offset=3")
        await put(server, f"/v1/client/allocation/{RUNNING_ID}/signal", {"Signal": "SIGHUP"})

        assert status_and_text(reply) == (200, '{"Verb": "fs_read_at"}')
        assert reply.headers["content-type"] == "application/json"
        assert echo.calls == [
            NodeCall("fs_read_at", RUNNING_ID, {"path": "a", "offset": 3}),
            NodeCall("signal", RUNNING_ID, {}, b'{"Signal": "SIGHUP"}'),
        ]


@in_virtual_time
async def test_a_streamed_reply_of_a_node_is_streamed_to_the_caller() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)
        server.server.node_channels = EchoChannels()

        query = [("task", "server"), ("type", "stdout")]
        stream = AStream(cluster, server, f"/v1/client/fs/logs/{RUNNING_ID}", query)
        await stream.wait_end()

        assert (stream.status, stream.parts) == (200, [b'{"Offset": 1}', b"{}"])


@in_virtual_time
async def test_metadata_is_changed_by_post_and_the_query_overrides_the_node_of_the_body() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)
        body = {"NodeID": UNKNOWN, "Meta": {"a": "b"}}

        assert (await send_request(server, "PUT", f"/v1/client/metadata?node_id={NODE}", body))[0] == 405
        assert await send_request(server, "POST", f"/v1/client/metadata?node_id={NODE}", body) == NO_CONNECTION
        assert (await send_request(server, "POST", "/v1/client/metadata", body))[1] == f"Unknown node {UNKNOWN}"


@in_virtual_time
@pytest.mark.parametrize("meta", [None, {}])
async def test_metadata_without_keys_is_refused(meta: Any) -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)

        refusal = await send_request(server, "POST", f"/v1/client/metadata?node_id={NODE}", {"Meta": meta})

        assert refusal == (400, "missing required Meta object")


@in_virtual_time
@pytest.mark.parametrize("key", ["", "1a", "a..b", "a.", "a b", "a.1"])
async def test_a_metadata_key_consists_of_names_joined_by_dots(key: str) -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)

        status, text = await send_request(server, "POST", f"/v1/client/metadata?node_id={NODE}", {"Meta": {key: "x"}})

        assert (status, "invalid meta key" in text) == (400, True)


@in_virtual_time
@pytest.mark.parametrize(
    ("method", "target", "body", "text"),
    [
        ("PUT", "/v1/client/allocation/{}/restart", {"TaskName": "server", "AllTasks": True}, "cannot both be set"),
        ("PUT", "/v1/client/allocation/{}/restart", {"TaskName": "other"}, 'unknown task name "other"'),
        ("PUT", "/v1/client/allocation/{}/signal", {}, "missing signal"),
        ("PUT", "/v1/client/allocation/{}/signal", {"Signal": "SIGHUP", "Task": "other"}, "unknown task name"),
        ("PUT", "/v1/client/allocation/{}/pause", {"ScheduleState": "sleep"}, "invalid schedule state"),
        ("GET", '/v1/client/allocation/{}/exec?command=["ls"]', None, "must provide task name"),
        ("GET", "/v1/client/allocation/{}/exec?task=server", None, "command is not present"),
        ("GET", "/v1/client/allocation/{}/exec?task=server&command=ls", None, "a list of texts as JSON"),
        ("GET", '/v1/client/allocation/{}/exec?task=other&command=["ls"]', None, "unknown task name"),
        ("GET", "/v1/client/fs/stat/{}", None, "must provide a file name"),
        ("GET", "/v1/client/fs/cat/{}", None, "must provide a file name"),
        ("GET", "/v1/client/fs/readat/{}?path=a", None, "missing offset"),
        ("GET", "/v1/client/fs/readat/{}?path=a&offset=x", None, "invalid syntax"),
        ("GET", "/v1/client/fs/stream/{}?path=a&origin=middle", None, "invalid origin"),
        ("GET", "/v1/client/fs/stream/{}?path=a&follow=perhaps", None, "as a bool"),
        ("GET", "/v1/client/fs/logs/{}?type=stdout", None, "must provide task name"),
        ("GET", "/v1/client/fs/logs/{}?task=server&type=both", None, 'log type must be "stdout" or "stderr"'),
        (
            "GET",
            "/v1/client/fs/logs/{}?task=server&type=all&follow=true",
            None,
            'log type must be "stdout" or "stderr"',
        ),
        ("GET", "/v1/client/fs/logs/{}?task=other&type=stdout", None, 'unknown task name "other"'),
        ("GET", "/v1/client/fs/logs/{}?task=server&type=stdout&origin=x", None, "invalid origin"),
    ],
)
async def test_an_invalid_call_is_refused_before_the_node_is_called(
    method: str, target: str, body: Any, text: str
) -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)
        echo = server.server.node_channels = EchoChannels()

        status, refusal = await send_request(server, method, target.format(RUNNING_ID), body)

        assert (status, text in refusal, echo.calls) == (400, True, [])


@in_virtual_time
async def test_an_allocation_that_should_not_run_is_not_restarted() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)

        assert await send_request(server, "PUT", f"/v1/client/allocation/{ENDED_ID}/restart", None) == (
            400,
            "restart of an alloc that should not run",
        )


@in_virtual_time
@pytest.mark.parametrize(
    ("capability", "allowed"),
    [
        ("read-job", {"pause_state", "stats", "checks"}),
        ("alloc-lifecycle", {"restart", "signal"}),
        ("pause-allocation", {"pause"}),
        ("gc-allocation", {"gc"}),
        ("alloc-exec", {"exec"}),
        ("read-fs", {"ls", "stat", "readat", "cat", "stream", "logs"}),
        ("read-logs", {"logs"}),
    ],
)
async def test_each_call_needs_its_right_in_the_namespace_of_the_allocation(capability: str, allowed: set[str]) -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster, access=True)
        enable_acl(server)
        right = await a_token(server, f'namespace "default" {{ capabilities = ["{capability}"] }}')
        other_reply = await a_token(server, f'namespace "team" {{ capabilities = ["{capability}"] }}')
        allowed_callers, allowed_elsewhere = set(), set()
        for method, target, body in ALLOCATION_REQUESTS:
            parts = target.partition("?")[0].split("/")
            case = parts[4] if parts[3] == "fs" else parts[5]
            case = "pause_state" if (case, method) == ("pause", "GET") else case
            if await send_request(server, method, target.format(RUNNING_ID), body, headers=right) == NO_CONNECTION:
                allowed_callers.add(case)
            if await send_request(server, method, target.format(RUNNING_ID), body, headers=other_reply) != DENIED:
                allowed_elsewhere.add(case)

        assert (allowed_callers, allowed_elsewhere) == (allowed, set())


@in_virtual_time
async def test_a_command_next_to_an_unisolated_task_also_needs_the_node_right() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster, driver="raw_exec")
        enable_acl(server)
        subset = await a_token(server, 'namespace "default" { capabilities = ["alloc-exec"] }')
        combined = await a_token(server, 'namespace "default" { capabilities = ["alloc-exec", "alloc-node-exec"] }')
        target = f'/v1/client/allocation/{RUNNING_ID}/exec?task=server&command=["ls"]'

        assert await send_request(server, "GET", target, None, headers=subset) == DENIED
        assert await send_request(server, "GET", target, None, headers=combined) == NO_CONNECTION


@pytest.mark.parametrize("is_registered_again", [False, True])
@in_virtual_time
async def test_a_command_next_to_a_task_of_a_purged_job_also_needs_the_node_right(is_registered_again: bool) -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster, driver="raw_exec")
        enable_acl(server)
        subset = await a_token(server, 'namespace "default" { capabilities = ["alloc-exec"] }')
        combined = await a_token(server, 'namespace "default" { capabilities = ["alloc-exec", "alloc-node-exec"] }')
        await commit(server, JOBS.build_delete("default", "shop"), JOB_VERSIONS.build_delete("default", "shop", 0))
        if is_registered_again:
            job = a_job("shop", a_group("web", a_task("server", driver="docker")), create_index=WRITE_INDEX)
            await commit(server, JOBS.build_put(job), JOB_VERSIONS.build_put(job))
        await server.server.reader.catch_up()
        target = f'/v1/client/allocation/{RUNNING_ID}/exec?task=server&command=["ls"]'

        assert await send_request(server, "GET", target, None, headers=subset) == DENIED
        assert await send_request(server, "GET", target, None, headers=combined) == NO_CONNECTION


@in_virtual_time
async def test_an_action_of_a_later_job_with_the_same_id_runs_in_no_allocation_of_the_purged_job() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)
        action = TaskAction(name="dump", command="/bin/dump")
        job = a_job("shop", a_group("web", a_task("server", actions=(action,))), create_index=WRITE_INDEX)
        await commit(server, JOBS.build_put(job), JOB_VERSIONS.build_put(job))

        reply = await send_request(server, "GET", "/v1/job/shop/action?action=dump", None)

        assert reply == (404, 'no running allocation of job "shop" has the action "dump"')


@in_virtual_time
async def test_reading_a_node_agent_needs_the_read_right_and_changing_it_the_write_right() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)
        enable_acl(server)
        reader = await a_token(server, 'node { policy = "read" }')
        writer = await a_token(server, 'node { policy = "write" }')
        responses = {}
        for method, path, body in NODE_REQUESTS:
            by_reader = await send_request(server, method, f"{path}?node_id={NODE}", body, headers=reader)
            by_writer = await send_request(server, method, f"{path}?node_id={NODE}", body, headers=writer)
            assert by_writer == NO_CONNECTION
            responses[method, path.rsplit("/", 1)[-1]] = by_reader == NO_CONNECTION

        assert {case for case, is_open in responses.items() if is_open} == {
            ("GET", "metadata"), ("GET", "stats"), ("GET", "identity"),
        }  # fmt: skip


REPLACEMENT_ID = "8a6f0c44-0000-0000-0000-000000000013"
OTHER_NODE = "8a6f0c44-0000-0000-0000-000000000002"
NODE_HEADERS = {"X-Cluster-Node-Secret": SECRET}


@in_virtual_time
async def test_allocation_data_is_sent_only_to_the_node_of_the_replacement() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster, access=True)
        enable_acl(server)
        operator = await a_token(server, management=True)
        job = server.server.replica.get(JOBS, "default", "shop")
        assert job is not None
        second = a_node(OTHER_NODE, status=NodeStatus.READY, create_index=WRITE_INDEX)
        replacement = an_allocation(job, REPLACEMENT_ID, node_id=OTHER_NODE, previous_allocation=ENDED_ID)
        await commit(server, NODES.build_put(second), ALLOCATIONS.build_put(replacement))
        server.server.node_channels = EchoChannels()
        target = f"/v1/client/allocation/{ENDED_ID}/snapshot"

        visible = read(await get(server, f"/v1/node/{OTHER_NODE}/former/{ENDED_ID}", headers=NODE_HEADERS))
        by_token = {"X-Cluster-Token": visible["MigrateToken"]}

        assert (NODE, "complete") == (visible["NodeID"], visible["ClientStatus"])
        assert (200, '{"Verb": "snapshot"}') == status_and_text(await get(server, target, headers=by_token))
        assert [DENIED] * 3 == [
            status_and_text(await get(server, target)),
            status_and_text(await get(server, target, headers=operator)),
            status_and_text(await get(server, target.replace(ENDED_ID, RUNNING_ID), headers=by_token)),
        ]


@in_virtual_time
async def test_a_node_reads_only_predecessors_of_its_own_allocations() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_allocations(cluster)

        refused_keys = await get(server, f"/v1/node/{NODE}/former/{ENDED_ID}", headers=NODE_HEADERS)
        without_secret = await get(server, f"/v1/node/{NODE}/former/{ENDED_ID}")

        assert [(404, "alloc not found"), DENIED] == [status_and_text(refused_keys), status_and_text(without_secret)]
