"""Endpoints for those who run the cluster."""

from typing import Final

import msgspec

from wharf.api.answers import Act, Done, Reading
from wharf.api.health import health_of
from wharf.api.request import Request
from wharf.server.server import Server
from wharf.wire import shapes

READS: Final[dict[str, Reading]] = {}


class Operator:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def state(self, _request: Request) -> Done:
        replica = self._server.replica
        health = await health_of(self._server.engine)
        sizes = {name: replica.count(table) for name, table in replica.tables.items()}
        return Done(shapes.StateSizes(index=replica.index, tables=sizes, engine=msgspec.structs.asdict(health)))


def acts_of(server: Server) -> dict[str, Act]:
    return {"operator.state": Operator(server).state}
