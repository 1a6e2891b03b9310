"""Endpoints of volumes of hosts."""

from typing import Final

from wharf.wire.endpoints.endpoint import Endpoint

ROWS: Final[tuple[Endpoint, ...]] = ()
