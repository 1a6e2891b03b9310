"""The connection that a node keeps open, and what goes through it: questions of callers, and commands beside tasks."""

import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.builders import a_group, a_job, a_task
from tests.cluster.api.test_upgrades import Caller
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


class Answers:
    """What the node does when it is asked."""

    def __init__(self) -> None:
        self.asked: list[channel.ChannelRequest] = []
        self.is_talking = False
        self.open_logs = 0

    async def handle_request(self, question: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        self.asked.append(question)
        match question.verb:
            case "fs_logs":
                return ChannelReply(
                    "application/json", chunks=self._log(follows=bool(question.parameters.get("follow")))
                )
            case "exec":
                return ChannelReply("application/json", chunks=self._talk(inputs))
            case "stats":
                return ChannelReply("application/json", b'{"Uptime": 7}')
        raise not_found(f"this node knows no {question.verb}")

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

    async def _talk(self, inputs: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        self.is_talking = True
        try:
            async for said in inputs:
                word = msgspec.json.decode(said)["stdin"]
                if word.get("close"):
                    yield b'{"exited":true,"result":{"exit_code":5}}'
                    return
                yield msgspec.json.encode({"stdout": {"data": word["data"]}})
        finally:
            self.is_talking = False


class Node:
    """Holds a channel open to the server."""

    def __init__(self, cluster: ACluster, server: OneServer, secret: str = SECRET) -> None:
        self.answers = Answers()
        self.caller = Caller(server.api, CHANNEL, headers=[(b"x-cluster-node-secret", secret.encode())])
        self.end = ChannelEndpoint(cluster.world("node"), self.answers, self._say)
        self._cluster = cluster

    async def _say(self, data: bytes) -> None:
        self.caller.say(type="websocket.receive", bytes=data)

    async def open(self) -> None:
        await self.caller.heard_of("websocket.accept")
        self._cluster.start(self._hear(), name="the node hears")

    async def _hear(self) -> None:
        while (message := await self.caller.hears.get())["type"] == "websocket.send":
            self.end.receive_message(message["bytes"])

    async def close(self) -> None:
        self.caller.say(type="websocket.disconnect", code=1006)
        await self.caller.is_over()
        await self.end.close()


async def with_node(cluster: ACluster, *, access: bool = False, driver: str = "docker") -> OneServer:
    server = await cluster.a_server(access=access)
    action = TaskAction(name="greet", command="/bin/echo", args=("hello", "you"))
    job = a_job("shop", a_group("web", a_task("server", driver=driver, actions=(action,))), create_index=WRITE_INDEX)
    node = a_node(NODE, status=NodeStatus.READY, create_index=WRITE_INDEX, secret_digest=hash_secret(SECRET))
    work = an_allocation(job, RUNS, node_id=NODE, client_status=ClientStatus.RUNNING)
    await commit(
        server, NODES.build_put(node), JOBS.build_put(job), JOB_VERSIONS.build_put(job), ALLOCATIONS.build_put(work)
    )
    return server


@asynccontextmanager
async def an_open_node(cluster: ACluster) -> AsyncGenerator[tuple[OneServer, Node], None]:
    server = await with_node(cluster)
    node = Node(cluster, server)
    await node.open()
    try:
        yield server, node
    finally:
        await node.close()


def said(data: bytes) -> str:
    return msgspec.json.encode({"stdin": {"data": base64.b64encode(data).decode()}}).decode()


@in_virtual_time
async def test_a_question_goes_to_the_node_and_its_answer_comes_back() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        reply = await get(server, "/v1/client/stats", f"node_id={NODE}")

        assert (200, {"Uptime": 7}) == (reply.status, msgspec.json.decode(reply.body))
        assert ["stats"] == [question.verb for question in node.answers.asked]


@in_virtual_time
async def test_what_a_node_says_no_to_is_refused_in_its_words() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, _node):
        reply = await get(server, f"/v1/client/fs/ls/{RUNS}", "path=/")

        assert (404, b"this node knows no fs_list") == (reply.status, reply.body)


@in_virtual_time
async def test_a_log_comes_part_by_part() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, _node):
        reply = await get(server, f"/v1/client/fs/logs/{RUNS}", "task=server&type=stdout&origin=start")

        assert b'{"Offset":0}{"Offset":1}{"Offset":2}' == reply.body


@in_virtual_time
async def test_without_its_connection_there_is_no_path_to_a_node() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = Node(cluster, server)
        await node.open()
        await node.close()

        reply = await get(server, "/v1/client/stats", f"node_id={NODE}")

        assert (404, b"No path to node") == (reply.status, reply.body)


@in_virtual_time
async def test_a_newer_connection_takes_the_place_of_an_older_one() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        older = Node(cluster, server)
        await older.open()
        newer = Node(cluster, server)
        await newer.open()
        await older.close()

        assert 200 == (await get(server, "/v1/client/stats", f"node_id={NODE}")).status
        assert ([], 1) == (older.answers.asked, len(newer.answers.asked))
        await newer.close()


@in_virtual_time
async def test_only_the_node_itself_may_open_its_channel() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        stranger = Node(cluster, server, secret="a guess")

        assert (403, b"Permission denied") == await stranger.caller.refusal()
        assert (400, b"a node's channel is a websocket: ask with an upgrade") == (
            (reply := await get(server, CHANNEL, headers={"X-Cluster-Node-Secret": SECRET})).status,
            reply.body,
        )


@in_virtual_time
async def test_a_node_that_speaks_in_riddles_is_sent_away() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = Node(cluster, server)
        await node.caller.heard_of("websocket.accept")
        node.caller.say(type="websocket.receive", bytes=b"\xc1")

        assert "what you said cannot be read" == (await node.caller.heard_of("websocket.close"))["reason"]
        await node.caller.is_over()


@in_virtual_time
async def test_a_server_that_stops_sends_its_nodes_elsewhere() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = Node(cluster, server)
        await node.caller.heard_of("websocket.accept")

        server.api.close()

        assert 1001 == (await node.caller.heard_of("websocket.close"))["code"]
        await node.caller.is_over()


@in_virtual_time
async def test_a_command_beside_a_task_hears_and_answers_until_it_ends() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        caller = Caller(server.api, EXEC, 'task=server&tty=true&command=["sh"]')
        await caller.heard_of("websocket.accept")

        caller.say(type="websocket.receive", text=said(b"hello"))
        echoed = msgspec.json.decode((await caller.heard_of("websocket.send"))["text"])
        caller.say(type="websocket.receive", text='{"stdin":{"close":true}}')
        last = msgspec.json.decode((await caller.heard_of("websocket.send"))["text"])

        assert b"hello" == base64.b64decode(echoed["stdout"]["data"])
        assert {"exited": True, "result": {"exit_code": 5}} == last
        assert 1000 == (await caller.heard_of("websocket.close"))["code"]
        assert {"task": "server", "tty": True, "command": '["sh"]'} == node.answers.asked[0].parameters
        await caller.is_over()


@in_virtual_time
async def test_an_action_of_a_job_runs_beside_the_task_that_offers_it() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        caller = Caller(server.api, ACTION, "action=greet")
        await caller.heard_of("websocket.accept")
        caller.say(type="websocket.receive", text='{"stdin":{"close":true}}')

        assert "exited" in (await caller.heard_of("websocket.send"))["text"]
        assert 1000 == (await caller.heard_of("websocket.close"))["code"]
        (asked,) = node.answers.asked
        assert ("exec", RUNS) == (asked.verb, asked.about)
        assert {"task": "server", "tty": False, "command": '["/bin/echo","hello","you"]'} == asked.parameters
        await caller.is_over()


@in_virtual_time
async def test_an_action_that_nobody_offers_is_told_with_those_that_are_there() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        async def told(query: str, path: str = ACTION) -> str:
            caller = Caller(server.api, path, query)
            await caller.heard_of("websocket.accept")
            end = await caller.heard_of("websocket.close")
            await caller.is_over()
            assert 1008 == end["code"]
            return str(end["reason"])

        assert "must provide action name" == await told("")
        assert 'Unknown job "nobody"' == await told("action=greet", "/v1/job/nobody/action")
        assert 'no allocation of "shop" runs that offers the action "sing"' == await told("action=sing")
        assert 'web offers no action "sing"; there are: server/greet' == await told(f"action=sing&allocID={RUNS}")
        assert 'the task "db" offers no action "greet"; there are: server/greet' == await told(
            f"action=greet&task=db&allocID={RUNS}"
        )
        assert 'Unknown allocation "x" of job "shop"' == await told("action=greet&allocID=x")
        assert (400, b"commands run over a websocket: ask with an upgrade") == (
            (reply := await get(server, ACTION, "action=greet")).status,
            reply.body,
        )


@in_virtual_time
async def test_a_caller_who_leaves_ends_the_command() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        caller = Caller(server.api, EXEC, 'task=server&command=["sh"]')
        await caller.heard_of("websocket.accept")
        await until(lambda: node.answers.is_talking, what="the command")

        caller.say(type="websocket.disconnect", code=1006)
        await caller.is_over()

        await until(lambda: not node.answers.is_talking, what="the end of the command")


@in_virtual_time
async def test_what_is_wrong_with_a_command_is_told_as_the_end_of_the_conversation() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        async def told(query: str, path: str = EXEC) -> tuple[int, str]:
            caller = Caller(server.api, path, query)
            await caller.heard_of("websocket.accept")
            end = await caller.heard_of("websocket.close")
            await caller.is_over()
            return end["code"], end["reason"]

        assert (1008, "must provide task name") == await told('command=["ls"]')
        assert (1008, "command is not present") == await told("task=server")
        assert (1008, "No path to node") == await told('task=server&command=["ls"]')
        assert (1008, 'Unknown allocation "x"') == await told(
            'task=server&command=["ls"]', "/v1/client/allocation/x/exec"
        )


@in_virtual_time
async def test_a_query_that_cannot_be_decoded_opens_no_conversation() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        caller = Caller(server.api, EXEC, "task=%ff")

        told = b"the query holds task=%ff, which cannot be decoded: escape it as UTF-8"
        assert (400, told) == await caller.refusal()
        await caller.is_over()


@in_virtual_time
async def test_a_node_that_goes_away_ends_the_command_with_a_sentence() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = Node(cluster, server)
        await node.open()
        caller = Caller(server.api, EXEC, 'task=server&command=["sh"]')
        await caller.heard_of("websocket.accept")
        await until(lambda: node.answers.is_talking, what="the command")

        await node.close()

        end = await caller.heard_of("websocket.close")
        assert (1011, "the node's connection was closed; retry") == (end["code"], end["reason"])
        await caller.is_over()


@in_virtual_time
async def test_a_browser_shows_its_token_in_its_first_message() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster, access=True)
        node = Node(cluster, server)
        await node.open()
        header = await a_token(server, 'namespace "default" { capabilities = ["alloc-exec"] }')
        secret = header["x-cluster-token"]

        async def begun(first: dict[str, Any] | None) -> Caller:
            query = f'task=server&command=["sh"]{"&ws_handshake=true" if first else ""}'
            caller = Caller(server.api, EXEC, query, headers=[])
            await caller.heard_of("websocket.accept")
            if first:
                caller.say(type="websocket.receive", text=msgspec.json.encode(first).decode())
            return caller

        refused = await begun(None)
        assert "Permission denied" == (await refused.heard_of("websocket.close"))["reason"]
        wrong = await begun({"auth_token": secret})
        assert (await wrong.heard_of("websocket.close"))["reason"].startswith("the first message must be a handshake")
        right = await begun({"version": 1, "auth_token": secret})
        right.say(type="websocket.receive", text='{"stdin":{"close":true}}')
        assert "exited" in (await right.heard_of("websocket.send"))["text"]
        for caller in (refused, wrong, right):
            await caller.is_over()
        await node.close()


@in_virtual_time
async def test_a_stream_whose_caller_left_is_ended_at_the_node() -> None:
    async with ACluster() as cluster, an_open_node(cluster) as (server, node):
        query = [("task", "server"), ("type", "stdout"), ("origin", "start"), ("follow", "true")]
        stream = AStream(cluster, server, f"/v1/client/fs/logs/{RUNS}", query)
        await until(lambda: node.answers.open_logs == 1, what="the log")
        stream.gone.set()

        await until(lambda: node.answers.open_logs == 0, what="the end of the log")
