"""Endpoints of tokens, policies, roles, auth methods and binding rules."""

from typing import Final

from wharf.wire.endpoints.endpoint import Endpoint

ROWS: Final[tuple[Endpoint, ...]] = ()
