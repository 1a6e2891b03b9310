"""The event stream: its endpoint, its lines, and the payload of an event without secrets."""

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
    """An event as the event stream sends it."""

    topic: str  # Such as `Job` or `Allocation`.
    type: str  # Such as `JobRegistered`.
    key: str  # The ID or the name of the record.
    namespace: str = ""
    filter_keys: tuple[str, ...] | None = None  # Related IDs by which clients can also select the event.
    index: int  # Log index of the change.
    payload: dict[str, Any]  # The record, under a name such as `Job`.


class EventLine(Record):
    """A line of the event stream: events of one log index. A line without events is a heartbeat."""

    index: int  # Log index of the change.
    events: tuple[EventView, ...]  # All events of the index, or a part of them.


class ChangedKeys(Record):
    """The records of a topic that changed, and the records that they belong to: a changed allocation names its job."""

    topic: str
    keys: tuple[str, ...] = ()
    all: bool = False  # Whether too many records changed to name them; then `keys` is empty.


class ChangeLine(Record):
    """A line of the stream of changes: what changed since the line before it. A line without changes is a heartbeat."""

    index: int = 0
    """Log index of the newest of these changes. The first line has no changes, and the index of the state from which on they are sent.
    0 in a heartbeat."""
    changes: tuple[ChangedKeys, ...] = ()


class RecentEvent(Record):
    """A change of a record, without the record."""

    topic: str  # Such as `Job` or `Allocation`.
    type: str  # Such as `JobRegistered`.
    key: str  # The ID or the name of the record.
    name: str = ""  # The name of the record, if it has one besides its ID.
    job_id: str = ""  # The job that the record belongs to.
    namespace: str = ""
    accessor_id: str = ""  # The token that made the change, if the record names it: for jobs and for drains of nodes.
    index: int = 0  # Log index of the change.
    time: int = 0  # When the record was changed, or when the server received the change, in ns since the epoch.


class RecentEvents(Record):
    """The last changes that the replying process has in memory, the newest first."""

    events: tuple[RecentEvent, ...] = ()
    oldest_index: int = 0  # Log index of the oldest change in memory, also if the caller may not see it; 0 if none.


MAX_RECENT_EVENTS: Final = 200
"""How many events a reply has at most. Limits its size."""

PAYLOAD_NAME_BY_TOPIC: Final[Mapping[str, str]] = MappingProxyType(
    {"HostVolume": "Volume", "ACLAuthMethod": "AuthMethod"}
)
"""The payload's field name, if it differs from the topic."""

SECRET_FIELDS: Final = frozenset({"secret_digest", "secret_sealed", "secrets_sealed", "sealed_with", "parameters"})
"""Fields that are removed from every record. `parameters` of a volume may hold secrets of its plugin."""


def build_payload(topic: str, record: Any, *, is_deleted: bool) -> dict[str, Any]:
    """Return the payload of an event: the record without secrets, under a name such as `Job`.

    An event about a job also has `Deleted`, with the value of `is_deleted`.
    """
    view = VIEW_BUILDER_BY_TOPIC.get(topic, _remove_secrets)(record)
    payload = {PAYLOAD_NAME_BY_TOPIC.get(topic, topic): view}
    if topic == "Job":
        payload["Deleted"] = is_deleted
    return payload


def _remove_secrets(record: msgspec.Struct) -> object:
    """Return a dict of the fields of a record that are not secret, by wire name.

    Returns the record itself if its type has no secret fields.
    """
    view = _list_visible_fields(type(record))
    return record if view is None else {encoded: getattr(record, name) for name, encoded in view}


@cache
def _list_visible_fields(record_type: type[msgspec.Struct]) -> tuple[tuple[str, str], ...] | None:
    """Return (attribute, wire name) of each field that is not secret, or `None` if the type has no secret fields."""
    fields = msgspec.structs.fields(record_type)
    if SECRET_FIELDS.isdisjoint(field.name for field in fields):
        return None
    return tuple((field.name, field.encode_name) for field in fields if field.name not in SECRET_FIELDS)


def _build_variable_view(record: Any) -> object:
    """Return the metadata of a variable, without the ID of its lock, because the ID grants the right to write."""
    view = make_variable_metadata(record)
    if isinstance(view.lock, msgspec.UnsetType):
        return view
    return msgspec.structs.replace(view, lock=msgspec.structs.replace(view.lock, id=""))


def _build_allocation_view(record: Any) -> object:
    """Return an allocation without its last log lines, which need another permission, and without internal fields."""
    if not record.log_tails and not record.report_number and not record.output_texts:
        return record
    return msgspec.structs.replace(record, log_tails=b"", report_number=0, output_texts=b"")


VIEW_BUILDER_BY_TOPIC: Final[Mapping[str, Callable[[Any], object]]] = MappingProxyType({
    "Allocation": _build_allocation_view,
    "Node": build_node_view,
    "Variable": _build_variable_view,
})  # fmt: skip


ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "event.stream", "/v1/event/stream", need=permissions.ANY_TOKEN, scope_source=ScopeSource.OBJECT,
        has_endless_reply=True,
        summary="Stream events, one line of JSON for each index.", reply_type=EventLine,
        refusal_statuses=(501,),
        parameters=(
            text("index", "Start at this index, if its events are still stored; 0 starts with the oldest stored event."),
            text_list("topic", "Events to receive: `Topic` or `Topic:key`; may be repeated. All events by default."),
        ),
    ),
    define_local(
        "event.recent", "/v1/event/recent", need=permissions.ANY_TOKEN, scope_source=ScopeSource.OBJECT,
        summary=f"List the last changes of records that the caller may see, at most {MAX_RECENT_EVENTS}, without the records.",
        reply_type=RecentEvents, refusal_statuses=(501,),
        parameters=(
            text_list("topic", "Topics to return: `Topic` or `Topic:key`; may be repeated. All topics by default."),
        ),
    ),
    define_local(
        "event.changes", "/v1/event/changes", need=permissions.ANY_TOKEN, scope_source=ScopeSource.OBJECT,
        has_endless_reply=True,
        summary="Stream the keys of records that changed, collected for 0.8 s, one line of JSON each time.",
        reply_type=ChangeLine, refusal_statuses=(501,),
        parameters=(
            text_list("topic", "Topics to receive: `Topic` or `Topic:key`; may be repeated. All topics by default."),
        ),
    ),
)  # fmt: skip
