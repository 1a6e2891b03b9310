"""Lines of the event stream.

What an event says of its record: the record under the name of its kind, without anything that is secret.

The stream of what happens.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.record import Record
from wharf.contract.model.variables import make_variable_metadata
from wharf.contract.wire.endpoint import Endpoint, ScopeSource, define_local, text, text_list
from wharf.contract.wire.nodes.messages import build_node_view


class EventView(Record):
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
    events: tuple[EventView, ...]


PAYLOAD_NAME_BY_TOPIC: Final[Mapping[str, str]] = MappingProxyType(
    {"HostVolume": "Volume", "ACLAuthMethod": "AuthMethod"}
)
"""Where the payload's field is not called like its topic."""

SECRET_FIELDS: Final = frozenset({"secret_digest", "secret_sealed", "secrets_sealed", "sealed_with", "parameters"})
"""Of any record. `parameters` is what the plugin of a volume is told."""


def build_payload(topic: str, record: Any, *, is_deleted: bool) -> dict[str, Any]:
    shown = VIEW_BUILDER_BY_TOPIC.get(topic, _without_secrets)(record)
    payload = {PAYLOAD_NAME_BY_TOPIC.get(topic, topic): shown}
    if topic == "Job":
        payload["Deleted"] = is_deleted
    return payload


def _without_secrets(record: msgspec.Struct) -> object:
    """The record itself where it has nothing to hide."""
    shown = _shown_fields(type(record))
    return record if shown is None else {encoded: getattr(record, name) for name, encoded in shown}


@cache
def _shown_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...] | None:
    """Name and wire's name of what a record shows; None where that is all of it."""
    fields = msgspec.structs.fields(kind)
    if SECRET_FIELDS.isdisjoint(field.name for field in fields):
        return None
    return tuple((field.name, field.encode_name) for field in fields if field.name not in SECRET_FIELDS)


def _shown_variable(record: Any) -> object:
    """Never its items; nor the id of its lock, which is the right to write it."""
    shown = make_variable_metadata(record)
    if isinstance(shown.lock, msgspec.UnsetType):
        return shown
    return msgspec.structs.replace(shown, lock=msgspec.structs.replace(shown.lock, id=""))


def _shown_allocation(record: Any) -> object:
    """What tasks printed is for those who may read logs; a report's number is between servers and a node."""
    if not record.log_tails and not record.report_number:
        return record
    return msgspec.structs.replace(record, log_tails=b"", report_number=0)


VIEW_BUILDER_BY_TOPIC: Final[Mapping[str, Callable[[Any], object]]] = MappingProxyType({
    "Allocation": _shown_allocation,
    "Node": build_node_view,
    "Variable": _shown_variable,
})  # fmt: skip


ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "event.stream", "/v1/event/stream", need=permissions.ANY_TOKEN, scope_source=ScopeSource.OBJECT,
        summary="Follow what happens, a line of JSON for each thing.", reply_type=EventLine,
        refusal_statuses=(501,),
        parameters=(
            text("index", "Begin at this index, as far back as is kept; 0 for everything that is kept."),
            text_list("topic", "What to hear of: `Topic` or `Topic:key`, as often as wanted; everything where none is given."),
        ),
    ),
)  # fmt: skip
