"""Endpoints that are known and left out: each answers 501 with a sentence."""

from typing import Final

from wharf.wire.endpoints.endpoint import Endpoint

ROWS: Final[tuple[Endpoint, ...]] = ()
