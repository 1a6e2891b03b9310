"""Bodies of variables: as they are shown, with their items or without, and as they are asked for."""

from typing import ClassVar

import msgspec

from wharf.model.record import Record
from wharf.wire.access import Lasting


class LockShown(Record):
    """A lock; its id is shown to its holder and to management only."""

    id: str | msgspec.UnsetType = msgspec.UNSET
    ttl: Lasting = ""
    lock_delay: Lasting = ""


class VariableShown(Record):
    """Without `items` it is the metadata that lists show."""

    namespace: str
    path: str
    lock: LockShown | msgspec.UnsetType = msgspec.UNSET
    items: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0


class LockRequest(Record):
    id: str = ""
    ttl: Lasting = ""
    lock_delay: Lasting = ""


class VariableRequest(Record):
    namespace: str = ""
    path: str = ""
    items: dict[str, str] | None = None
    lock: LockRequest | None = None

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset(
        {"CreateIndex", "ModifyIndex", "CreateTime", "ModifyTime"}
    )
