"""Node channels: requests of callers that travel through them, and commands next to tasks."""

import base64
import gzip
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.cluster.api.test_websocket_relay import WebSocketCaller
from tests.kit.callers import a_token
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit, get
from tests.kit.state import a_node, an_allocation
from tests.kit.streams import AStream
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.state.tables import ALLOCATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.groups import TaskAction
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import not_found
from wharf.contract.model.secrets import hash_secret
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelEndpoint, ChannelReply

NODE = "8a6f0c44-0000-0000-0000-000000000001"
RUNS = "8a6f0c44-0000-0000-0000-000000000011"
SECRET = "11111111-2222-3333-4444-555555555555"
ACTION = "/v1/job/shop/action"
EXEC = f"/v1/client/allocation/{RUNS}/exec"
CHANNEL = f"/v1/node/{NODE}/channel"


class FakeNodeHandler:
    """Handles requests on the node's side of the channel."""

    def __init__(self) -> None:
        self.requests: list[channel.ChannelRequest] = []
        self.is_running_command = False
        self.open_logs = 0

    async def handle_request(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        self.requests.append(request)
        match request.verb:
            case "fs_logs":
                return ChannelReply(
                    "application/json", chunks=self._log(follows=bool(request.parameters.get("follow")))
                )
            case "exec":
                return ChannelReply("application/json", chunks=self._run_command(inputs))
            case "stats":
                return ChannelReply("application/json", b'{"Uptime": 7}')
        raise not_found(f"this node knows no {request.verb}")

    async def _log(self, *, follows: bool) -> AsyncGenerator[bytes, None]:
        self.open_logs += 1
        try:
            for number in range(3):
                yield msgspec.json.encode({"Offset": number})
            while follows:
                await pass_time(1)
                yield b"{}"
        finally:
            self.open_logs -= 1

    async def _run_command(self, inputs: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        self.is_running_command = True
        try:
            async for text in inputs:
                stdin = msgspec.json.decode(text)["stdin"]
                if stdin.get("close"):
                    yield b'{"exited":true,"result":{"exit_code":5}}'
                    return
                yield msgspec.json.encode({"stdout": {"data": stdin["data"]}})
        finally:
            self.is_running_command = False


class OpenNode:
    """A node with an open channel to the server."""

    def __init__(
        self, cluster: ACluster, server: OneServer, secret: str = SECRET, *, handler: FakeNodeHandler | None = None
    ) -> None:
        self.handler = handler or FakeNodeHandler()
        self.caller = WebSocketCaller(server.api, CHANNEL, headers=[(b"x-cluster-node-secret", secret.encode())])
        self.end = ChannelEndpoint(cluster.world("node"), self.handler, self._send)
        self._cluster = cluster

    async def _send(self, data: bytes) -> None:
        self.caller.send(type="websocket.receive", bytes=data)

    async def open(self) -> None:
        await self.caller.expect("websocket.accept")
        self._cluster.start(self.receive_messages(), name="node channel")

    async def receive_messages(self) -> None:
        while (message := await self.caller.received.get())["type"] == "websocket.send":
            self.end.receive_message(message["bytes"])

    async def close(self) -> None:
        self.caller.send(type="websocket.disconnect", code=1006)
        await self.caller.wait_closed()
        await self.end.close()


async def with_node(cluster: ACluster, *, access: bool = False, driver: str = "docker") -> OneServer:
    """Start a server with a ready node that runs one allocation."""
    server = await cluster.a_server(access=access)
    action = TaskAction(name="greet", command="/bin/echo", args=("hello", "you"))
    job = a_job("shop", a_group("web", a_task("server", driver=driver, actions=(action,))), create_index=WRITE_INDEX)
    node = a_node(NODE, status=NodeStatus.READY, create_index=WRITE_INDEX, secret_digest=hash_secret(SECRET))
    index = await commit(server, NODES.build_put(node), JOBS.build_put(job), JOB_VERSIONS.build_put(job))
    job = replace(job, create_index=index)
    await commit(
        server, ALLOCATIONS.build_put(an_allocation(job, RUNS, node_id=NODE, client_status=ClientStatus.RUNNING))
    )
    return server


@asynccontextmanager
async def an_open_node(cluster: ACluster) -> AsyncGenerator[tuple[OneServer, OpenNode], None]:
    server = await with_node(cluster)
    node = OpenNode(cluster, server)
    await node.open()
    try:
        yield server, node
    finally:
        await node.close()


def build_stdin(data: bytes) -> str:
    return msgspec.json.encode({"stdin": {"data": base64.b64encode(data).decode()}}).decode()


@in_virtual_time
async def test_a_request_reaches_the_node_and_its_reply_comes_back() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        reply = await get(server, "/v1/client/stats", f"node_id={NODE}")

        assert (200, {"Uptime": 7}) == (reply.status, msgspec.json.decode(reply.body))
        assert ["stats"] == [call.verb for call in node.handler.requests]


@in_virtual_time
async def test_a_refusal_of_the_node_keeps_its_text() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, _node):
        reply = await get(server, f"/v1/client/fs/ls/{RUNS}", "path=/")

        assert (404, b"this node knows no fs_list") == (reply.status, reply.body)


@in_virtual_time
async def test_a_log_is_streamed_in_parts() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, _node):
        reply = await get(server, f"/v1/client/fs/logs/{RUNS}", "task=server&type=stdout&origin=start")

        assert b'{"Offset":0}{"Offset":1}{"Offset":2}' == reply.body


@in_virtual_time
async def test_a_node_without_a_connection_has_no_path() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = OpenNode(cluster, server)
        await node.open()
        await node.close()

        reply = await get(server, "/v1/client/stats", f"node_id={NODE}")

        assert (404, b"No path to node") == (reply.status, reply.body)
        assert reply.headers["x-cluster-error-reason"] == "no-node-path"


@in_virtual_time
async def test_a_newer_connection_replaces_an_older_one() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        older = OpenNode(cluster, server)
        await older.open()
        newer = OpenNode(cluster, server)
        await newer.open()
        await older.close()

        assert 200 == (await get(server, "/v1/client/stats", f"node_id={NODE}")).status
        assert ([], 1) == (older.handler.requests, len(newer.handler.requests))
        await newer.close()


@in_virtual_time
async def test_only_the_node_itself_may_open_its_channel() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        unknown_node = OpenNode(cluster, server, secret="a guess")

        assert (403, b"Permission denied") == await unknown_node.caller.refusal()
        assert (400, b"the node channel is a websocket: send the request with an upgrade") == (
            (reply := await get(server, CHANNEL, headers={"X-Cluster-Node-Secret": SECRET})).status,
            reply.body,
        )


@in_virtual_time
async def test_a_node_that_sends_an_undecodable_message_is_disconnected() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = OpenNode(cluster, server)
        await node.caller.expect("websocket.accept")
        node.caller.send(type="websocket.receive", bytes=b"\xc1")

        assert "the message cannot be decoded" == (await node.caller.expect("websocket.close"))["reason"]
        await node.caller.wait_closed()


@in_virtual_time
async def test_a_stopping_server_closes_the_channels_of_its_nodes() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = OpenNode(cluster, server)
        await node.caller.expect("websocket.accept")

        server.api.close()

        assert 1001 == (await node.caller.expect("websocket.close"))["code"]
        await node.caller.wait_closed()


@in_virtual_time
async def test_a_command_exchanges_input_and_output_until_it_ends() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        caller = WebSocketCaller(server.api, EXEC, 'task=server&tty=true&command=["sh"]')
        await caller.expect("websocket.accept")

        caller.send(type="websocket.receive", text=build_stdin(b"hello"))
        echoed = msgspec.json.decode((await caller.expect("websocket.send"))["text"])
        caller.send(type="websocket.receive", text='{"stdin":{"close":true}}')
        last = msgspec.json.decode((await caller.expect("websocket.send"))["text"])

        assert b"hello" == base64.b64decode(echoed["stdout"]["data"])
        assert {"exited": True, "result": {"exit_code": 5}} == last
        assert 1000 == (await caller.expect("websocket.close"))["code"]
        assert {"task": "server", "tty": True, "command": '["sh"]'} == node.handler.requests[0].parameters
        await caller.wait_closed()


@in_virtual_time
async def test_a_job_action_runs_next_to_the_task_that_declares_it() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        caller = WebSocketCaller(server.api, ACTION, "action=greet")
        await caller.expect("websocket.accept")
        caller.send(type="websocket.receive", text='{"stdin":{"close":true}}')

        assert "exited" in (await caller.expect("websocket.send"))["text"]
        assert 1000 == (await caller.expect("websocket.close"))["code"]
        (requests,) = node.handler.requests
        assert ("exec", RUNS) == (requests.verb, requests.about)
        assert {"task": "server", "tty": False, "command": '["/bin/echo","hello","you"]'} == requests.parameters
        await caller.wait_closed()


@in_virtual_time
async def test_an_unknown_action_is_refused_with_the_declared_actions() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        async def result(query: str, path: str = ACTION) -> str:
            caller = WebSocketCaller(server.api, path, query)
            await caller.expect("websocket.accept")
            end = await caller.expect("websocket.close")
            await caller.wait_closed()
            assert 1008 == end["code"]
            return str(end["reason"])

        assert "must provide action name" == await result("")
        assert 'Unknown job "nobody"' == await result("action=greet", "/v1/job/nobody/action")
        assert 'no running allocation of job "shop" has the action "sing"' == await result("action=sing")
        assert 'group "web" has no action "sing"; declared actions: server/greet' == await result(
            f"action=sing&allocID={RUNS}"
        )
        assert 'task "db" has no action "greet"; declared actions: server/greet' == await result(
            f"action=greet&task=db&allocID={RUNS}"
        )
        assert 'Unknown allocation "x" of job "shop"' == await result("action=greet&allocID=x")
        assert (400, b"commands run over a websocket: send the request with an upgrade") == (
            (reply := await get(server, ACTION, "action=greet")).status,
            reply.body,
        )


@in_virtual_time
async def test_a_disconnect_of_the_caller_ends_the_command() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        caller = WebSocketCaller(server.api, EXEC, 'task=server&command=["sh"]')
        await caller.expect("websocket.accept")
        await until(lambda: node.handler.is_running_command, what="the command")

        caller.send(type="websocket.disconnect", code=1006)
        await caller.wait_closed()

        await until(lambda: not node.handler.is_running_command, what="the end of the command")


@in_virtual_time
async def test_an_invalid_command_closes_the_websocket_with_the_error() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        async def result(query: str, path: str = EXEC) -> tuple[int, str]:
            caller = WebSocketCaller(server.api, path, query)
            await caller.expect("websocket.accept")
            end = await caller.expect("websocket.close")
            await caller.wait_closed()
            return end["code"], end["reason"]

        assert (1008, "must provide task name") == await result('command=["ls"]')
        assert (1008, "command is not present") == await result("task=server")
        assert (1008, "No path to node") == await result('task=server&command=["ls"]')
        assert (1008, 'Unknown allocation "x"') == await result(
            'task=server&command=["ls"]', "/v1/client/allocation/x/exec"
        )


@in_virtual_time
async def test_an_undecodable_query_opens_no_websocket() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        caller = WebSocketCaller(server.api, EXEC, "task=%ff")

        result = b"the query holds task=%ff, which cannot be decoded: escape it as UTF-8"
        assert (400, result) == await caller.refusal()
        await caller.wait_closed()


@in_virtual_time
async def test_a_disconnect_of_the_node_ends_the_command_with_a_reason() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = OpenNode(cluster, server)
        await node.open()
        caller = WebSocketCaller(server.api, EXEC, 'task=server&command=["sh"]')
        await caller.expect("websocket.accept")
        await until(lambda: node.handler.is_running_command, what="the command")

        await node.close()

        end = await caller.expect("websocket.close")
        text = f"node {NODE} does not answer: its connection to the server was lost; retry"
        assert (1011, text) == (end["code"], end["reason"])
        await caller.wait_closed()


@in_virtual_time
async def test_the_first_message_of_a_command_says_that_the_node_has_begun() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = OpenNode(cluster, server)
        await node.caller.expect("websocket.accept")  # The node is connected, and does not read its channel yet.
        caller = WebSocketCaller(server.api, EXEC, 'task=server&command=["sh"]')
        await caller.expect("websocket.accept")
        await pass_time(2.0)
        was_silent = caller.received.empty()

        cluster.start(node.receive_messages(), name="node channel")

        first = await caller.received.get()
        assert (was_silent, first) == (True, {"type": "websocket.send", "text": "{}"})
        await node.close()
        await caller.wait_closed()


@in_virtual_time
async def test_a_browser_sends_its_token_in_the_first_message() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster, access=True)
        node = OpenNode(cluster, server)
        await node.open()
        header = await a_token(server, 'namespace "default" { capabilities = ["alloc-exec"] }')
        secret = header["x-cluster-token"]

        async def connect(first: dict[str, Any] | None) -> WebSocketCaller:
            query = f'task=server&command=["sh"]{"&ws_handshake=true" if first else ""}'
            caller = WebSocketCaller(server.api, EXEC, query, headers=[])
            await caller.expect("websocket.accept")
            if first:
                caller.send(type="websocket.receive", text=msgspec.json.encode(first).decode())
            return caller

        refusal = await connect(None)
        assert "Permission denied" == (await refusal.expect("websocket.close"))["reason"]
        invalid = await connect({"auth_token": secret})
        assert (await invalid.expect("websocket.close"))["reason"].startswith("the first message must be a handshake")
        right = await connect({"version": 1, "auth_token": secret})
        right.send(type="websocket.receive", text='{"stdin":{"close":true}}')
        assert "exited" in (await right.expect("websocket.send"))["text"]
        for caller in (refusal, invalid, right):
            await caller.wait_closed()
        await node.close()


@pytest.mark.parametrize("header", [(b"x-cluster-token", b"other"), (b"authorization", b"Bearer other")])
@in_virtual_time
async def test_a_token_of_the_first_message_that_differs_from_the_header_is_refused(
    header: tuple[bytes, bytes],
) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster, access=True)
        query = 'task=server&command=["sh"]&ws_handshake=true'
        caller = WebSocketCaller(server.api, EXEC, query, headers=[header])
        await caller.expect("websocket.accept")
        caller.send(type="websocket.receive", text='{"version": 1, "auth_token": "mine"}')

        reason = (await caller.expect("websocket.close"))["reason"]
        assert "the token of the handshake is not that of the header" == reason
        await caller.wait_closed()


@in_virtual_time
async def test_a_stream_whose_caller_disconnected_is_ended_on_the_node() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        query = [("task", "server"), ("type", "stdout"), ("origin", "start"), ("follow", "true")]
        stream = AStream(cluster, server, f"/v1/client/fs/logs/{RUNS}", query)
        await until(lambda: node.handler.open_logs == 1, what="the log")
        stream.disconnected.set()

        await until(lambda: node.handler.open_logs == 0, what="the end of the log")


class PositionedLogHandler(FakeNodeHandler):
    """A node whose log is `123…`, of which it sends two bytes."""

    async def _log(self, *, follows: bool) -> AsyncGenerator[bytes, None]:
        self.open_logs += 1
        try:
            offset = int(self.requests[-1].parameters.get("offset", 0))
            for number in range(offset + 1, offset + 3):
                data = base64.b64encode(str(number).encode()).decode()
                yield msgspec.json.encode({"Offset": number, "File": "alloc/logs/server.stdout.4", "Data": data})
            while follows:
                await pass_time(1)
                yield b"{}"
        finally:
            self.open_logs -= 1


def has_text(stream: AStream, text: bytes) -> bool:
    return b"".join(stream.parts) == text


@in_virtual_time
async def test_a_followed_log_continues_at_its_position_when_the_node_is_back() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        query = [("task", "server"), ("type", "stdout"), ("origin", "start"), ("follow", "true"), ("plain", "true")]
        nodes: list[OpenNode] = []
        stream: AStream | None = None
        for text in (b"12", b"1234"):
            nodes.append(OpenNode(cluster, server, handler=PositionedLogHandler()))
            await nodes[-1].open()
            if stream is None:
                stream = AStream(cluster, server, f"/v1/client/fs/logs/{RUNS}", query)
            await until(partial(has_text, stream, text), what=f"the text {text!r}")
            await nodes[-1].close()

        first, second = (node.handler.requests[0].parameters for node in nodes)
        assert (False, False) == (first["plain"], second["plain"])
        assert (2, "alloc/logs/server.stdout.4", "start") == (second["offset"], second["file"], second["origin"])


@in_virtual_time
async def test_a_server_that_stops_cuts_off_a_followed_log() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        query = [("task", "server"), ("type", "stdout"), ("origin", "start"), ("follow", "true")]
        stream = AStream(cluster, server, f"/v1/client/fs/logs/{RUNS}", query)
        await until(lambda: node.handler.open_logs == 1 and len(stream.parts) == 3, what="the log")

        server.api.close()
        await stream.wait_end()

        assert not stream.has_proper_end


@in_virtual_time
async def test_each_frame_of_a_followed_log_is_readable_as_soon_as_it_arrives_compressed() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        query = [("task", "server"), ("type", "stdout"), ("origin", "start"), ("follow", "true")]
        headers = {"Accept-Encoding": "gzip, deflate"}
        stream = AStream(cluster, server, f"/v1/client/fs/logs/{RUNS}", query, headers)
        await until(lambda: node.handler.open_logs == 1 and len(stream.parts) == 4, what="the log")
        reader = zlib.decompressobj(16 + zlib.MAX_WBITS)

        assert stream.headers["content-encoding"] == "gzip"
        assert [reader.decompress(part) for part in stream.parts] == [
            b"",
            b'{"Offset":0}',
            b'{"Offset":1}',
            b'{"Offset":2}',
        ]
        stream.disconnected.set()
        await until(lambda: node.handler.open_logs == 0, what="the end of the log")


@in_virtual_time
async def test_a_log_that_is_not_followed_is_compressed_to_its_end() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, _):
        query = [("task", "server"), ("type", "stdout"), ("origin", "start")]
        stream = AStream(cluster, server, f"/v1/client/fs/logs/{RUNS}", query, {"Accept-Encoding": "gzip"})
        await stream.wait_end()

        assert gzip.decompress(b"".join(stream.parts)) == b'{"Offset":0}{"Offset":1}{"Offset":2}'
        assert stream.has_proper_end
