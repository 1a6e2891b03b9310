"""The websockets that nodes keep open so that servers can send them requests."""

import logging
from typing import Final

import msgspec

from wharf.cluster.api.node_callers import authenticate_node
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.websockets.sockets import (
    GOING_AWAY_CODE,
    INTERNAL_ERROR_CODE,
    POLICY_VIOLATION_CODE,
    STOPPING_TEXT,
    CallerSocket,
    WebSocketHandlers,
)
from wharf.cluster.server.node_channels.connections import ChannelViolation, NodeConnection
from wharf.cluster.server.server import Server
from wharf.world.tasks import run_until_first

log = logging.getLogger(__name__)

UNDECODABLE_MESSAGE_TEXT: Final = "the message cannot be decoded"
REPLACED_TEXT: Final = "the node opened a newer channel, which replaces this one"


class NodeChannelHandler:
    """Serves node channels: websockets that nodes keep open, through which servers send them requests."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._channels = server.local_channels

    async def serve_channel(self, request: Request, socket: CallerSocket) -> None:
        """Register the node's connection, and receive its messages until the node disconnects or this server stops."""
        node = await authenticate_node(self._server, request)
        self._channels.check_capacity(node.id)
        await socket.accept()
        socket.stop_counting()  # Many nodes may share an address, and each has a secret.
        connection = NodeConnection(socket.send, node.name or node.id)
        self._channels.add_connection(node.id, connection)
        try:
            receiving, closing, replaced = await run_until_first(
                self._server.world,
                receiving=self._receive_messages(node.id, socket, connection),
                closing=socket.closing_event.wait(),
                replaced=connection.disconnected_event.wait(),
            )
        finally:
            if socket.is_lost:
                connection.disconnect(is_lost=True)
            self._channels.remove_connection(node.id, connection)
        if not replaced.cancelled():
            await socket.close_at_once(POLICY_VIOLATION_CODE, REPLACED_TEXT)
        if not closing.cancelled():
            await socket.close(GOING_AWAY_CODE, STOPPING_TEXT)
        if not receiving.cancelled():
            receiving.result()  # Raises an internal error, which the dispatcher logs.

    async def _receive_messages(self, node_id: str, socket: CallerSocket, connection: NodeConnection) -> None:
        """Pass each message to the connection until the node closes the websocket.

        A message that cannot be decoded, or that the node may not send, closes it too.
        """
        while (message := await socket.receive()) is not None:
            try:
                connection.receive(message.encode() if isinstance(message, str) else message)
            except msgspec.MsgspecError as error:
                log.warning("node channel message not decodable node=%s", node_id, extra={"why": str(error)})
                await socket.close_at_once(INTERNAL_ERROR_CODE, UNDECODABLE_MESSAGE_TEXT)
                return
            except ChannelViolation as error:
                log.warning("node channel closed: node breaks its rules node=%s", node_id, extra={"why": str(error)})
                await socket.close_at_once(POLICY_VIOLATION_CODE, str(error))
                return


def build_websocket_handlers(server: Server) -> WebSocketHandlers:
    return {"node.channel": NodeChannelHandler(server).serve_channel}
