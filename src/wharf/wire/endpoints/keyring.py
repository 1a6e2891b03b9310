"""Endpoints of the keys that secrets are sealed with."""

from typing import Final

from wharf.wire.endpoints.endpoint import Endpoint

ROWS: Final[tuple[Endpoint, ...]] = ()
