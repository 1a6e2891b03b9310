"""Endpoints that make the cluster tidy up at once. They say nothing but that it is done."""

from typing import Final

from wharf.api.answers import Act, Done, Reading
from wharf.api.request import Request
from wharf.server.answering.system import COLLECT, RECONCILE, Tidying
from wharf.server.server import Server

READS: Final[dict[str, Reading]] = {}


class Tidy:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def collect(self, request: Request) -> Done:
        await self._server.leader.ask(COLLECT, Tidying(request.id))
        return Done()

    async def reconcile(self, request: Request) -> Done:
        await self._server.leader.ask(RECONCILE, Tidying(request.id))
        return Done()


def acts_of(server: Server) -> dict[str, Act]:
    tidy = Tidy(server)
    return {"system.gc": tidy.collect, "system.reconcile": tidy.reconcile}
