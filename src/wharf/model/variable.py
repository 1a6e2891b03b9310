"""Variables: small secrets under a path, kept encrypted, with an optional lock.

Clear items exist only in a request and its reply; what is stored is `Variable`, which holds them encrypted.
"""

import msgspec

from wharf.model.record import Record

SECOND_NS = 10**9
DEFAULT_LOCK_TTL = 15 * SECOND_NS
DEFAULT_LOCK_DELAY = 15 * SECOND_NS


class VariableLock(Record):
    """Who may write the variable. On the wire TTL and delay are text like "15s"."""

    id: str
    ttl: int = DEFAULT_LOCK_TTL
    lock_delay: int = DEFAULT_LOCK_DELAY


class VariableMetadata(Record):
    """A variable without its items, as lists and events show it."""

    namespace: str
    path: str
    lock: VariableLock | msgspec.UnsetType = msgspec.UNSET
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0


class DecryptedVariable(Record):
    """A variable as its readers see it. Never stored."""

    namespace: str
    path: str
    lock: VariableLock | msgspec.UnsetType = msgspec.UNSET
    items: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0


class Variable(Record):
    """A variable as it is stored."""

    namespace: str
    path: str
    data: bytes  # The items as JSON, encrypted.
    key_id: str  # The key of the ring that encrypted them.
    lock: VariableLock | None = None
    # After a lock ran out, nobody may take a new one before this moment (ns since the epoch).
    lock_refused_until: int = 0
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0


def metadata(variable: Variable) -> VariableMetadata:
    return VariableMetadata(
        namespace=variable.namespace,
        path=variable.path,
        lock=variable.lock if variable.lock is not None else msgspec.UNSET,
        create_index=variable.create_index,
        modify_index=variable.modify_index,
        create_time=variable.create_time,
        modify_time=variable.modify_time,
    )
