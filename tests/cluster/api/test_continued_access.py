"""Streams and websockets that are open while their caller loses access, or while their allocation goes away."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from tests.cluster.api.test_node_channels import EXEC, NODE, RUNS, FakeNodeHandler, OpenNode, with_node
from tests.cluster.api.test_websocket_relay import WebSocketCaller
from tests.kit.callers import a_token, change_rules
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit, get
from tests.kit.streams import AStream
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.access import UNCHECKED_CALLER
from wharf.cluster.api import app
from wharf.cluster.api.app import MAX_STREAMS_PER_CALLER
from wharf.cluster.api.caller_slots import CallerSlots
from wharf.cluster.api.continued_access import CHECK_INTERVAL_S, MIN_CHECK_INTERVAL_S
from wharf.cluster.api.handlers.allocations.exec import HANDSHAKE_TIMEOUT_S, MAX_SESSIONS, MAX_SESSIONS_PER_CALLER
from wharf.cluster.state.tables import ACL_TOKENS, ALLOCATIONS
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.times import to_datetime
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelReply

RULES = 'namespace "default" { capabilities = ["alloc-exec", "read-logs", "read-fs", "read-job"] } agent { policy = "read" }'
OTHER_RULES = 'namespace "default" { capabilities = ["read-job"] }'
FOLLOWING_PATHS = {
    "log": (f"/v1/client/fs/logs/{RUNS}", [("task", "server"), ("type", "stdout"), ("follow", "true")]),
    "file": (f"/v1/client/fs/stream/{RUNS}", [("path", "/a")]),
    "log of an agent": ("/v1/agent/monitor", [("node_id", NODE)]),
}

Change = Callable[[OneServer, dict[str, str]], Awaitable[None]]


class FollowingNodeHandler(FakeNodeHandler):
    """A node that streams without an end whatever is requested, except commands."""

    async def handle_request(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        if request.verb == "exec":
            return await super().handle_request(request, inputs)
        return ChannelReply("application/json", chunks=self._follow())

    async def _follow(self) -> AsyncGenerator[bytes, None]:
        async for part in self._log(follows=True):
            yield part


def open_event_stream(cluster: ACluster, server: OneServer, headers: dict[str, str]) -> AStream:
    return AStream(cluster, server, "/v1/event/stream", [("topic", "Job")], headers)


def get_token(server: OneServer, headers: dict[str, str]) -> Token:
    digest = hash_secret(headers["x-cluster-token"])
    return next(token for token in server.replica.iter_all(ACL_TOKENS) if token.secret_digest == digest)


def get_allocation(server: OneServer) -> Allocation:
    allocation = server.replica.get(ALLOCATIONS, RUNS)
    assert allocation is not None
    return allocation


async def delete_token(server: OneServer, headers: dict[str, str]) -> None:
    await commit(server, ACL_TOKENS.build_delete(get_token(server, headers).accessor_id))


async def remove_rights(server: OneServer, headers: dict[str, str]) -> None:
    await change_rules(server, headers, OTHER_RULES)


async def let_token_expire(server: OneServer, headers: dict[str, str]) -> None:
    expires = to_datetime(server.world.now_ns()) + timedelta(seconds=5)
    await commit(server, ACL_TOKENS.build_put(replace(get_token(server, headers), expiration_time=expires)))
    await pass_time(5)


async def delete_allocation(server: OneServer, _headers: dict[str, str]) -> None:
    await commit(server, ALLOCATIONS.build_delete(RUNS))


async def end_allocation(server: OneServer, _headers: dict[str, str]) -> None:
    await commit(server, ALLOCATIONS.build_put(replace(get_allocation(server), client_status=ClientStatus.COMPLETE)))


def a_command_caller(server: OneServer, headers: dict[str, str]) -> WebSocketCaller:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return WebSocketCaller(server.api, EXEC, 'task=server&command=["sh"]', headers=raw)


async def open_session(server: OneServer, node: OpenNode, headers: dict[str, str]) -> WebSocketCaller:
    """Open a command, and wait until it runs and its access was checked."""
    caller = a_command_caller(server, headers)
    await caller.expect("websocket.accept")
    await until(lambda: node.handler.is_running_command, what="the command")
    await pass_time(MIN_CHECK_INTERVAL_S)
    return caller


@pytest.mark.parametrize(
    ("change", "within_s", "reason"),
    [
        (delete_token, MIN_CHECK_INTERVAL_S, "its token no longer permits it"),
        (remove_rights, MIN_CHECK_INTERVAL_S, "its token no longer permits it"),
        (let_token_expire, CHECK_INTERVAL_S, "its token no longer permits it"),
        (delete_allocation, CHECK_INTERVAL_S, f"allocation {RUNS} no longer exists"),
        (end_allocation, CHECK_INTERVAL_S, f"allocation {RUNS} has ended"),
    ],
)
def test_a_session_that_is_no_longer_permitted_ends_with_a_reason(change: Change, within_s: float, reason: str) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            server = await with_node(cluster, access=True)
            node = OpenNode(cluster, server)
            await node.open()
            headers = await a_token(server, RULES)
            caller = await open_session(server, node, headers)
            await pass_time(30)
            was_running = node.handler.is_running_command

            await change(server, headers)
            await pass_time(within_s + 0.1)

            assert (was_running, node.handler.is_running_command) == (True, False)
            end = await caller.expect("websocket.close")
            assert (end["code"], end["reason"]) == (1008, f"the session was ended: {reason}")
            await caller.wait_closed()
            await node.close()

    scenario()


@in_virtual_time
async def test_a_permitted_session_survives_changes_of_other_tokens() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster, access=True)
        node = OpenNode(cluster, server)
        await node.open()
        caller = await open_session(server, node, await a_token(server, RULES))

        for _ in range(20):
            other = await a_token(server, RULES)
            await pass_time(0.3)
            await delete_token(server, other)
            await pass_time(0.3)
        await pass_time(60)

        assert node.handler.is_running_command
        caller.send(type="websocket.receive", text='{"stdin":{"close":true}}')
        assert "exited" in (await caller.expect("websocket.send"))["text"]
        await caller.wait_closed()
        await node.close()


@pytest.mark.parametrize("kind", FOLLOWING_PATHS)
@pytest.mark.parametrize("change", [delete_token, let_token_expire])
def test_a_stream_that_is_no_longer_permitted_is_cut_off(kind: str, change: Change) -> None:
    path, query = FOLLOWING_PATHS[kind]

    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            server = await with_node(cluster, access=True)
            handler = FollowingNodeHandler()
            node = OpenNode(cluster, server, handler=handler)
            await node.open()
            headers = await a_token(server, RULES)
            stream = AStream(cluster, server, path, query, headers)
            await pass_time(30)
            was_open = (stream.status, handler.open_logs, stream.is_over)

            await change(server, headers)
            await pass_time(CHECK_INTERVAL_S + 0.1)

            assert was_open == (200, 1, False)
            assert (handler.open_logs, stream.is_over, stream.has_proper_end) == (0, True, False)
            await node.close()

    scenario()


@in_virtual_time
async def test_a_followed_log_of_an_allocation_that_is_deleted_is_cut_off() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        handler = FollowingNodeHandler()
        node = OpenNode(cluster, server, handler=handler)
        await node.open()
        stream = AStream(cluster, server, *FOLLOWING_PATHS["log"])
        await pass_time(30)
        was_over = stream.is_over

        await commit(server, ALLOCATIONS.build_delete(RUNS))
        await pass_time(CHECK_INTERVAL_S + 0.1)

        assert (was_over, stream.is_over, handler.open_logs) == (False, True, 0)
        await node.close()


@in_virtual_time
async def test_no_check_remains_after_the_end_of_streams_and_sessions() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster, access=True)
        node = OpenNode(cluster, server, handler=FollowingNodeHandler())
        await node.open()
        before = server.replica.watches.subscription_count
        headers = await a_token(server, RULES)
        caller = await open_session(server, node, headers)
        stream = AStream(cluster, server, *FOLLOWING_PATHS["log"], headers)
        await pass_time(1)
        while_open = server.replica.watches.subscription_count

        caller.send(type="websocket.disconnect", code=1000)
        stream.disconnected.set()
        await caller.wait_closed()
        await until(lambda: stream.is_over, what="the end of the stream")

        assert (while_open, server.replica.watches.subscription_count) == (before + 2, before)
        await node.close()


@in_virtual_time
async def test_a_browser_that_sends_no_token_is_disconnected() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster, access=True)
        caller = WebSocketCaller(server.api, EXEC, 'task=server&command=["sh"]&ws_handshake=true', headers=[])
        await caller.expect("websocket.accept")

        await pass_time(HANDSHAKE_TIMEOUT_S + 0.1)

        end = await caller.expect("websocket.close")
        assert (end["code"], end["reason"]) == (1008, "the handshake message did not arrive within 10 s")
        await caller.wait_closed()


@in_virtual_time
async def test_one_token_does_not_use_up_all_sessions_of_a_process() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster, access=True)
        node = OpenNode(cluster, server)
        await node.open()
        greedy, modest = await a_token(server, RULES), await a_token(server, RULES)
        callers = [await open_session(server, node, greedy) for _ in range(MAX_SESSIONS_PER_CALLER)]

        refused = a_command_caller(server, greedy)
        await refused.expect("websocket.accept")
        end = await refused.expect("websocket.close")
        callers.append(await open_session(server, node, modest))

        assert (end["code"], end["reason"]) == (
            1011,
            "this token runs through this server process 128 commands: end some, or retry later",
        )
        for caller in callers:
            caller.send(type="websocket.disconnect", code=1000)
            await caller.wait_closed()
        await refused.wait_closed()
        await node.close()


@in_virtual_time
async def test_a_process_limits_the_number_of_its_sessions() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = OpenNode(cluster, server)
        await node.open()
        callers = [WebSocketCaller(server.api, EXEC, 'task=server&command=["sh"]') for _ in range(MAX_SESSIONS + 1)]
        await until(lambda: len(node.handler.requests) == MAX_SESSIONS, what="all commands but one")

        refused = await until(
            lambda: next((caller for caller in callers if caller.is_served), None), what="the refusal"
        )
        await refused.expect("websocket.accept")
        end = await refused.expect("websocket.close")
        assert (end["code"], end["reason"]) == (
            1011,
            "this server process runs 512 commands: end some, or retry later",
        )
        callers.remove(refused)
        callers[0].send(type="websocket.disconnect", code=1000)
        await callers[0].wait_closed()
        late = WebSocketCaller(server.api, EXEC, 'task=server&command=["sh"]')
        await until(lambda: len(node.handler.requests) == MAX_SESSIONS + 1, what="the late command")
        for caller in (*callers[1:], late):
            caller.send(type="websocket.disconnect", code=1000)
            await caller.wait_closed()
        await node.close()


@pytest.mark.parametrize("path", ["/v1/event/stream", "/v1/client/fs/logs/{0}", "/v1/client/allocation/{0}/snapshot"])
@in_virtual_time
async def test_every_stream_needs_a_slot_of_the_process(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(app, "MAX_STREAMS", 0)
    async with ACluster() as cluster:
        server = await cluster.a_server()

        refused = await get(server, path.format(server.world.new_id()))

        assert (refused.status, refused.headers["x-cluster-error-reason"]) == (503, "overloaded")


@in_virtual_time
async def test_one_token_does_not_use_up_all_streams_of_a_process() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(access=True)
        greedy, modest = await a_token(server, RULES), await a_token(server, RULES)
        streams = [open_event_stream(cluster, server, greedy) for _ in range(MAX_STREAMS_PER_CALLER)]
        await until(lambda: all(stream.status for stream in streams), what="all streams")

        refused = open_event_stream(cluster, server, greedy)
        await refused.wait_end()
        other = open_event_stream(cluster, server, modest)
        await streams[0].disconnect()
        late = open_event_stream(cluster, server, greedy)
        await until(lambda: other.status and late.status, what="the streams of others and the late one")

        assert (refused.status, b"".join(refused.parts)) == (
            503,
            b"this token reads through this server process 512 streams: end some, or retry later",
        )
        assert (other.status, late.status) == (200, 200)
        for stream in (*streams, other, late):
            stream.disconnected.set()
        await until(lambda: all(stream.is_over for stream in streams), what="the end of all streams")


def test_a_slot_is_free_again_when_its_stream_is_never_sent() -> None:
    slots = CallerSlots(1, 1, process_full_text="this server process sends 1 streams", caller_full_text="")

    slots.take(UNCHECKED_CALLER)  # Nothing refers to the slot.

    with slots.take(UNCHECKED_CALLER), pytest.raises(Refusal, match="this server process sends 1 streams"):
        slots.take(UNCHECKED_CALLER)
