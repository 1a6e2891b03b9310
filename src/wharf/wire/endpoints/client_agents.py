"""Endpoints that the node which runs a task answers: files, logs, commands, figures."""

from typing import Final

from wharf.wire.endpoints.endpoint import Endpoint

ROWS: Final[tuple[Endpoint, ...]] = ()
