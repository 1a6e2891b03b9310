"""Endpoints and messages of variables and their locks."""

from typing import ClassVar, Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.record import Record
from wharf.contract.model.variables import Variable
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, ScopeSource, define_read, define_write, text
from wharf.contract.wire.times import DurationText


class LockView(Record):
    """The lock of a variable. Only its holder and management tokens see its ID."""

    id: str | msgspec.UnsetType = msgspec.UNSET  # Proves that a caller holds the lock.
    ttl: DurationText = ""  # How long the lock is valid after each renewal.
    lock_delay: DurationText = ""  # How long the lock stays unavailable after it has expired.


class VariableView(Record):
    """A variable: encrypted key-value pairs under a path. Lists omit `items`."""

    namespace: str
    path: str
    lock: LockView | msgspec.UnsetType = msgspec.UNSET  # Absent if the variable is not locked.
    items: dict[str, str] | msgspec.UnsetType = msgspec.UNSET  # The values by key.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.
    create_time: int = 0  # In ns since 1970.
    modify_time: int = 0  # In ns since 1970.


class LockRequest(Record):
    """The lock in a request to acquire, renew or release it, or to write a locked variable."""

    id: str = ""  # The ID of the lock that the caller holds; empty to acquire a new lock.
    ttl: DurationText = ""  # How long the lock is valid after each renewal.
    lock_delay: DurationText = ""  # How long the lock stays unavailable after it has expired.


class VariableRequest(Record):
    """A request to write a variable, or to acquire, renew or release its lock."""

    namespace: str = ""  # Used if the query names no namespace.
    path: str = ""
    items: dict[str, str] | None = None  # The new values by key; they replace all old ones.
    lock: LockRequest | None = None

    # Fields that a caller may send back from a reply; they are dropped.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset(
        {"CreateIndex", "ModifyIndex", "CreateTime", "ModifyTime"}
    )


VARIABLE_LIST: Final = ListFeatures(
    record=Variable, hidden_fields=frozenset({"Data", "KeyID", "LockRefusedUntil", "Lock"}), can_reverse=False
)
CAS_PARAMETER: Final = text("cas", "Write only if the variable has this ModifyIndex; 0: only if it does not exist.")

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "variable.list", "/v1/vars", need=permissions.ANY_TOKEN,
        summary="List the variables that the caller may list, without their items.", list_features=VARIABLE_LIST,
        reply_type=list[VariableView],
    ),
    define_read(
        "variable.read", "/v1/var/{path...}", need=permissions.READ_VARIABLE, scope_path_parameter="path", summary="Read a variable.",
        reply_type=VariableView, is_read_audited=True,
    ),
    define_write(
        "variable.put", "/v1/var/{path...}", need=permissions.WRITE_VARIABLE, scope_source=ScopeSource.OBJECT,
        summary="Write a variable, or acquire, renew or release its lock.",
        body_type=VariableRequest, reply_type=VariableView,
        parameters=(
            CAS_PARAMETER,
            text("lock-acquire", "If present, also acquire the lock."),
            text("lock-renew", "If present, only renew the lock."),
            text("lock-release", "If present, release the lock."),
        ),
    ),
    define_write(
        "variable.delete", "/v1/var/{path...}", method="DELETE", need=permissions.DESTROY_VARIABLE, scope_path_parameter="path",
        summary="Delete a variable.", parameters=(CAS_PARAMETER,), success_statuses=(204,),
    ),
)  # fmt: skip
