"""Endpoints that make the cluster tidy up at once."""

from typing import Final

from wharf.wire.endpoints.endpoint import Endpoint

ROWS: Final[tuple[Endpoint, ...]] = ()
