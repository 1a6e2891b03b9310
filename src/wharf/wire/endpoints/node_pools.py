"""Endpoints of node pools."""

from typing import Final

from wharf.wire.endpoints.endpoint import Endpoint

ROWS: Final[tuple[Endpoint, ...]] = ()
