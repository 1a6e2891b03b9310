"""The client's port, over the simulated network: what the real client sends passes through here and nothing else."""

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from simulation.network import Lost, Network, NotSent, Request
from simulation.process import Process
from wharf.client import Reply, Unreachable


class SimulatedExchange:
    """`address` is asked before each request: a client may turn to another server whenever it likes."""

    def __init__(
        self, network: Network, source: Process, address: Callable[[], str], *, may_repeat: bool = True
    ) -> None:
        self._network = network
        self._source = source
        self._address = address
        self._may_repeat = may_repeat

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
    ) -> Reply:
        target = f"{path}?{urlencode(query)}" if query else path
        request = Request(method, target, list(headers.items()), body)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._network.exchange(
                    self._source, self._address(), request, may_repeat=self._may_repeat
                )
                whole = await reply.body()
        except NotSent as error:
            raise Unreachable(str(error), sent=False) from error
        except (Lost, TimeoutError) as error:
            raise Unreachable(str(error) or f"no reply within {timeout_s} s", sent=True) from error
        return Reply(reply.status, {name.lower(): value for name, value in reply.headers}, whole)

    async def close(self) -> None:
        return
