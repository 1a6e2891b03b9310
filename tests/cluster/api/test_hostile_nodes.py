"""Node agents that break the rules of their channel: they hold no event loop, no memory and few connections."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cluster.api.test_node_channels import CHANNEL, EXEC, NODE, RUNS, SECRET, OpenNode, with_node
from tests.cluster.api.test_websocket_relay import WebSocketCaller
from tests.kit.cluster import ACluster, OneServer
from tests.kit.loop_holds import MeasuredCluster, measure_holds
from tests.kit.requests import commit, get
from tests.kit.state import a_node
from tests.kit.streams import AStream
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.api.asgi import Message
from wharf.cluster.api.connection import WEBSOCKET_EXTENSION
from wharf.cluster.api.websockets.sockets import CallerSocket
from wharf.cluster.server.node_channels.connections import MAX_UNREAD_BYTES, MAX_UNREAD_PARTS
from wharf.cluster.state.tables import NODES
from wharf.contract.model.secrets import hash_secret
from wharf.contract.wire.nodes import channel

OTHER_NODE = "8a6f0c44-0000-0000-0000-000000000002"
LOGS = f"/v1/client/fs/logs/{RUNS}"
LOG_QUERY = [("task", "server"), ("type", "stdout"), ("origin", "start")]
PART = b"x" * 200_000


class HostileNode:
    """A node with an open channel that sends any message."""

    def __init__(self, server: OneServer, node: str = NODE) -> None:
        self.server = server
        path = CHANNEL.replace(NODE, node)
        self.caller = WebSocketCaller(server.api, path, headers=[(b"x-cluster-node-secret", SECRET.encode())])

    async def open(self) -> None:
        await self.caller.expect("websocket.accept")

    async def receive_request(self) -> channel.ChannelRequest:
        message = channel.decode_message_to_node((await self.caller.expect("websocket.send"))["bytes"])
        assert isinstance(message, channel.ChannelRequest)
        return message

    def send(self, message: channel.MessageToServer) -> None:
        self.caller.send(type="websocket.receive", bytes=channel.encode_message(message))

    async def close(self) -> None:
        self.caller.send(type="websocket.disconnect", code=1006)
        await self.caller.wait_closed()

    async def expect_close(self) -> dict[str, Any]:
        """Return the message with which the server closes the channel; messages before it are ignored."""
        while (message := await self.caller.received.get())["type"] != "websocket.close":
            pass
        await self.caller.wait_closed()
        return message


@asynccontextmanager
async def a_hostile_node(cluster: ACluster) -> AsyncGenerator[HostileNode, None]:
    node = HostileNode(await with_node(cluster))
    await node.open()
    try:
        yield node
    finally:
        await node.close()


@asynccontextmanager
async def an_open_log(
    cluster: ACluster, *, follow: bool = True
) -> AsyncGenerator[tuple[HostileNode, int, AStream], None]:
    """Return a node whose log a caller reads, the number of that request, and the caller's stream."""
    async with a_hostile_node(cluster) as node:
        cluster.expect_failure("stream")
        stream = AStream(cluster, node.server, LOGS, [*LOG_QUERY, ("follow", str(follow).lower())])
        request = await node.receive_request()
        node.send(channel.StreamBegin(request.id, "application/json"))
        yield node, request.id, stream


@asynccontextmanager
async def a_command(cluster: ACluster) -> AsyncGenerator[tuple[HostileNode, int, WebSocketCaller], None]:
    """Return a node that was sent a command, the number of that request, and the caller of the command."""
    async with a_hostile_node(cluster) as node:
        caller = WebSocketCaller(node.server.api, EXEC, 'task=server&command=["sh"]')
        await caller.expect("websocket.accept")
        yield node, (await node.receive_request()).id, caller
    await caller.wait_closed()


@in_virtual_time
async def test_a_hostile_log_holds_no_event_loop() -> None:
    async with MeasuredCluster() as cluster, an_open_log(cluster) as (node, number, stream):
        with measure_holds() as holds:
            node.send(channel.StreamPart(number, b'{"Data":"' + b"}" * 250_000))
            node.send(channel.StreamPart(number, b'","File":"}"}' + b"{}" * 10_000))
            node.send(channel.StreamPart(number, b"no log"))
            await stream.wait_end()

        holds.require_short("a log of braces")
        assert len(stream.parts) == 10_001
        assert not stream.has_proper_end


@in_virtual_time
async def test_many_short_frames_of_a_log_hold_no_event_loop() -> None:
    async with MeasuredCluster() as cluster, an_open_log(cluster) as (node, number, stream):
        with measure_holds() as holds:
            node.send(channel.StreamPart(number, b"{}" * 30_000))
            node.send(channel.StreamEnd(number))
            await stream.wait_end()

        holds.require_short("a log of empty frames")
        assert len(stream.parts) == 30_000


@in_virtual_time
async def test_a_node_that_sends_without_credit_loses_its_channel() -> None:
    async with ACluster() as cluster, an_open_log(cluster, follow=False) as (node, number, stream):
        stream.reads.clear()

        for _ in range(MAX_UNREAD_BYTES // len(PART) + 2):
            node.send(channel.StreamPart(number, PART))
        end = await node.expect_close()

        assert (end["code"], "without credit" in end["reason"]) == (1008, True)
        stream.reads.set()
        await stream.wait_end()
        assert not stream.has_proper_end
        assert len(b"".join(stream.parts)) <= MAX_UNREAD_BYTES + len(PART)


@in_virtual_time
async def test_very_many_empty_parts_end_only_their_own_stream() -> None:
    async with ACluster() as cluster, an_open_log(cluster, follow=False) as (node, number, stream):
        stream.reads.clear()

        for _ in range(3 * MAX_UNREAD_PARTS):
            node.send(channel.StreamPart(number, b""))
        stats = cluster.start(get(node.server, "/v1/client/stats", f"node_id={NODE}"), name="stats")
        request = await node.receive_request()
        node.send(channel.WholeReply(request.id, "application/json", b"{}"))

        assert (await stats).body == b"{}"
        stream.reads.set()
        await stream.wait_end()
        assert not stream.has_proper_end


@pytest.mark.parametrize(
    "messages",
    [
        [channel.StreamPart(1, b"early")],
        [channel.StreamEnd(1)],
        [channel.StreamBegin(1, "text/plain"), channel.StreamBegin(1, "text/plain")],
        [channel.StreamBegin(1, "text/plain"), channel.WholeReply(1, "text/plain", b"")],
    ],
)
@in_virtual_time
async def test_messages_in_a_wrong_order_end_the_channel_and_the_call(messages: list[channel.MessageToServer]) -> None:
    async with ACluster() as cluster, a_hostile_node(cluster) as node:
        cluster.expect_failure("stream")
        stream = AStream(cluster, node.server, LOGS, LOG_QUERY)
        await node.receive_request()

        for message in messages:
            node.send(message)

        assert (await node.expect_close())["code"] == 1008
        await stream.wait_end()
        assert not stream.has_proper_end or stream.status == 503


@in_virtual_time
async def test_a_whole_reply_ends_a_command() -> None:
    async with ACluster() as cluster, a_command(cluster) as (node, number, caller):
        node.send(channel.WholeReply(number, "application/json", b""))

        assert (await caller.expect("websocket.close"))["code"] == 1000


@in_virtual_time
async def test_forged_credit_does_not_make_the_server_send_input_without_limit() -> None:
    async with ACluster() as cluster, a_command(cluster) as (node, number, caller):
        node.send(channel.StreamBegin(number, "application/json"))

        node.send(channel.InputCredit(number, 1 << 60))
        for _ in range(20):
            caller.send(type="websocket.receive", text="x" * 65_536)
        await pass_time(60)

        assert node.caller.received.qsize() <= channel.EXEC_WINDOW_BYTES // 65_536 + 1


@in_virtual_time
async def test_a_newer_channel_of_a_node_closes_the_older_one() -> None:
    async with ACluster() as cluster, a_hostile_node(cluster) as older:
        newer = OpenNode(cluster, older.server)
        await newer.open()

        end = await older.expect_close()

        assert (end["code"], end["reason"]) == (1008, "the node opened a newer channel, which replaces this one")
        assert (await get(older.server, "/v1/client/stats", f"node_id={NODE}")).status == 200
        await newer.close()


class StalledConnection:
    """The connection of a caller that does not read: once it is open, nothing more can be sent."""

    def __init__(self) -> None:
        self.disconnected_event = asyncio.Event()
        self.is_aborted = False

    async def receive(self) -> Message:
        return {"type": "websocket.connect"}

    async def send(self, message: Message) -> None:
        if message["type"] != "websocket.accept":
            await asyncio.Event().wait()

    def stop_counting(self) -> None:
        raise AssertionError

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("is_sending", [False, True])
@in_virtual_time
async def test_the_connection_of_a_node_that_does_not_read_is_closed_at_once(is_sending: bool) -> None:
    connection = StalledConnection()
    scope = {"extensions": {WEBSOCKET_EXTENSION: connection}}
    socket = CallerSocket(scope, connection.receive, connection.send, asyncio.Event())
    await socket.accept()
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(socket.send(b"x")) if is_sending else None
        await pass_time(1)

        async with asyncio.timeout(1):
            await socket.close_at_once(1008, "replaced")

        if sending is not None:
            sending.cancel()
    assert connection.is_aborted


@in_virtual_time
async def test_a_process_refuses_the_channels_of_further_nodes_when_half_of_its_files_are_in_use() -> None:
    async with ACluster() as cluster, a_hostile_node(cluster) as node:
        server = node.server
        await commit(server, NODES.build_put(a_node(OTHER_NODE, secret_digest=hash_secret(SECRET))))
        server.server.local_channels.max_connections = 1

        status, text = await HostileNode(server, OTHER_NODE).caller.refusal()
        again = OpenNode(cluster, server)
        await again.open()

        assert (status, b"holds the channels of 1 nodes" in text) == (503, True)
        await again.close()
