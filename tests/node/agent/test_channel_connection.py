"""The node channel, from the files of an allocation to a caller of the API: it opens, replies, breaks and
reconnects.
"""

import base64
from collections.abc import Callable, Coroutine
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from tests.cluster.api.test_node_channels import NODE, RUNS, SECRET, with_node
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import get
from tests.kit.sockets import InMemorySockets
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.contract.model.refusal import invalid_request
from wharf.node.channel.connection import ChannelConnection
from wharf.node.channel.endpoint import RequestDispatcher
from wharf.node.channel.files import FileHandlers
from wharf.node.credentials import NodeCredentials
from wharf.node.tasks.folders import AllocationFolders
from wharf.world.failover import FailoverAddresses


def is_over(_allocation: str, task: str) -> bool:
    if task != "server":
        raise invalid_request(f'unknown task name "{task}"')
    return True


class ChannelNode:
    """A node with the files of one allocation, and connections to some servers."""

    def __init__(self, cluster: ACluster, folder: Path, *servers: InMemorySockets, secret: str = SECRET) -> None:
        folders = AllocationFolders(folder / "allocations")
        task_folders = folders.create_task_folders(RUNS, "server")
        (task_folders.local / "notes").write_text("0123456789")
        (task_folders.logs / "server.stdout.0").write_text("output\n")
        dispatcher = RequestDispatcher(FileHandlers(folders, is_over, lambda *_: False).handlers())
        world = cluster.world("node")
        self.addresses = FailoverAddresses(world, len(servers))
        self.connection = ChannelConnection(world, dispatcher, NodeCredentials(NODE, secret), servers, self.addresses)
        cluster.start(self.connection.run(), name="node channel")

    async def wait_open(self) -> None:
        await until(self.connection.is_open.is_set, what="the node's channel is open")


async def read_file(server: OneServer, verb: str, query: str) -> tuple[int, bytes]:
    reply = await get(server, f"/v1/client/fs/{verb}/{RUNS}", query)
    return reply.status, reply.body


def with_folder(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run the test in virtual time with a folder of its own."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        in_virtual_time(test)(tmp_path)

    return run


@with_folder
async def test_files_and_logs_are_read_through_the_channel(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        await ChannelNode(cluster, tmp_path, InMemorySockets(server.api)).wait_open()

        listed = msgspec.json.decode((await read_file(server, "ls", "path=server"))[1])
        assert ["local", "private", "secrets", "tmp"] == [entry["Name"] for entry in listed]
        assert 10 == msgspec.json.decode((await read_file(server, "stat", "path=server/local/notes"))[1])["Size"]
        assert (200, b"0123456789") == await read_file(server, "cat", "path=server/local/notes")
        assert (200, b"345") == await read_file(server, "readat", "path=server/local/notes&offset=3&limit=3")
        assert (200, b"") == await read_file(server, "readat", "path=server/local/notes&offset=99")
        frame = msgspec.json.decode((await read_file(server, "stream", "path=server/local/notes&follow=false"))[1])
        assert (b"0123456789", 10) == (base64.b64decode(frame["Data"]), frame["Offset"])
        assert (200, b"output\n") == await read_file(server, "logs", "task=server&type=stdout&plain=true")


@with_folder
async def test_errors_have_the_right_status(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        await ChannelNode(cluster, tmp_path, InMemorySockets(server.api)).wait_open()

        assert (404, b'file "none" does not exist') == await read_file(server, "cat", "path=none")
        assert (400, b"Path escapes the alloc directory") == await read_file(server, "stat", "path=../..")
        assert (403, b"Reading secret file prohibited: server/secrets/x") == await read_file(
            server, "cat", "path=server/secrets/x"
        )
        assert (404, b'task "server" not started yet. No logs available') == await read_file(
            server, "logs", "task=server&type=stderr"
        )


@with_folder
async def test_a_broken_channel_is_open_again_within_five_seconds(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        sockets = InMemorySockets(server.api)
        node = ChannelNode(cluster, tmp_path, sockets)
        await node.wait_open()
        sockets.open[0].cut()
        await until(lambda: not node.connection.is_open.is_set(), what="the channel is cut")
        disconnected_s = now_s()

        await node.wait_open()

        assert now_s() - disconnected_s < 5
        assert 200 == (await read_file(server, "cat", "path=server/local/notes"))[0]


@with_folder
async def test_channels_of_a_large_fleet_open_again_over_a_longer_time(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        sockets = InMemorySockets(server.api)
        node = ChannelNode(cluster, tmp_path, sockets)
        node.addresses.return_spread_s = 20.0  # As with 5,000 nodes.
        delays_s: list[float] = []
        for _ in range(30):
            await node.wait_open()
            sockets.open[-1].cut()
            await until(lambda: not node.connection.is_open.is_set(), what="the channel is cut")
            disconnected_s = now_s()
            await until(node.connection.is_open.is_set, what="the channel is open again", within_s=30.0)
            delays_s.append(now_s() - disconnected_s)

        assert 7.0 < sum(delays_s) / len(delays_s) < 13.0
        assert max(delays_s) <= 20.5


@with_folder
async def test_a_node_connects_to_the_next_server_when_one_does_not_reply(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = ChannelNode(cluster, tmp_path, InMemorySockets(None), InMemorySockets(server.api))

        await node.wait_open()

        assert now_s() < 5


@with_folder
async def test_a_node_leaves_a_server_that_never_answers_the_handshake_within_three_seconds(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        frozen = InMemorySockets(server.api)
        frozen.is_frozen = True
        node = ChannelNode(cluster, tmp_path, frozen, InMemorySockets(server.api))

        await node.wait_open()

        assert now_s() < 3
        assert node.addresses.current == 1


@with_folder
async def test_the_channel_leaves_a_server_as_soon_as_another_call_misses_its_reply(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        first, second = InMemorySockets(server.api), InMemorySockets(server.api)
        node = ChannelNode(cluster, tmp_path, first, second)
        await node.wait_open()
        assert len(first.open) == 1

        node.addresses.on_silence(node.addresses.start_call(10.0).next_attempt())
        await until(lambda: len(second.open) == 1, what="the channel is open at the other server")

        assert now_s() < 1
        assert len(first.open) == 0


@with_folder
async def test_a_node_retries_a_refused_channel(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = ChannelNode(cluster, tmp_path, InMemorySockets(server.api), secret="wrong secret")
        started_s = now_s()
        await until(lambda: now_s() > started_s + 20, what="20 seconds have passed")

        assert not node.connection.is_open.is_set()


@with_folder
async def test_two_agents_with_the_same_node_connect_at_most_once_a_second(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        open_count = 0

        async def count(*arguments: Any) -> None:
            nonlocal open_count
            open_count += 1
            await server.api(*arguments)

        for name in ("a", "b"):
            ChannelNode(cluster, tmp_path / name, InMemorySockets(count))

        await pass_time(300)

        assert 10 < open_count < 300


@with_folder
async def test_a_channel_waits_as_long_as_an_overloaded_server_requests(tmp_path: Path) -> None:
    refusal_times_s: list[float] = []

    async def refuse(
        _scope: object, _receive: object, send: Callable[[dict[str, Any]], Coroutine[Any, Any, None]]
    ) -> None:
        refusal_times_s.append(now_s())
        headers = [(b"retry-after", b"10")]
        await send({"type": "websocket.http.response.start", "status": 503, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": b"overloaded"})

    async with ACluster() as cluster:
        ChannelNode(cluster, tmp_path, InMemorySockets(refuse))

        await until(lambda: len(refusal_times_s) == 4, what="three repetitions", within_s=60.0)

        assert min(after - before for before, after in pairwise(refusal_times_s)) >= 10.0
