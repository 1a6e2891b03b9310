"""Commands beside a task, over a websocket: from the caller to the node and back, message by message.

A caller is let in first and refused after, with a close code and a sentence: that is how existing clients read it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

import msgspec

from wharf.api.endpoints.client_agents import ClientAgents
from wharf.api.endpoints.jobs.actions import JobActions
from wharf.api.onward import holder_of, outgoing_of
from wharf.api.request import Request
from wharf.api.sockets import GOING_AWAY, NORMAL, POLICY, CallerSocket, Conversations
from wharf.api.together import until_first
from wharf.client.sockets import Socket, SocketRefused
from wharf.model.refusal import Code, Refusal, invalid
from wharf.server.node_channels import NoPath, Talk
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
        self._actions = JobActions(server)
        self._known = known

    async def serve(self, request: Request, socket: CallerSocket) -> None:
        await self._run_beside(await self._let_in(request, socket), socket)

    async def serve_action(self, request: Request, socket: CallerSocket) -> None:
        known = await self._let_in(request, socket)
        await self._server.reader.catch_up()
        await self._run_beside(self._actions.as_command(known), socket)

    async def _let_in(self, request: Request, socket: CallerSocket) -> Request:
        await socket.accept()
        if request.flag("ws_handshake"):
            request = _with_token(request, await socket.receive())
        return await self._known(request)

    async def _run_beside(self, request: Request, socket: CallerSocket) -> None:
        allocation = await self._agents.to_exec_beside(request)
        async with AsyncExitStack() as held:
            try:
                talk = await self._agents.begin_exec(request, allocation)
            except NoPath:
                there = await self._elsewhere(request, allocation.node_id, held)
                talk = _SocketTalk(there)
            await self._relay(socket, talk)

    async def _elsewhere(self, request: Request, node_id: str, held: AsyncExitStack) -> Socket:
        """The same conversation with whoever holds the node's connection. Raises Refusal."""
        holder = await holder_of(self._server, node_id)
        outgoing = outgoing_of(request, without=("ws_handshake",))
        passing = self._server.passing.socket_to_member(holder.address, outgoing, hop=holder.hop)
        try:
            return await held.enter_async_context(passing)
        except SocketRefused as refused:
            raise Refusal(Code.UNAVAILABLE, refused.body.decode(errors="replace")) from refused

    async def _relay(self, socket: CallerSocket, talk: Talk) -> None:
        try:
            _, bringing, stopping = await until_first(
                self._server.world,
                exec_input=self._take_there(socket, talk),
                exec_output=self._bring_back(socket, talk),
                closing=socket.closing.wait(),
            )
            if not stopping.cancelled():
                await socket.close(GOING_AWAY, "this server is stopping")
        finally:
            await talk.parts.aclose()
        if not bringing.cancelled():
            bringing.result()

    @staticmethod
    async def _take_there(socket: CallerSocket, talk: Talk) -> None:
        while (message := await socket.receive()) is not None:
            await talk.say(message.encode() if isinstance(message, str) else message)

    @staticmethod
    async def _bring_back(socket: CallerSocket, talk: Talk) -> None:
        async for part in talk.parts:
            await socket.send(part.decode())
        await socket.close(NORMAL)


class _SocketTalk:
    """A talk over a websocket to where the node is."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self.parts = self._heard()

    async def _heard(self) -> AsyncGenerator[bytes, None]:
        while (message := await self._socket.receive()) is not None:
            yield message.encode() if isinstance(message, str) else message
        if self._socket.close_code == POLICY:
            raise invalid(self._socket.close_reason)
        if self._socket.close_code not in (NORMAL, GOING_AWAY):
            raise Refusal(Code.UNAVAILABLE, self._socket.close_reason or "the other server broke off")

    async def say(self, data: bytes) -> None:
        await self._socket.send(data.decode())


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
    sockets = ExecSockets(server, known)
    return {"client.exec": sockets.serve, "job.action": sockets.serve_action}
