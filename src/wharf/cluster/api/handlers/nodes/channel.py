"""The connections that nodes keep open, for what is asked of them."""

import logging

import msgspec

from wharf.cluster.api.handlers.nodes.protocol import NodeProtocolActions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.websockets.sockets import GOING_AWAY_CODE, INTERNAL_ERROR_CODE, CallerSocket, WebSocketHandlers
from wharf.cluster.server.node_channels.connections import NodeConnection
from wharf.cluster.server.server import Server
from wharf.world.tasks import run_until_first

log = logging.getLogger(__name__)


class NodeChannelHandler:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._speech = NodeProtocolActions(server)
        self._held = server.local_channels

    async def serve_channel(self, request: Request, socket: CallerSocket) -> None:
        node = await self._speech.authenticate_node(request)
        await socket.accept()
        link = NodeConnection(socket.send)
        self._held.add_connection(node.id, link)
        try:
            hearing, stopping = await run_until_first(
                self._server.world, hearing=self._hear(socket, link), closing=socket.closing_event.wait()
            )
        finally:
            self._held.remove_connection(node.id, link)
        if not stopping.cancelled():
            await socket.close(GOING_AWAY_CODE, "this server is stopping")
        if not hearing.cancelled():
            hearing.result()  # A fault of ours is told where all are.

    async def _hear(self, socket: CallerSocket, link: NodeConnection) -> None:
        while (message := await socket.receive()) is not None:
            try:
                link.receive(message.encode() if isinstance(message, str) else message)
            except msgspec.MsgspecError as error:
                log.warning("a node says what cannot be read", extra={"why": str(error)})
                await socket.close(INTERNAL_ERROR_CODE, "what you said cannot be read")
                return


def build_websocket_handlers(server: Server) -> WebSocketHandlers:
    return {"node.channel": NodeChannelHandler(server).serve_channel}
