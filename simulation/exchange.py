"""The client's port, over the simulated network: what the real client sends passes through here and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlencode

from simulation import network
from simulation.network import Lost, Network, NotSent
from simulation.process import Process
from wharf.client import Reply, Request, Unreachable


class SimulatedExchange:
    """`address` is asked before each request: a client may turn to another server whenever it likes."""

    def __init__(
        self, network: Network, source: Process, address: Callable[[], str], *, may_repeat: bool = True
    ) -> None:
        self._network = network
        self._source = source
        self._address = address
        self._may_repeat = may_repeat

    async def send(self, request: Request) -> Reply:
        async with failing(request.timeout_s):
            reply = await self._begin(request)
            whole = await reply.body()
        return Reply(reply.status, {name.lower(): value for name, value in reply.headers}, whole)

    async def open(self, request: Request) -> "SimulatedOpened":
        async with failing(request.timeout_s):
            return SimulatedOpened(await self._begin(request), request.timeout_s)

    async def _begin(self, request: Request) -> network.Reply:
        target = f"{request.path}?{urlencode(request.query)}" if request.query else request.path
        carried = network.Request(request.method, target, list(request.headers.items()), request.body)
        return await self._network.exchange(self._source, self._address(), carried, may_repeat=self._may_repeat)

    async def close(self) -> None:
        return


class SimulatedOpened:
    """`within_s`: how long each piece may take."""

    def __init__(self, reply: network.Reply, within_s: float) -> None:
        self.status = reply.status
        self.headers = {name.lower(): value for name, value in reply.headers}
        self._reply = reply
        self._parts = reply.parts()
        self._within_s = within_s

    async def next(self) -> bytes:
        async with failing(self._within_s):
            return await anext(self._parts, b"")

    async def close(self) -> None:
        self._reply.close()


@asynccontextmanager
async def failing(within_s: float) -> AsyncIterator[None]:
    """Inside, what goes wrong on the way becomes what the client knows."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except NotSent as error:
        raise Unreachable(str(error), sent=False) from error
    except (Lost, TimeoutError) as error:
        raise Unreachable(str(error) or f"no reply within {within_s} s", sent=True) from error
