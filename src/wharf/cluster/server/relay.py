"""Ways to other servers for whole requests: to those of other regions, and to members of our own.

A request makes one hop between regions and one within a region, and says so in a header: two servers whose
configurations name each other pass nothing back and forth.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from wharf.contract.client.relay.port import Relay, RelayReply, RelayRequest
from wharf.contract.client.relay.websockets import SocketRelay, WebSocket
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found

HOPS_HEADER: Final = b"x-cluster-hops"
REGION_HOP: Final = b"region"
MEMBER_HOP: Final = b"member"
PROCESS_HOP: Final = b"process"
SAFE_METHODS: Final = frozenset(("GET", "HEAD"))


class RelayedReply:
    """A reply whose first bytes are here. Read its parts, and close it, also where it was not read to its end."""

    def __init__(self, incoming: RelayReply, held: AsyncExitStack) -> None:
        self.status = incoming.status
        self.headers = incoming.headers
        self._parts = incoming.parts
        self._held = held

    def __aiter__(self) -> "RelayedReply":
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    async def aclose(self) -> None:
        await self._held.aclose()


class RequestRelay:
    """`regions`: the addresses of the servers of other regions, by the region's name."""

    def __init__(
        self,
        transport_to: Callable[[str], Relay],
        *,
        regions: Mapping[str, Sequence[str]] | None = None,
        sockets_to: Callable[[str], SocketRelay] | None = None,
    ) -> None:
        """`sockets_to`: the way for websockets; without it none is passed on."""
        self._passage_to = transport_to
        self._sockets_to = sockets_to
        self._regions = {name: list(addresses) for name, addresses in (regions or {}).items()}
        self._passages: dict[str, Relay] = {}

    @property
    def region_names(self) -> Iterable[str]:
        """Those that a request may be passed on to."""
        return self._regions.keys()

    async def send_to_region(self, region: str, outgoing: RelayRequest) -> RelayedReply:
        """Raises `Refusal`: UNKNOWN for a region that is not listed, UNAVAILABLE when none of its servers answers."""
        if region not in self._regions:
            raise build_no_region_path()
        outgoing = add_hop(outgoing, REGION_HOP, loop_error=build_no_region_path())
        addresses = self._regions[region]
        silent: list[str] = []
        for address in list(addresses):
            try:
                return await self._begin(address, outgoing)
            except Unreachable as error:
                if error.is_sent and outgoing.method not in SAFE_METHODS:
                    raise _undecided(error) from error
                silent.append(str(error))
                # The next request begins with another; this one would be waited for each time.
                addresses.remove(address)
                addresses.append(address)
        raise Refusal(
            RefusalCode.UNAVAILABLE, f"no server of region {region} answers: {'; '.join(silent) or 'none is listed'}"
        )

    async def send_to_member(self, address: str, outgoing: RelayRequest, *, hop: bytes = MEMBER_HOP) -> RelayedReply:
        """To a server of our own region, or (the hop says so) to another process of this one. Raises `Refusal`."""
        outgoing = add_hop(outgoing, hop, loop_error=_looping())
        try:
            return await self._begin(address, outgoing)
        except Unreachable as error:
            if error.is_sent and outgoing.method not in SAFE_METHODS:
                raise _undecided(error) from error
            raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error

    @asynccontextmanager
    async def open_socket_to_region(
        self, region: str, outgoing: RelayRequest, *, subprotocols: Sequence[str] = ()
    ) -> AsyncIterator[WebSocket]:
        """An open websocket to the first server of the region that answers. Raises `Refusal` as `to_region` does, and
        SocketRefused.
        """
        if region not in self._regions:
            raise build_no_region_path()
        outgoing = add_hop(outgoing, REGION_HOP, loop_error=build_no_region_path())
        async with AsyncExitStack() as held:
            yield await self._first_socket(region, outgoing, subprotocols, held)

    async def _first_socket(
        self, region: str, outgoing: RelayRequest, subprotocols: Sequence[str], held: AsyncExitStack
    ) -> WebSocket:
        addresses = self._regions[region]
        silent: list[str] = []
        for address in list(addresses):
            try:
                return await held.enter_async_context(self._socket(address, outgoing, subprotocols))
            except Unreachable as error:
                silent.append(str(error))
                addresses.remove(address)
                addresses.append(address)
        raise Refusal(
            RefusalCode.UNAVAILABLE, f"no server of region {region} answers: {'; '.join(silent) or 'none is listed'}"
        )

    @asynccontextmanager
    async def open_socket_to_member(
        self, address: str, outgoing: RelayRequest, *, subprotocols: Sequence[str] = (), hop: bytes = MEMBER_HOP
    ) -> AsyncIterator[WebSocket]:
        """An open websocket to a server of our own region, or to another process. Raises `Refusal` and SocketRefused."""
        outgoing = add_hop(outgoing, hop, loop_error=_looping())
        async with AsyncExitStack() as held:
            try:
                socket = await held.enter_async_context(self._socket(address, outgoing, subprotocols))
            except Unreachable as error:
                raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error
            yield socket

    def _socket(
        self, address: str, outgoing: RelayRequest, subprotocols: Sequence[str]
    ) -> AbstractAsyncContextManager[WebSocket]:
        if self._sockets_to is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "this server passes no websockets on")
        return self._sockets_to(address).open_socket(outgoing, subprotocols=subprotocols)

    async def _begin(self, address: str, outgoing: RelayRequest) -> RelayedReply:
        passage = self._passages.get(address)
        if passage is None:
            passage = self._passages[address] = self._passage_to(address)
        stack = AsyncExitStack()
        return RelayedReply(await stack.enter_async_context(passage.open(outgoing)), stack)

    async def close(self) -> None:
        for passage in self._passages.values():
            await passage.close()


def add_hop(outgoing: RelayRequest, hop: bytes, *, loop_error: Refusal) -> RelayRequest:
    """The request with this hop among those that it made. Raises `otherwise` when it made it before."""
    made = [
        value.strip() for name, line in outgoing.headers if name.lower() == HOPS_HEADER for value in line.split(b",")
    ]
    if hop in made:
        raise loop_error
    others = [(name, value) for name, value in outgoing.headers if name.lower() != HOPS_HEADER]
    return msgspec.structs.replace(outgoing, headers=[*others, (HOPS_HEADER, b", ".join([*made, hop]))])


def build_no_region_path() -> Refusal:
    return not_found("No path to region")


def _looping() -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, "the request was passed on once already, to a server that it was not for")


def _undecided(error: Unreachable) -> Refusal:
    return Refusal(RefusalCode.OUTCOME_UNKNOWN, f"{error}; read before you ask again")
