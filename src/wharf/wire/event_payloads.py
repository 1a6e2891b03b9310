"""What an event says of its record: the record under the name of its kind, without anything that is secret."""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import msgspec

from wharf.model.variable import metadata
from wharf.wire.node_shapes import shown_node

NAMES: Final[Mapping[str, str]] = MappingProxyType({"HostVolume": "Volume", "ACLAuthMethod": "AuthMethod"})
"""Where the payload's field is not called like its topic."""

SECRET_FIELDS: Final = frozenset({"secret_digest", "secret_sealed", "secrets_sealed", "sealed_with", "parameters"})
"""Of any record. `parameters` is what the plugin of a volume is told."""


def payload_of(topic: str, record: Any, *, is_gone: bool) -> dict[str, Any]:
    shown = SHOWN.get(topic, _without_secrets)(record)
    payload = {NAMES.get(topic, topic): shown}
    if topic == "Job":
        payload["Deleted"] = is_gone
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
    shown = metadata(record)
    if isinstance(shown.lock, msgspec.UnsetType):
        return shown
    return msgspec.structs.replace(shown, lock=msgspec.structs.replace(shown.lock, id=""))


def _shown_allocation(record: Any) -> object:
    """What tasks printed is for those who may read logs; a report's number is between servers and a node."""
    if not record.log_tails and not record.report_number:
        return record
    return msgspec.structs.replace(record, log_tails=b"", report_number=0)


SHOWN: Final[Mapping[str, Callable[[Any], object]]] = MappingProxyType({
    "Allocation": _shown_allocation,
    "Node": shown_node,
    "Variable": _shown_variable,
})  # fmt: skip
