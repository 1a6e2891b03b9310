"""Commands beside a task, over a websocket: from the caller to the node and back, message by message.

A caller is let in first and refused after, with a close code and a sentence: that is how existing clients read it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

import msgspec

from wharf.cluster.api.handlers.allocations.node_calls import NodeCallActions
from wharf.cluster.api.handlers.jobs.actions import JobActionResolver
from wharf.cluster.api.relay.members import build_relayed_request, find_node_holder
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.websockets.sockets import (
    GOING_AWAY_CODE,
    NORMAL_CLOSE_CODE,
    POLICY_VIOLATION_CODE,
    CallerSocket,
    WebSocketHandlers,
)
from wharf.cluster.server.node_channels.port import NodeStream, NoNodePath
from wharf.cluster.server.server import Server
from wharf.contract.client.relay.websockets import HandshakeRefused, WebSocket
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.world.tasks import run_until_first

HANDSHAKE_VERSION = 1
TOKEN_HEADER = b"x-cluster-token"


class ExecHandshake(msgspec.Struct):
    """The first message of a browser, which can set no headers."""

    version: int = 0
    auth_token: str = ""


class ExecWebSocketHandlers:
    def __init__(self, server: Server, authorize: Callable[[Request], Awaitable[Request]]) -> None:
        """`known`: the request with its caller, checked. Raises Refusal."""
        self._server = server
        self._agents = NodeCallActions(server)
        self._actions = JobActionResolver(server)
        self._known = authorize

    async def serve_exec(self, request: Request, socket: CallerSocket) -> None:
        await self._run_beside(await self._let_in(request, socket), socket)

    async def serve_action(self, request: Request, socket: CallerSocket) -> None:
        known = await self._let_in(request, socket)
        await self._server.reader.catch_up()
        await self._run_beside(self._actions.build_exec_request(known), socket)

    async def _let_in(self, request: Request, socket: CallerSocket) -> Request:
        await socket.accept()
        if request.get_flag("ws_handshake"):
            request = _with_token(request, await socket.receive())
        return await self._known(request)

    async def _run_beside(self, request: Request, socket: CallerSocket) -> None:
        allocation = await self._agents.find_exec_allocation(request)
        async with AsyncExitStack() as held:
            try:
                talk = await self._agents.open_exec(request, allocation)
            except NoNodePath:
                there = await self._elsewhere(request, allocation.node_id, held)
                talk = _SocketTalk(there)
            await self._relay(socket, talk)

    async def _elsewhere(self, request: Request, node_id: str, held: AsyncExitStack) -> WebSocket:
        """The same conversation with whoever holds the node's connection. Raises Refusal."""
        holder = await find_node_holder(self._server, node_id)
        outgoing = build_relayed_request(request, excluded_parameters=("ws_handshake",))
        passing = self._server.relay.open_socket_to_member(holder.address, outgoing, hop=holder.hop)
        try:
            return await held.enter_async_context(passing)
        except HandshakeRefused as refused:
            raise Refusal(RefusalCode.UNAVAILABLE, refused.body.decode(errors="replace")) from refused

    async def _relay(self, socket: CallerSocket, talk: NodeStream) -> None:
        try:
            _, bringing, stopping = await run_until_first(
                self._server.world,
                exec_input=self._take_there(socket, talk),
                exec_output=self._bring_back(socket, talk),
                closing=socket.closing_event.wait(),
            )
            if not stopping.cancelled():
                await socket.close(GOING_AWAY_CODE, "this server is stopping")
        finally:
            await talk.parts.aclose()
        if not bringing.cancelled():
            bringing.result()

    @staticmethod
    async def _take_there(socket: CallerSocket, talk: NodeStream) -> None:
        while (message := await socket.receive()) is not None:
            await talk.send(message.encode() if isinstance(message, str) else message)

    @staticmethod
    async def _bring_back(socket: CallerSocket, talk: NodeStream) -> None:
        async for part in talk.parts:
            await socket.send(part.decode())
        await socket.close(NORMAL_CLOSE_CODE)


class _SocketTalk:
    """A talk over a websocket to where the node is."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.parts = self._heard()

    async def _heard(self) -> AsyncGenerator[bytes, None]:
        while (message := await self._socket.receive()) is not None:
            yield message.encode() if isinstance(message, str) else message
        if self._socket.close_code == POLICY_VIOLATION_CODE:
            raise invalid_request(self._socket.close_reason)
        if self._socket.close_code not in (NORMAL_CLOSE_CODE, GOING_AWAY_CODE):
            raise Refusal(RefusalCode.UNAVAILABLE, self._socket.close_reason or "the other server broke off")

    async def send(self, data: bytes) -> None:
        await self._socket.send(data.decode())


def _with_token(request: Request, first: str | bytes | None) -> Request:
    try:
        said = msgspec.json.decode(first or b"{}", type=ExecHandshake)
    except msgspec.MsgspecError:
        said = ExecHandshake()
    if said.version != HANDSHAKE_VERSION:
        raise invalid_request('the first message must be a handshake: {"version": 1, "auth_token": "..."}')
    given = request.headers.get(TOKEN_HEADER, b"").decode("latin-1")
    if given and given != said.auth_token:
        raise invalid_request("the token of the handshake is not that of the header")
    return msgspec.structs.replace(request, headers={**request.headers, TOKEN_HEADER: said.auth_token.encode()})


def build_websocket_handlers(server: Server, authorize: Callable[[Request], Awaitable[Request]]) -> WebSocketHandlers:
    sockets = ExecWebSocketHandlers(server, authorize)
    return {"client.exec": sockets.serve_exec, "job.action": sockets.serve_action}
