"""Endpoints and messages of variables and their locks."""

from typing import ClassVar, Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.record import Record
from wharf.contract.model.variables import Variable
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, ScopeSource, define_read, define_write, text
from wharf.contract.wire.times import DurationText


class LockView(Record):
    """A lock. Its ID is shown only to its holder and to management tokens."""

    id: str | msgspec.UnsetType = msgspec.UNSET
    ttl: DurationText = ""
    lock_delay: DurationText = ""


class VariableView(Record):
    """A variable. Lists omit `items`."""

    namespace: str
    path: str
    lock: LockView | msgspec.UnsetType = msgspec.UNSET
    items: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0


class LockRequest(Record):
    id: str = ""
    ttl: DurationText = ""
    lock_delay: DurationText = ""


class VariableRequest(Record):
    """A variable to write, or a lock operation."""

    namespace: str = ""
    path: str = ""
    items: dict[str, str] | None = None
    lock: LockRequest | None = None

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
        reply_type=VariableView,
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
