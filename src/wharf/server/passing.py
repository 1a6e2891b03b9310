"""Ways to other servers for whole requests: to those of other regions, and to members of our own.

A request makes one hop between regions and one within a region, and says so in a header: two servers whose
configurations name each other pass nothing back and forth.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from wharf.client.exchange import Unreachable
from wharf.client.passage import Incoming, Outgoing, Passage
from wharf.client.sockets import Socket, SocketPassage
from wharf.model.refusal import Code, Refusal, unknown

HOPS_HEADER: Final = b"x-cluster-hops"
BETWEEN_REGIONS: Final = b"region"
WITHIN_REGION: Final = b"member"
WITHIN_MEMBER: Final = b"process"
SAFE_METHODS: Final = frozenset(("GET", "HEAD"))


class Arrived:
    """A reply whose first bytes are here. Read its parts, and close it, also where it was not read to its end."""

    def __init__(self, incoming: Incoming, held: AsyncExitStack) -> None:
        self.status = incoming.status
        self.headers = incoming.headers
        self._parts = incoming.parts
        self._held = held

    def __aiter__(self) -> "Arrived":
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    async def aclose(self) -> None:
        await self._held.aclose()


class Passing:
    """`regions`: the addresses of the servers of other regions, by the region's name."""

    def __init__(
        self,
        passage_to: Callable[[str], Passage],
        *,
        regions: Mapping[str, Sequence[str]] | None = None,
        sockets_to: Callable[[str], SocketPassage] | None = None,
    ) -> None:
        """`sockets_to`: the way for websockets; without it none is passed on."""
        self._passage_to = passage_to
        self._sockets_to = sockets_to
        self._regions = {name: list(addresses) for name, addresses in (regions or {}).items()}
        self._passages: dict[str, Passage] = {}

    @property
    def regions(self) -> Iterable[str]:
        """Those that a request may be passed on to."""
        return self._regions.keys()

    async def to_region(self, region: str, outgoing: Outgoing) -> Arrived:
        """Raises `Refusal`: UNKNOWN for a region that is not listed, UNAVAILABLE when none of its servers answers."""
        if region not in self._regions:
            raise no_path_to_region()
        outgoing = with_hop(outgoing, BETWEEN_REGIONS, otherwise=no_path_to_region())
        addresses = self._regions[region]
        silent: list[str] = []
        for address in list(addresses):
            try:
                return await self._begin(address, outgoing)
            except Unreachable as error:
                if error.sent and outgoing.method not in SAFE_METHODS:
                    raise _undecided(error) from error
                silent.append(str(error))
                # The next request begins with another; this one would be waited for each time.
                addresses.remove(address)
                addresses.append(address)
        raise Refusal(
            Code.UNAVAILABLE, f"no server of region {region} answers: {'; '.join(silent) or 'none is listed'}"
        )

    async def to_member(self, address: str, outgoing: Outgoing, *, hop: bytes = WITHIN_REGION) -> Arrived:
        """To a server of our own region, or (the hop says so) to another process of this one. Raises `Refusal`."""
        outgoing = with_hop(outgoing, hop, otherwise=_looping())
        try:
            return await self._begin(address, outgoing)
        except Unreachable as error:
            if error.sent and outgoing.method not in SAFE_METHODS:
                raise _undecided(error) from error
            raise Refusal(Code.UNAVAILABLE, str(error)) from error

    @asynccontextmanager
    async def socket_to_region(
        self, region: str, outgoing: Outgoing, *, subprotocols: Sequence[str] = ()
    ) -> AsyncIterator[Socket]:
        """An open websocket to the first server of the region that answers. Raises `Refusal` as `to_region` does, and
        SocketRefused.
        """
        if region not in self._regions:
            raise no_path_to_region()
        outgoing = with_hop(outgoing, BETWEEN_REGIONS, otherwise=no_path_to_region())
        async with AsyncExitStack() as held:
            yield await self._first_socket(region, outgoing, subprotocols, held)

    async def _first_socket(
        self, region: str, outgoing: Outgoing, subprotocols: Sequence[str], held: AsyncExitStack
    ) -> Socket:
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
            Code.UNAVAILABLE, f"no server of region {region} answers: {'; '.join(silent) or 'none is listed'}"
        )

    @asynccontextmanager
    async def socket_to_member(
        self, address: str, outgoing: Outgoing, *, subprotocols: Sequence[str] = (), hop: bytes = WITHIN_REGION
    ) -> AsyncIterator[Socket]:
        """An open websocket to a server of our own region, or to another process. Raises `Refusal` and SocketRefused."""
        outgoing = with_hop(outgoing, hop, otherwise=_looping())
        async with AsyncExitStack() as held:
            try:
                socket = await held.enter_async_context(self._socket(address, outgoing, subprotocols))
            except Unreachable as error:
                raise Refusal(Code.UNAVAILABLE, str(error)) from error
            yield socket

    def _socket(
        self, address: str, outgoing: Outgoing, subprotocols: Sequence[str]
    ) -> AbstractAsyncContextManager[Socket]:
        if self._sockets_to is None:
            raise Refusal(Code.UNAVAILABLE, "this server passes no websockets on")
        return self._sockets_to(address).open_socket(outgoing, subprotocols=subprotocols)

    async def _begin(self, address: str, outgoing: Outgoing) -> Arrived:
        passage = self._passages.get(address)
        if passage is None:
            passage = self._passages[address] = self._passage_to(address)
        stack = AsyncExitStack()
        return Arrived(await stack.enter_async_context(passage.open(outgoing)), stack)

    async def close(self) -> None:
        for passage in self._passages.values():
            await passage.close()


def with_hop(outgoing: Outgoing, hop: bytes, *, otherwise: Refusal) -> Outgoing:
    """The request with this hop among those that it made. Raises `otherwise` when it made it before."""
    made = [
        value.strip() for name, line in outgoing.headers if name.lower() == HOPS_HEADER for value in line.split(b",")
    ]
    if hop in made:
        raise otherwise
    others = [(name, value) for name, value in outgoing.headers if name.lower() != HOPS_HEADER]
    return msgspec.structs.replace(outgoing, headers=[*others, (HOPS_HEADER, b", ".join([*made, hop]))])


def no_path_to_region() -> Refusal:
    return unknown("No path to region")


def _looping() -> Refusal:
    return Refusal(Code.UNAVAILABLE, "the request was passed on once already, to a server that it was not for")


def _undecided(error: Unreachable) -> Refusal:
    return Refusal(Code.UNDECIDED, f"{error}; read before you ask again")
