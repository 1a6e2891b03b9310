"""Forwards whole requests and websockets to other regions, other members and other processes.

A request makes at most one hop between regions and one within a region. A header records the hops, so that two
servers that name each other in their configuration cannot forward a request in a loop.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

import msgspec

from wharf.cluster.server.region_replies import InvalidRegionReply, select_region_headers
from wharf.contract.client.liveness import PROBE_PATH, LivenessProbe, end_if_silent
from wharf.contract.client.relay.port import RawHeaders, Relay, RelayReply, RelayRequest
from wharf.contract.client.relay.websockets import HandshakeRefused, SocketRelay, WebSocket
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found
from wharf.contract.wire.credentials import RELAY_SECRET_HEADER
from wharf.world import World
from wharf.world.failover import FailoverAddresses

T = TypeVar("T")

HOPS_HEADER: Final = b"x-cluster-hops"
REGION_HOP: Final = b"region"
MEMBER_HOP: Final = b"member"
PROCESS_HOP: Final = b"process"
SAFE_METHODS: Final = frozenset(("GET", "HEAD"))
MAX_REPLY_WAIT_S: Final = 900.0
"""Seconds for the head of a forwarded reply. Longer than any blocking query; probes find a frozen server much earlier."""


class RelayedReply:
    """The reply to a forwarded request, once its headers have arrived. Iterate over it to read its parts.

    It must always be closed, even if it is not read to its end.
    """

    def __init__(
        self,
        incoming: RelayReply,
        exit_stack: AsyncExitStack,
        end_if_silent: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        """`end_if_silent`: a context manager that raises `Unreachable` when the server is silent."""
        self._end_if_silent = end_if_silent
        self.status = incoming.status
        self.headers: RawHeaders = incoming.headers
        self._parts = incoming.parts
        self._exit_stack = exit_stack

    def __aiter__(self) -> "RelayedReply":
        return self

    async def __anext__(self) -> bytes:
        async with self._end_if_silent():
            return await anext(self._parts)

    async def aclose(self) -> None:
        await self._exit_stack.aclose()


class RequestRelay:
    """Forwards requests and websockets to other servers. `regions`: the server addresses of each other region.

    A server that answers neither a forwarded request nor a probe within 3 s counts as unreachable.
    """

    def __init__(
        self,
        world: World,
        transport_to: Callable[[str], Relay],
        *,
        regions: Mapping[str, Sequence[str]] | None = None,
        sockets_to: Callable[[str], SocketRelay] | None = None,
        find_secret: Callable[[str], str] | None = None,
    ) -> None:
        """`sockets_to`: opens websockets to an address; without it, websockets are refused. `find_secret` returns the secret
        of the server of this region at an address, or "", so that requests to it do not count for this server's address.
        """
        self._world = world
        self._transport_to = transport_to
        self._sockets_to = sockets_to
        self._find_secret = find_secret
        self._regions = {name: tuple(addresses) for name, addresses in (regions or {}).items()}
        self._servers = {
            name: FailoverAddresses(world, len(addresses)) for name, addresses in self._regions.items() if addresses
        }
        """By region, which of its servers failed."""
        self._relays: dict[str, Relay] = {}
        self._socket_probes: dict[tuple[str, bytes], LivenessProbe] = {}
        """By address and hop header, the probes of servers with open websockets."""

    @property
    def region_names(self) -> Iterable[str]:
        """The names of the regions that requests can be forwarded to."""
        return self._regions.keys()

    async def send_to_region(self, region: str, outgoing: RelayRequest) -> RelayedReply:
        """Forward a request to the first server of the region that answers.

        Only known headers of the reply are relayed. Raises `Refusal`: NOT_FOUND for an unknown region, UNAVAILABLE if
        no server answers, OUTCOME_UNKNOWN if a write was sent and its reply was lost, and `InvalidRegionReply`.
        """
        if region not in self._regions:
            raise build_no_region_path()
        outgoing = add_hop(outgoing, REGION_HOP, loop_error=build_no_region_path())

        async def open_reply(address: str) -> RelayedReply:
            try:
                return await self._open_reply(address, outgoing)
            except Unreachable as error:
                if error.is_sent and outgoing.method not in SAFE_METHODS:
                    raise _build_unknown_outcome(error) from error
                raise

        reply = await self._try_addresses(region, open_reply)
        is_write = outgoing.method not in SAFE_METHODS
        try:
            reply.headers = select_region_headers(region, reply.status, reply.headers, is_write=is_write)
        except InvalidRegionReply:
            await reply.aclose()
            raise
        return reply

    async def _try_addresses(self, region: str, open_at: Callable[[str], Awaitable[T]]) -> T:
        """Return the result of `open_at` for the first address of the region that answers, the last good one first.

        Raises `Refusal` with UNAVAILABLE if no address answers.
        """
        failures: list[str] = []
        servers = self._servers.get(region)
        budget = servers.start_call(MAX_REPLY_WAIT_S) if servers is not None else None
        while servers is not None and budget is not None and (budget.has_untried or not failures):
            attempt = budget.next_attempt()
            try:
                result = await open_at(self._regions[region][attempt.position])
            except Unreachable as error:
                failures.append(str(error))
                servers.on_silence(attempt)
            else:
                servers.on_reply(attempt.position)
                return result
        raise Refusal(
            RefusalCode.UNAVAILABLE,
            f"no server of region {region} replies: {'; '.join(failures) or 'no address is configured'}",
        )

    async def send_to_member(self, address: str, outgoing: RelayRequest, *, hop: bytes = MEMBER_HOP) -> RelayedReply:
        """Forward a request to the server of this region, or the process of this server, at this address.

        `hop`: which of both, for the header that prevents loops. Raises `Refusal`.
        """
        outgoing = self._add_secret(address, hop, add_hop(outgoing, hop, loop_error=_build_loop_refusal()))
        try:
            return await self._open_reply(address, outgoing)
        except Unreachable as error:
            if error.is_sent and outgoing.method not in SAFE_METHODS:
                raise _build_unknown_outcome(error) from error
            raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error

    @asynccontextmanager
    async def open_socket_to_region(
        self, region: str, outgoing: RelayRequest, *, subprotocols: Sequence[str] = ()
    ) -> AsyncIterator[WebSocket]:
        """Open a websocket to the first server of the region that answers; it is closed at the end of the context.

        Raises `Refusal` (NOT_FOUND for an unknown region, UNAVAILABLE if no server answers), `HandshakeRefused`, and
        `Unreachable` if the server answers no probe while the websocket is open.
        """
        if region not in self._regions:
            raise build_no_region_path()
        outgoing = add_hop(outgoing, REGION_HOP, loop_error=build_no_region_path())
        async with AsyncExitStack() as exit_stack:

            async def open_socket(address: str) -> tuple[str, WebSocket]:
                # A slow handshake must not be repeated, because it may start a command; only a frozen server is left.
                async with self._end_if_silent(address, outgoing):
                    opening = self._open_socket(address, outgoing, subprotocols)
                    try:
                        return address, await exit_stack.enter_async_context(opening)
                    except HandshakeRefused as error:
                        headers = select_region_headers(region, error.status, error.headers, is_write=False)
                        raise HandshakeRefused(error.status, headers, error.body) from error

            address, socket = await self._try_addresses(region, open_socket)
            async with self._drop_if_silent(address, outgoing, socket):
                yield socket

    @asynccontextmanager
    async def open_socket_to_member(
        self, address: str, outgoing: RelayRequest, *, subprotocols: Sequence[str] = (), hop: bytes = MEMBER_HOP
    ) -> AsyncIterator[WebSocket]:
        """Open a websocket to a server of this region or to another process of this server.

        It is closed at the end of the context. Raises `Refusal`, `HandshakeRefused`, and `Unreachable` if the server answers
        no probe while the websocket is open.
        """
        outgoing = self._add_secret(address, hop, add_hop(outgoing, hop, loop_error=_build_loop_refusal()))
        async with AsyncExitStack() as exit_stack:
            try:
                async with self._end_if_silent(address, outgoing):
                    socket = await exit_stack.enter_async_context(self._open_socket(address, outgoing, subprotocols))
            except Unreachable as error:
                raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error
            async with self._drop_if_silent(address, outgoing, socket):
                yield socket

    @asynccontextmanager
    async def _drop_if_silent(self, address: str, outgoing: RelayRequest, socket: WebSocket) -> AsyncIterator[None]:
        """Drop the open websocket and raise `Unreachable` when its server does not answer a probe.

        The silence of the websocket proves nothing: its server does not read it while a program does not read its input.
        """
        hops = [(name, value) for name, value in outgoing.headers if name == HOPS_HEADER]
        key = address, b",".join(value for _, value in hops)
        probe = self._socket_probes.get(key)
        if probe is None:
            probe = LivenessProbe(self._world, lambda: self._send_probe(address, hops), address)
            self._socket_probes[key] = probe
        try:
            async with probe.end_if_silent():
                yield
        except Unreachable:
            socket.abort()
            raise

    def _open_socket(
        self, address: str, outgoing: RelayRequest, subprotocols: Sequence[str]
    ) -> AbstractAsyncContextManager[WebSocket]:
        """Return the context of a websocket to the address. Raises `Refusal` if this server forwards no websockets."""
        if self._sockets_to is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "this server does not forward websockets")
        return self._sockets_to(address).open_socket(outgoing, subprotocols=subprotocols)

    async def _open_reply(self, address: str, outgoing: RelayRequest) -> RelayedReply:
        """Send the request to the address and return the reply once its headers have arrived.

        Raises `Unreachable`, also when the server answers neither the request nor a probe.
        """
        stack = AsyncExitStack()
        try:
            async with asyncio.timeout(MAX_REPLY_WAIT_S), self._end_if_silent(address, outgoing):
                incoming = await stack.enter_async_context(self._relay_to(address).open(outgoing))
        except BaseException as error:
            await stack.aclose()  # The reply may have begun when the wait for it ended.
            if not isinstance(error, TimeoutError):
                raise
            raise Unreachable(f"no reply from {address} within {MAX_REPLY_WAIT_S:g} s", is_sent=True) from error
        return RelayedReply(incoming, stack, lambda: self._end_if_silent(address, outgoing))

    def _end_if_silent(self, address: str, outgoing: RelayRequest) -> AbstractAsyncContextManager[None]:
        """Return a context manager that raises `Unreachable` when the address does not answer a probe.

        Probes have the hop header of the forwarded request.
        """
        hops = [(name, value) for name, value in outgoing.headers if name == HOPS_HEADER]

        return end_if_silent(self._world, lambda: self._send_probe(address, hops), address)

    async def _send_probe(self, address: str, hops: RawHeaders) -> None:
        """Send a probe. Raises `Unreachable` without a reply; any reply shows that the server is alive."""
        last_hop = hops[-1][1].rpartition(b", ")[2] if hops else b""
        probe = self._add_secret(address, last_hop, RelayRequest("GET", PROBE_PATH.encode(), hops))
        async with self._relay_to(address).open(probe):
            pass

    def _add_secret(self, address: str, hop: bytes, outgoing: RelayRequest) -> RelayRequest:
        """Return a request to a server of this region with the secret of that server, if it is known; others unchanged."""
        secret = self._find_secret(address) if hop == MEMBER_HOP and self._find_secret is not None else ""
        if not secret:
            return outgoing
        return msgspec.structs.replace(outgoing, headers=[*outgoing.headers, (RELAY_SECRET_HEADER, secret.encode())])

    def _relay_to(self, address: str) -> Relay:
        """Return the relay to the address, whose connections stay open. Raises `Unreachable` for an invalid address."""
        relay = self._relays.get(address)
        if relay is None:
            relay = self._relays[address] = self._transport_to(address)
        return relay

    async def close(self) -> None:
        """Close all connections."""
        for relay in self._relays.values():
            await relay.close()


def add_hop(outgoing: RelayRequest, hop: bytes, *, loop_error: Refusal) -> RelayRequest:
    """Return the request with `hop` added to its hop header. Raises `loop_error` if the header already has it."""
    hops = [
        value.strip() for name, line in outgoing.headers if name.lower() == HOPS_HEADER for value in line.split(b",")
    ]
    if hop in hops:
        raise loop_error
    other_headers = [(name, value) for name, value in outgoing.headers if name.lower() != HOPS_HEADER]
    return msgspec.structs.replace(outgoing, headers=[*other_headers, (HOPS_HEADER, b", ".join([*hops, hop]))])


def build_no_region_path() -> Refusal:
    return not_found("No path to region")


def _build_loop_refusal() -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, "the request was already forwarded once and reached the wrong server")


def _build_unknown_outcome(error: Unreachable) -> Refusal:
    return Refusal(RefusalCode.OUTCOME_UNKNOWN, f"{error}; check the current state before you retry")
