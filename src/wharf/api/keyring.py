"""Endpoints of the keys that secrets are sealed with."""

from typing import Final

from wharf.api.answers import Act, Reading
from wharf.server.server import Server

READS: Final[dict[str, Reading]] = {}


def acts_of(_server: Server) -> dict[str, Act]:
    return {}
