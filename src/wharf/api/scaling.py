"""Endpoints of scaling policies."""

from typing import Final

from wharf.api.answers import Act, Reading
from wharf.server.server import Server

READS: Final[dict[str, Reading]] = {}


def acts_of(_server: Server) -> dict[str, Act]:
    return {}
