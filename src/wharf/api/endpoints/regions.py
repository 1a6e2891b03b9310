"""Endpoints of regions."""

from typing import Final

from wharf.api.answers import Act, Done, Reading
from wharf.api.request import Request
from wharf.server.server import Server

READS: Final[dict[str, Reading]] = {}


def region_names(server: Server) -> list[str]:
    """Our own, and those that requests are passed on to."""
    return sorted({server.identity.region, *server.passing.regions})


def acts_of(server: Server) -> dict[str, Act]:
    async def regions(_request: Request) -> Done:
        return Done(region_names(server))

    return {"region.list": regions}
