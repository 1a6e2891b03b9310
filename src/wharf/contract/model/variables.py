"""Variables: small secrets under a path, stored encrypted, with an optional lock.

Plain items exist only in a request and its reply; the stored `Variable` holds them encrypted.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.model.record import Record
from wharf.contract.model.times import HOUR, SECOND, format_duration

DEFAULT_LOCK_TTL_NS: Final = 15 * SECOND
"""How long a lock stays valid without being renewed."""
DEFAULT_LOCK_DELAY_NS: Final = 15 * SECOND
"""How long an expired lock cannot be acquired again."""
MIN_LOCK_TTL_NS: Final = 10 * SECOND
MAX_LOCK_TTL_NS: Final = 24 * HOUR
MAX_VARIABLE_BYTES: Final = 65_536
"""Total size of keys and values; every server holds all variables in memory."""

RESERVED_PATH_PREFIX: Final = "nomad"
"""The first part of reserved paths. It is Nomad's name, because existing jobs use it."""

_PATH: Final = re.compile("[a-zA-Z0-9_~/-]{1,128}")


class VariableLock(Record):
    """A lock on a variable: only the holder of the lock may write it."""

    id: str  # Known only to the holder.
    # ns; the lock expires if it is not renewed in this time; text such as "15s" on the wire.
    ttl: int = DEFAULT_LOCK_TTL_NS
    # ns after the expiration in which no new lock can be acquired; text such as "15s" on the wire.
    lock_delay: int = DEFAULT_LOCK_DELAY_NS


class VariableMetadata(Record):
    """A variable without its key-value pairs, for lists and events."""

    namespace: str
    path: str
    lock: VariableLock | msgspec.UnsetType = msgspec.UNSET
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0


class Variable(Record):
    """A set of encrypted key-value pairs under a path, as it is stored."""

    namespace: str
    path: str
    data: bytes  # The key-value pairs as JSON, encrypted.
    key_id: str  # The keyring key that encrypted them.
    lock: VariableLock | None = None
    # After a lock has expired, no new lock can be acquired before this time (ns since the epoch).
    lock_refused_until: int = 0
    # The delay of the expired lock in ns. 0 in records of earlier releases.
    expired_lock_delay: int = 0
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0


def make_variable_metadata(variable: Variable) -> VariableMetadata:
    """Return a stored variable without its key-value pairs."""
    return VariableMetadata(
        namespace=variable.namespace,
        path=variable.path,
        lock=variable.lock if variable.lock is not None else msgspec.UNSET,
        create_index=variable.create_index,
        modify_index=variable.modify_index,
        create_time=variable.create_time,
        modify_time=variable.modify_time,
    )


def list_path_problems(path: str) -> list[str]:
    """Return an error text for each thing that is wrong with the path of a variable to be written; empty if valid."""
    found = []
    if not path:
        return ["variable missing required path"]
    if _PATH.fullmatch(path) is None:
        found.append(f'invalid path "{path}". Must match regex ^[a-zA-Z0-9-_~/]{{1,128}}$')
    first, _, rest = path.partition("/")
    if first == RESERVED_PATH_PREFIX and not _is_writable_reserved_path(rest):
        found.append(
            f'only paths at "{RESERVED_PATH_PREFIX}/jobs", "{RESERVED_PATH_PREFIX}/sentinel" and "{RESERVED_PATH_PREFIX}/job-templates/<name>" may be '
            f'written under "{RESERVED_PATH_PREFIX}"; got "{path}"'
        )
    return found


def _is_writable_reserved_path(path_below_prefix: str) -> bool:
    """Return whether users may write a variable at this path below the reserved prefix `nomad/`."""
    area, slash, name = path_below_prefix.partition("/")
    if area == "job-templates":
        return bool(name) and "/" not in name
    return area in ("jobs", "sentinel") and (not slash or bool(name))


def list_item_problems(items: Mapping[str, str] | None) -> list[str]:
    """Return an error text if a variable's key-value pairs are missing or too large; otherwise an empty list."""
    if not items:
        return ["variable missing required Items object"]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in items.items())
    return ["variables are limited to 64KiB in total size"] if size > MAX_VARIABLE_BYTES else []


def list_lock_problems(lock: VariableLock) -> list[str]:
    """Return an error text for each duration of a requested lock that is outside its limits; empty if valid."""
    found = []
    if not MIN_LOCK_TTL_NS <= lock.ttl <= MAX_LOCK_TTL_NS:
        found.append(
            f"lock TTL must be between {format_duration(MIN_LOCK_TTL_NS)} and {format_duration(MAX_LOCK_TTL_NS)}; "
            f"got {format_duration(lock.ttl)}"
        )
    if not 0 <= lock.lock_delay <= MAX_LOCK_TTL_NS:
        found.append(
            f"lock delay must be between 0s and {format_duration(MAX_LOCK_TTL_NS)}; got {format_duration(lock.lock_delay)}"
        )
    return found
