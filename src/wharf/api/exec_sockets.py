"""Commands beside a task, over a websocket: from the caller to the node and back, message by message.

A caller is let in first and refused after, with a close code and a sentence: that is how existing clients read it.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from wharf.api.client_agents import ClientAgents
from wharf.api.request import Request
from wharf.api.sockets import GOING_AWAY, NORMAL, CallerSocket, Conversations
from wharf.model.refusal import invalid
from wharf.server.node_channels import Talk
from wharf.server.server import Server

HANDSHAKE_VERSION = 1
TOKEN_HEADER = b"x-cluster-token"


class Handshake(msgspec.Struct):
    """The first message of a browser, which can set no headers."""

    version: int = 0
    auth_token: str = ""


class ExecSockets:
    def __init__(self, server: Server, known: Callable[[Request], Awaitable[Request]]) -> None:
        """`known`: the request with its caller, checked. Raises Refusal."""
        self._server = server
        self._agents = ClientAgents(server)
        self._known = known

    async def serve(self, request: Request, socket: CallerSocket) -> None:
        await socket.accept()
        if request.flag("ws_handshake"):
            request = _with_token(request, await socket.receive())
        talk = await self._agents.begin_exec(await self._known(request))
        world = self._server.world
        works = [
            world.start(self._take_there(socket, talk), name="exec input"),
            world.start(self._bring_back(socket, talk), name="exec output"),
            world.start(socket.closing.wait(), name="closing"),
        ]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            if works[2].done():
                await socket.close(GOING_AWAY, "this server is stopping")
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await talk.parts.aclose()
        if works[1].done() and not works[1].cancelled():
            works[1].result()

    @staticmethod
    async def _take_there(socket: CallerSocket, talk: Talk) -> None:
        while (message := await socket.receive()) is not None:
            await talk.say(message.encode() if isinstance(message, str) else message)

    @staticmethod
    async def _bring_back(socket: CallerSocket, talk: Talk) -> None:
        async for part in talk.parts:
            await socket.send(part.decode())
        await socket.close(NORMAL)


def _with_token(request: Request, first: str | bytes | None) -> Request:
    try:
        said = msgspec.json.decode(first or b"{}", type=Handshake)
    except msgspec.MsgspecError:
        said = Handshake()
    if said.version != HANDSHAKE_VERSION:
        raise invalid('the first message must be a handshake: {"version": 1, "auth_token": "..."}')
    given = request.headers.get(TOKEN_HEADER, b"").decode("latin-1")
    if given and given != said.auth_token:
        raise invalid("the token of the handshake is not that of the header")
    return msgspec.structs.replace(request, headers={**request.headers, TOKEN_HEADER: said.auth_token.encode()})


def conversations_of(server: Server, known: Callable[[Request], Awaitable[Request]]) -> Conversations:
    return {"client.exec": ExecSockets(server, known).serve}
