"""Lines of the event stream."""

from typing import Any

from wharf.model.record import Record


class EventShown(Record):
    """One thing that happened. The payload holds the record under the name of its kind."""

    topic: str
    type: str
    key: str
    namespace: str = ""
    filter_keys: tuple[str, ...] | None = None
    index: int
    payload: dict[str, Any]


class EventLine(Record):
    """What happened at one index, or a part of it. A line without anything says that the stream is alive."""

    index: int
    events: tuple[EventShown, ...]
