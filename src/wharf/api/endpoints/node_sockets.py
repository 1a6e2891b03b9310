"""The connections that nodes keep open, for what is asked of them."""

import logging

import msgspec

from wharf.api.endpoints.node_agents import NodeSpeech
from wharf.api.request import Request
from wharf.api.sockets import GOING_AWAY, WENT_WRONG, CallerSocket, Conversations
from wharf.api.together import until_first
from wharf.server.node_link import NodeLink
from wharf.server.server import Server

log = logging.getLogger(__name__)


class NodeSockets:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._speech = NodeSpeech(server)
        self._held = server.held

    async def serve(self, request: Request, socket: CallerSocket) -> None:
        node = await self._speech.authenticated_now(request)
        await socket.accept()
        link = NodeLink(socket.send)
        self._held.hold(node.id, link)
        try:
            hearing, stopping = await until_first(
                self._server.world, hearing=self._hear(socket, link), closing=socket.closing.wait()
            )
        finally:
            self._held.let_go(node.id, link)
        if not stopping.cancelled():
            await socket.close(GOING_AWAY, "this server is stopping")
        if not hearing.cancelled():
            hearing.result()  # A fault of ours is told where all are.

    async def _hear(self, socket: CallerSocket, link: NodeLink) -> None:
        while (message := await socket.receive()) is not None:
            try:
                link.hear(message.encode() if isinstance(message, str) else message)
            except msgspec.MsgspecError as error:
                log.warning("a node says what cannot be read", extra={"why": str(error)})
                await socket.close(WENT_WRONG, "what you said cannot be read")
                return


def conversations_of(server: Server) -> Conversations:
    return {"node.channel": NodeSockets(server).serve}
