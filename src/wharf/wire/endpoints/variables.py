"""Endpoints of variables and their locks."""

from typing import Final

from wharf.wire.endpoints.endpoint import Endpoint

ROWS: Final[tuple[Endpoint, ...]] = ()
