"""Several servers, used in turn: one for as long as it serves, the next when it does not.

A request that reached nobody goes to the next server at once. One that may have been heard is never sent again here: who
asks knows whether that does harm.
"""

from collections.abc import Sequence
from typing import Final

from wharf.client.exchange import Exchange, Opened, Reply, Request, Unreachable

UNABLE: Final = (500, 503)
"""A server that answers so has lost its leader or its log: another may have both."""


class ServersInTurn:
    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        assert exchanges, "a client needs a server"
        self._exchanges = exchanges
        self._current = 0

    async def send(self, request: Request) -> Reply:
        for _ in self._exchanges[1:]:
            try:
                return await self._send(request)
            except Unreachable as error:
                if error.sent:
                    raise
        return await self._send(request)

    async def _send(self, request: Request) -> Reply:
        used = self._current
        exchange = self._exchanges[used]
        try:
            reply = await exchange.send(request)
        except Unreachable:
            self._turn_from(used)
            raise
        if reply.status in UNABLE:
            self._turn_from(used)
        return reply

    async def open(self, request: Request) -> Opened:
        used = self._current
        try:
            return await self._exchanges[used].open(request)
        except Unreachable:
            self._turn_from(used)
            raise

    def _turn_from(self, used: int) -> None:
        """To the next one, unless somebody turned already."""
        if self._current == used:
            self._current = (used + 1) % len(self._exchanges)

    async def close(self) -> None:
        for exchange in self._exchanges:
            await exchange.close()
