"""Keeps the node channel open: connects to any server that replies, and again after each disconnect."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from wharf.contract.client.errors import parse_retry_after_s
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import (
    CLOSE_INTERNAL_ERROR,
    CLOSE_POLICY_VIOLATION,
    HandshakeRefused,
    SocketRelay,
    WebSocket,
)
from wharf.contract.client.transport import Unreachable
from wharf.contract.wire.credentials import NODE_SECRET_HEADER
from wharf.node.channel.endpoint import ChannelEndpoint, RequestHandler, TooManyRequests
from wharf.node.credentials import NodeCredentials
from wharf.world import World
from wharf.world.backoff import Backoff
from wharf.world.failover import CallBudget, FailoverAddresses

log = logging.getLogger(__name__)

# Short delays: after a network failure, a node of a small fleet must be reachable again within five seconds.
MIN_RETRY_DELAY_S: Final = 0.25
MAX_RETRY_DELAY_S: Final = 3.0
STABLE_AFTER_S: Final = 10.0
"""A channel that closes earlier counts as a failure. Otherwise two agents of the same node would replace each other's channel
several times a second."""
OPEN_TIMEOUT_S: Final = 10.0
"""Seconds for opening the channel, divided among the servers. Protects the node from servers that never reply."""


class ChannelConnection:
    """The node's websocket to one of the servers, opened again whenever it is closed.

    `servers` are relays to the servers, in the order of `addresses`, which the node's other connections share: as soon as
    a heartbeat misses its reply, the channel leaves the silent server too.
    """

    def __init__(
        self,
        world: World,
        request_handler: RequestHandler,
        identity: NodeCredentials,
        servers: Sequence[SocketRelay],
        addresses: FailoverAddresses,
    ) -> None:
        self._world = world
        self._request_handler = request_handler
        self._servers = servers
        self._addresses = addresses
        target = f"/v1/node/{identity.id}/channel"
        self._handshake = RelayRequest("GET", target.encode(), [(NODE_SECRET_HEADER, identity.secret_id.encode())])
        self.is_open = asyncio.Event()

    async def run(self) -> None:
        """Connect to a server, handle its requests, and reconnect with growing delays. Runs until canceled.

        The nodes of a large fleet spread their connections over a longer time (`FailoverAddresses.return_spread_s`).
        """
        backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        budget = self._addresses.start_call(OPEN_TIMEOUT_S)
        while True:
            requested_s: float | None = None
            if not budget.has_untried:
                budget = self._addresses.start_call(OPEN_TIMEOUT_S)
            try:
                async with self._open_socket(budget) as (socket, position):
                    log.info("node channel is open")
                    opened_s = self._world.monotonic_s()
                    budget = self._addresses.start_call(OPEN_TIMEOUT_S)
                    self.is_open.set()
                    await self._handle_until_silent(socket, position)
                if self._world.monotonic_s() - opened_s >= STABLE_AFTER_S:
                    backoff.reset()
            except (Unreachable, HandshakeRefused) as error:
                log.info("failed to open node channel error=%s", error)
                if isinstance(error, HandshakeRefused):
                    requested_s = parse_retry_after_s(dict(error.headers).get(b"retry-after", b"").decode("latin-1"))
            finally:
                self.is_open.clear()
            spread_s = self._addresses.return_spread_s
            await asyncio.sleep(max(backoff.next_delay_s(requested_s), self._world.random.uniform(0.0, spread_s)))

    @asynccontextmanager
    async def _open_socket(self, budget: CallBudget) -> AsyncIterator[tuple[WebSocket, int]]:
        """Open a websocket to the next server of the budget; as a context manager, yield it with the server's position.

        Raises `Unreachable` if the server does not reply in its part of the time, and `HandshakeRefused`.
        """
        attempt = budget.next_attempt()
        opening = self._servers[attempt.position].open_socket(self._handshake)
        try:
            async with asyncio.timeout(attempt.timeout_s):
                socket = await opening.__aenter__()
        except (TimeoutError, Unreachable) as error:
            self._addresses.on_silence(attempt)
            if isinstance(error, Unreachable):
                raise
            raise Unreachable(f"no handshake within {attempt.timeout_s:g} s", is_sent=True) from error
        self._addresses.on_reply(attempt.position)
        try:
            yield socket, attempt.position
        finally:
            await opening.__aexit__(None, None, None)

    async def _handle_until_silent(self, socket: WebSocket, position: int) -> None:
        """Handle the messages of one connection until it is closed, or until its server turns out to be silent."""
        try:
            async with self._addresses.end_on_silence(position):
                await self._handle_messages(socket)
        except TimeoutError:
            log.info("closing node channel: its server does not reply to other requests")
            socket.abort()

    async def _handle_messages(self, socket: WebSocket) -> None:
        """Handle the messages of one connection until it is closed; an undecodable message closes it."""
        endpoint = ChannelEndpoint(self._world, self._request_handler, socket.send)
        try:
            while (message := await socket.receive()) is not None:
                endpoint.receive_message(message.encode() if isinstance(message, str) else message)
        except msgspec.MsgspecError as error:
            log.warning("closing node channel: undecodable message error=%s", error)
            await socket.close(CLOSE_INTERNAL_ERROR)
        except TooManyRequests as error:
            log.warning("closing node channel: too many requests error=%s", error)
            await socket.close(CLOSE_POLICY_VIOLATION)
        finally:
            if socket.close_reason:
                log.info("server closed the node channel reason=%s", socket.close_reason)
            await endpoint.close()
