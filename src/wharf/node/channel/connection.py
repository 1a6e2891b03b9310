"""Keeps the node's channel open: to whichever server answers, and again when it breaks off."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import CLOSE_INTERNAL_ERROR, HandshakeRefused, SocketRelay, WebSocket
from wharf.contract.client.transport import Unreachable
from wharf.node.agent.servers.session import NodeCredentials
from wharf.node.channel.endpoint import ChannelEndpoint, RequestHandler
from wharf.world import World

log = logging.getLogger(__name__)

SECRET_HEADER: Final = b"x-cluster-node-secret"
# Within five seconds a node that was cut off is to be reached again.
MIN_RETRY_DELAY_S: Final = 0.25
MAX_RETRY_DELAY_S: Final = 3.0


class ChannelConnection:
    """`next_server` gives the way to a server, another one each time it is asked."""

    def __init__(
        self, world: World, answerer: RequestHandler, identity: NodeCredentials, next_server: Callable[[], SocketRelay]
    ) -> None:
        self._world = world
        self._answerer = answerer
        self._next_server = next_server
        target = f"/v1/node/{identity.id}/channel"
        self._opening = RelayRequest("GET", target.encode(), [(SECRET_HEADER, identity.secret_id.encode())])
        self.is_open = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        again_s = MIN_RETRY_DELAY_S
        while True:
            try:
                async with self._next_server().open_socket(self._opening) as socket:
                    log.info("the channel to a server is open")
                    again_s = MIN_RETRY_DELAY_S
                    self.is_open.set()
                    await self._answer_all(socket)
            except (Unreachable, HandshakeRefused) as error:
                log.info("no channel to a server yet", extra={"why": str(error)})
            finally:
                self.is_open.clear()
            # Not all at once: a server that comes back has many nodes.
            await asyncio.sleep(again_s * self._world.random.uniform(0.5, 1.0))
            again_s = min(again_s * 2, MAX_RETRY_DELAY_S)

    async def _answer_all(self, socket: WebSocket) -> None:
        end = ChannelEndpoint(self._world, self._answerer, socket.send)
        try:
            while (message := await socket.receive()) is not None:
                end.receive_message(message.encode() if isinstance(message, str) else message)
        except msgspec.MsgspecError as error:
            log.warning("a server says what cannot be read", extra={"why": str(error)})
            await socket.close(CLOSE_INTERNAL_ERROR)
        finally:
            await end.close()
