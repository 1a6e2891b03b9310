"""What members ask of each other's brains, as msgpack. They prove who they are by the door's secret."""

from typing import Final

from wharf.model import need
from wharf.wire.endpoints.endpoint import Endpoint, Kind

ROWS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="server.ask", method="PUT", path="/v1/server/ask/{subject}", kind=Kind.LOCAL, need=need.NOTHING,
        summary="A question of another member for this server's brain.",
    ),
)  # fmt: skip
