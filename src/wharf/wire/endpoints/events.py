"""The stream of what happens."""

from typing import Final

from wharf.model import need
from wharf.wire.endpoints.endpoint import Decides, Endpoint, tells, text, texts
from wharf.wire.event_shapes import EventLine

ROWS: Final[tuple[Endpoint, ...]] = (
    tells(
        "event.stream", "/v1/event/stream", need=need.ANY_TOKEN, decides=Decides.OBJECT,
        summary="Follow what happens, a line of JSON for each thing.", returns=EventLine,
        refuses=(501,),
        parameters=(
            text("index", "Begin at this index, as far back as is kept; 0 for everything that is kept."),
            texts("topic", "What to hear of: `Topic` or `Topic:key`, as often as wanted; everything where none is given."),
        ),
    ),
)  # fmt: skip
