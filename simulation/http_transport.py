"""The transport of the real API client over the simulated network."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlencode

from simulation import network
from simulation.network import Network, OutcomeLost, RequestNotSent
from simulation.process import Process
from wharf.contract.client import ClientReply, ClientRequest, Unreachable


class SimulatedTransport:
    """A client transport. It calls `choose_address` before each request, so the client can change its server."""

    def __init__(
        self, network: Network, source: Process, choose_address: Callable[[], str], *, can_repeat: bool = True
    ) -> None:
        self._network = network
        self._source = source
        self._choose_address = choose_address
        self._can_repeat = can_repeat

    async def send(self, request: ClientRequest) -> ClientReply:
        async with translate_errors(request.timeout_s):
            reply = await self._send(request)
            body = await reply.read_body()
        return ClientReply(reply.status, {name.lower(): value for name, value in reply.headers}, body)

    async def open(self, request: ClientRequest) -> "SimulatedStreamedReply":
        async with translate_errors(request.timeout_s):
            return SimulatedStreamedReply(await self._send(request), request.timeout_s)

    async def _send(self, request: ClientRequest) -> network.SimulatedReply:
        target = f"{request.path}?{urlencode(request.query)}" if request.query else request.path
        simulated_request = network.SimulatedRequest(
            request.method, target, list(request.headers.items()), request.body
        )
        return await self._network.exchange(
            self._source, self._choose_address(), simulated_request, can_repeat=self._can_repeat
        )

    async def close(self) -> None:
        return


class SimulatedStreamedReply:
    """A reply whose body is read in chunks. Each chunk may take `timeout_s`."""

    def __init__(self, reply: network.SimulatedReply, timeout_s: float) -> None:
        self.status = reply.status
        self.headers = {name.lower(): value for name, value in reply.headers}
        self._reply = reply
        self._parts = reply.iterate_parts()
        self._timeout_s = timeout_s

    async def read_chunk(self) -> bytes:
        async with translate_errors(self._timeout_s):
            return await anext(self._parts, b"")

    async def close(self) -> None:
        self._reply.close()


@asynccontextmanager
async def translate_errors(timeout_s: float) -> AsyncIterator[None]:
    """Raise network errors and timeouts of the block as `Unreachable`."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except RequestNotSent as error:
        raise Unreachable(str(error), is_sent=False) from error
    except (OutcomeLost, TimeoutError) as error:
        raise Unreachable(str(error) or f"no reply within {timeout_s} s", is_sent=True) from error
