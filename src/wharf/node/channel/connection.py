"""Keeps the node channel open: connects to any server that replies, and again after each disconnect."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import CLOSE_INTERNAL_ERROR, HandshakeRefused, SocketRelay, WebSocket
from wharf.contract.client.transport import Unreachable
from wharf.node.channel.endpoint import ChannelEndpoint, RequestHandler
from wharf.node.credentials import NodeCredentials
from wharf.world import World
from wharf.world.backoff import Backoff

log = logging.getLogger(__name__)

SECRET_HEADER: Final = b"x-cluster-node-secret"
"""The header with which the node authenticates itself."""
# Short delays: after a network failure, a node must be reachable again within five seconds.
MIN_RETRY_DELAY_S: Final = 0.25
MAX_RETRY_DELAY_S: Final = 3.0


class ChannelConnection:
    """The node's websocket to one of the servers, opened again whenever it is closed.

    `next_server` returns a relay to another server each time it is called.
    """

    def __init__(
        self,
        world: World,
        request_handler: RequestHandler,
        identity: NodeCredentials,
        next_server: Callable[[], SocketRelay],
    ) -> None:
        self._world = world
        self._request_handler = request_handler
        self._next_server = next_server
        target = f"/v1/node/{identity.id}/channel"
        self._handshake = RelayRequest("GET", target.encode(), [(SECRET_HEADER, identity.secret_id.encode())])
        self.is_open = asyncio.Event()

    async def run(self) -> None:
        """Connect to a server, handle its requests, and reconnect with growing delays. Runs until canceled."""
        backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        while True:
            try:
                async with self._next_server().open_socket(self._handshake) as socket:
                    log.info("node channel is open")
                    backoff.reset()
                    self.is_open.set()
                    await self._handle_messages(socket)
            except (Unreachable, HandshakeRefused) as error:
                log.info("failed to open node channel error=%s", error)
            finally:
                self.is_open.clear()
            await asyncio.sleep(backoff.next_delay_s())

    async def _handle_messages(self, socket: WebSocket) -> None:
        """Handle the messages of one connection until it is closed; an undecodable message closes it."""
        endpoint = ChannelEndpoint(self._world, self._request_handler, socket.send)
        try:
            while (message := await socket.receive()) is not None:
                endpoint.receive_message(message.encode() if isinstance(message, str) else message)
        except msgspec.MsgspecError as error:
            log.warning("closing node channel: undecodable message error=%s", error)
            await socket.close(CLOSE_INTERNAL_ERROR)
        finally:
            await endpoint.close()
