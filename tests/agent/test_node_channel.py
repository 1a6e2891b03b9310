"""Several API processes, one of which holds the channel to a node: requests to all of them reach the node."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import msgspec

from tests.agent.processes import running
from wharf.contract.client.relay.websockets import WebSocketRelay
from wharf.contract.model.nodes.node import Node
from wharf.contract.wire.nodes import channel, messages
from wharf.node.channel.connection import ChannelConnection
from wharf.node.channel.endpoint import ChannelReply, RequestDispatcher
from wharf.node.credentials import NodeCredentials
from wharf.world import RealWorld
from wharf.world.failover import FailoverAddresses

NODE = "8a6f0c44-0000-4000-8000-000000000001"
SECRET = "11111111-2222-4333-8444-555555555555"


async def stats(request: channel.ChannelRequest, _inputs: AsyncIterator[bytes]) -> ChannelReply:
    return ChannelReply("application/json", msgspec.json.encode({"Verb": request.verb}))


async def request_often(address: str) -> list[tuple[int, str]]:
    world = RealWorld()
    body = msgspec.json.encode(messages.NodeRegistration(node=Node(id=NODE, name="n"), secret_id=SECRET))
    async with httpx2.AsyncClient(base_url=address) as http, asyncio.timeout(60):
        (await http.put(f"/v1/node/{NODE}/register", content=body)).raise_for_status()
        connection = ChannelConnection(
            world,
            RequestDispatcher({"stats": stats}),
            NodeCredentials(NODE, SECRET),
            [WebSocketRelay(address)],
            FailoverAddresses(world, 1),
        )
        connection_task = world.start_task(connection.run(), name="connection")
        await connection.is_open.wait()
        try:
            answers: list[tuple[int, str]] = []
            while len(answers) < 20:
                # A new connection each time, so that both processes get requests.
                async with httpx2.AsyncClient(base_url=address) as client:
                    reply = await client.get("/v1/client/stats", params={"node_id": NODE})
                if reply.status_code == 404 and not answers:
                    continue  # The leader does not know the channel yet.
                answers.append((reply.status_code, reply.text))
            return answers
        finally:
            connection_task.cancel()
            await asyncio.gather(connection_task, return_exceptions=True)


def test_a_node_is_reached_through_every_api_process(tmp_path: Path) -> None:
    folder = tmp_path / ("a-folder-with-a-long-name-" * 5)
    folder.mkdir()
    (folder / "wharf.toml").write_text(
        f'data_dir = "{folder}/data"\nserver.enabled = true\napi.processes = 2\n[state]\nengine = "sqlite"\n'
    )
    with running(folder, "agent", "--config", str(folder / "wharf.toml"), "--port", "0") as agent:
        agent.wait_ready()

        assert [(200, '{"Verb":"stats"}')] * 20 == asyncio.run(request_often(agent.address))
