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
DEFAULT_LOCK_DELAY_NS: Final = 15 * SECOND
MIN_LOCK_TTL_NS: Final = 10 * SECOND
MAX_LOCK_TTL_NS: Final = 24 * HOUR
MAX_VARIABLE_BYTES: Final = 65_536
"""Total size of keys and values; every server holds all variables in memory."""

RESERVED_PATH_PREFIX: Final = "nomad"
"""The first part of reserved paths. It is Nomad's name, because existing jobs use it."""

_PATH: Final = re.compile("[a-zA-Z0-9_~/-]{1,128}")


class VariableLock(Record):
    """A lock: only its holder may write the variable. On the wire `ttl` and `lock_delay` are text such as "15s"."""

    id: str
    ttl: int = DEFAULT_LOCK_TTL_NS
    lock_delay: int = DEFAULT_LOCK_DELAY_NS


class VariableMetadata(Record):
    """A variable without its items, for lists and events."""

    namespace: str
    path: str
    lock: VariableLock | msgspec.UnsetType = msgspec.UNSET
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0


class Variable(Record):
    """A variable as it is stored."""

    namespace: str
    path: str
    data: bytes  # The items as JSON, encrypted.
    key_id: str  # The key of the ring that encrypted them.
    lock: VariableLock | None = None
    # After a lock has expired, no new lock can be acquired before this time (ns since the epoch).
    lock_refused_until: int = 0
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0


def make_variable_metadata(variable: Variable) -> VariableMetadata:
    """Return the variable without its items."""
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
    """Return everything that is wrong with the path of a variable to be written."""
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


def _is_writable_reserved_path(rest: str) -> bool:
    """Return whether users may write below the reserved prefix at this path; `rest` is the path after the prefix."""
    area, slash, name = rest.partition("/")
    if area == "job-templates":
        return bool(name) and "/" not in name
    return area in ("jobs", "sentinel") and (not slash or bool(name))


def list_item_problems(items: Mapping[str, str] | None) -> list[str]:
    """Return what is wrong with the items of a variable to be written."""
    if not items:
        return ["variable missing required Items object"]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in items.items())
    return ["variables are limited to 64KiB in total size"] if size > MAX_VARIABLE_BYTES else []


def list_lock_problems(lock: VariableLock) -> list[str]:
    """Return what is wrong with a requested lock."""
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
