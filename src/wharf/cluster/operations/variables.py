"""Write and delete variables with check-and-set, and acquire, release and expire their locks.

Items arrive encrypted (reference, nodes-allocations 5.2). The record stores who holds a lock; `controllers.locks`
decides when a lock whose holder stopped renewing expires.
"""

import enum
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, set_written_index
from wharf.cluster.operations.references import build_parent_conditions
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import KEYRING, NAMESPACES, VARIABLES
from wharf.contract.model import variables
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, Write
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import DecisionContext, has_passed
from wharf.contract.model.variables import Variable, VariableLock

LOCKED_ERROR: Final = "attempting to modify locked variable"
"""The error if the caller does not hold the lock of a variable, with Nomad's text."""


class VariableConflict(enum.Enum):
    """Why a variable was not written."""

    VERSION = "version"  # Check-and-set: the variable has a different ModifyIndex.
    LOCKED = "locked"  # Another holder has the lock, or the lock delay is not over.


class VariableWriteResult(msgspec.Struct, frozen=True):
    """The result of a request that changes a variable."""

    index: int  # The log index of the write.
    variable: Variable | None = None  # As stored; `None`: it does not exist.
    conflict: VariableConflict | None = None  # If set, nothing was written.


class VariableKey(msgspec.Struct, frozen=True):
    """What identifies a variable: its namespace and path."""

    namespace: str
    path: str


def check_variable_write(key: VariableKey, items: dict[str, str] | None) -> None:
    """Raise unless the key names one namespace and a valid path, and the items are within their limits."""
    _check_key(key)
    problems = variables.list_item_problems(items)
    if problems:
        raise invalid_request("; ".join(problems))


def put_variable(
    snapshot: Replica,
    key: VariableKey,
    sealed: SealedData,
    context: DecisionContext,
    *,
    expected_index: int | None = None,
    lock_id: str = "",
) -> Decision[VariableWriteResult]:
    """Return the decision that stores these encrypted items (`sealed`) as the content of a variable.

    `expected_index` is the ModifyIndex that the variable must have; 0 means that it must not exist. `lock_id` is
    required if the variable is locked. Otherwise nothing is written and the reply reports a conflict.
    """
    _check_key(key)
    stored = _get_stored(snapshot, key)
    if expected_index is not None and expected_index != (stored.modify_index if stored is not None else 0):
        return _build_conflict_decision(stored, VariableConflict.VERSION)
    current_lock = stored.lock if stored is not None else None
    if (current_lock is not None or lock_id) and (current_lock is None or current_lock.id != lock_id):
        return _build_conflict_decision(stored, VariableConflict.LOCKED)
    lock = VariableLock(id=current_lock.id) if current_lock is not None else None
    return _build_write_decision(snapshot, "variable-stored", _set_items(stored, key, sealed, context, lock=lock))


def delete_variable(
    snapshot: Replica, key: VariableKey, *, expected_index: int | None = None, lock_id: str = ""
) -> Decision[VariableWriteResult]:
    """Return the decision that deletes the variable; it writes nothing if the variable does not exist.

    `expected_index` is the ModifyIndex that the variable must have; 0 means that it must not exist. `lock_id` is
    required if the variable is locked. Otherwise nothing is written and the reply reports a conflict.
    """
    stored = _get_stored(snapshot, key)
    if expected_index is not None and expected_index != (stored.modify_index if stored is not None else 0):
        return _build_conflict_decision(stored, VariableConflict.VERSION)
    if stored is None:
        return Decision(None, VariableWriteResult)
    if stored.lock is not None and stored.lock.id != lock_id:
        return _build_conflict_decision(stored, VariableConflict.LOCKED)
    write = Write(
        "variable-deleted",
        Cause(CauseKind.REQUEST),
        [VARIABLES.build_delete(key.namespace, key.path)],
        [snapshot.build_record_condition(VARIABLES, stored)],
    )
    return Decision(write, VariableWriteResult)


# -- locks -----------------------------------------------------------------------------------------------------------


def acquire_lock(
    snapshot: Replica, key: VariableKey, lock: VariableLock, context: DecisionContext, *, sealed: SealedData | None
) -> Decision[VariableWriteResult]:
    """Return the decision that acquires the lock of a variable, or acquires it again for its holder.

    A new lock gets a new id. Without `sealed` (encrypted items) the items stay unchanged. Raises if the variable does
    not exist and no items are given. If another holder has the lock, the reply reports a conflict.
    """
    _check_key(key)
    problems = variables.list_lock_problems(lock)
    if problems:
        raise invalid_request("; ".join(problems))
    stored = _get_stored(snapshot, key)
    if stored is None and sealed is None:
        raise invalid_request("cannot lock a variable that does not exist without items: send Items, even if empty")
    current_lock = stored.lock if stored is not None else None
    if current_lock is not None and current_lock.id != lock.id:
        return _build_conflict_decision(stored, VariableConflict.LOCKED)
    if current_lock is None and stored is not None and _is_lock_delayed(stored, context.now_ns):
        return _build_conflict_decision(stored, VariableConflict.LOCKED)
    new_lock = replace(lock, id=current_lock.id if current_lock is not None else context.new_id())
    if sealed is not None:
        variable = _set_items(stored, key, sealed, context, lock=new_lock)
    else:
        assert stored is not None, "a missing variable without items was refused above"
        variable = replace(stored, lock=new_lock, modify_time=context.now_ns)
    return _build_write_decision(
        snapshot, "variable-locked", replace(variable, lock_refused_until=0, expired_lock_delay=0)
    )


def _is_lock_delayed(stored: Variable, now_ns: int) -> bool:
    """Return whether the variable's lock expired so recently that no caller can acquire a new one."""
    delay_ns = stored.expired_lock_delay or variables.MAX_LOCK_TTL_NS
    return not has_passed(stored.lock_refused_until, delay_ns, now_ns)


def release_lock(
    snapshot: Replica, key: VariableKey, lock_id: str, context: DecisionContext
) -> Decision[VariableWriteResult]:
    """Return the decision that releases the lock of a variable. Another caller can acquire it at once.

    If the caller does not hold it, nothing is written and the reply reports a conflict.
    """
    if not lock_id:
        raise invalid_request("cannot release the lock: Lock.ID is missing")
    stored = _get_stored(snapshot, key)
    if stored is None:
        raise not_found("variable doesn't exist")
    if stored.lock is None or stored.lock.id != lock_id:
        return _build_conflict_decision(stored, VariableConflict.LOCKED)
    return _build_write_decision(snapshot, "variable-unlocked", replace(stored, lock=None, modify_time=context.now_ns))


def get_renewable_variable(snapshot: Replica, key: VariableKey, lock_id: str) -> Variable:
    """Return the variable whose lock the caller wants to renew. Raises unless the caller holds the lock.

    A renewal writes nothing.
    """
    stored = _get_stored(snapshot, key)
    if stored is None:
        raise not_found("variable not found")
    if stored.lock is None or stored.lock.id != lock_id or not lock_id:
        raise Refusal(RefusalCode.CONFLICT, LOCKED_ERROR)
    return stored


def expire_lock(
    snapshot: Replica, key: VariableKey, lock_id: str, context: DecisionContext
) -> Decision[VariableWriteResult]:
    """Return the decision that releases a lock that its holder did not renew.

    No caller can acquire a new one during the lock delay. It writes nothing if the lock was released or has another
    holder.
    """
    stored = _get_stored(snapshot, key)
    if stored is None or stored.lock is None or stored.lock.id != lock_id:
        return Decision(None, VariableWriteResult)  # The lock was released, or has a new holder.
    delay_ns = stored.lock.lock_delay
    unlocked = replace(stored, lock=None, lock_refused_until=context.now_ns + delay_ns, expired_lock_delay=delay_ns)
    return _build_write_decision(
        snapshot, "variable-lock-expired", replace(unlocked, modify_time=context.now_ns), by=CauseKind.TIMER
    )


# -- helpers -----------------------------------------------------------------------------------------------------------


def _check_key(key: VariableKey) -> None:
    """Raise unless the key of the variable names one namespace and a valid path."""
    if key.namespace == "*":
        raise invalid_request("cannot write a variable in namespace *: name one namespace")
    problems = variables.list_path_problems(key.path)
    if problems:
        raise invalid_request("; ".join(problems))


def _get_stored(snapshot: Replica, key: VariableKey) -> Variable | None:
    """Return the stored variable with this key, or `None`."""
    return snapshot.get(VARIABLES, key.namespace, key.path)


def _set_items(
    stored: Variable | None,
    key: VariableKey,
    sealed: SealedData,
    context: DecisionContext,
    *,
    lock: VariableLock | None,
) -> Variable:
    """Return the variable with these encrypted items and this lock.

    Its creation time and index are those of `stored`, if any.
    """
    return Variable(
        namespace=key.namespace,
        path=key.path,
        data=sealed.data,
        key_id=sealed.key_id,
        lock=lock,
        lock_refused_until=stored.lock_refused_until if stored is not None else 0,
        expired_lock_delay=stored.expired_lock_delay if stored is not None else 0,
        create_index=stored.create_index if stored is not None else WRITE_INDEX,
        create_time=stored.create_time if stored is not None else context.now_ns,
        modify_time=context.now_ns,
    )


def _build_conflict_decision(stored: Variable | None, conflict: VariableConflict) -> Decision[VariableWriteResult]:
    """Return a decision that writes nothing and whose reply has this conflict and the stored variable."""
    return Decision(None, lambda index: VariableWriteResult(index, stored, conflict))


def _build_write_decision(
    snapshot: Replica, write_kind: str, variable: Variable, *, by: CauseKind = CauseKind.REQUEST
) -> Decision[VariableWriteResult]:
    """Return the decision that stores the variable. Raises if its namespace does not exist.

    `by` says what caused the write: a request, or the timer of an expired lock.
    """
    if snapshot.get(NAMESPACES, variable.namespace) is None:
        raise invalid_request(f'nonexistent namespace: "{variable.namespace}"')
    conditions: list[Condition] = [
        snapshot.build_key_condition(VARIABLES, variable.namespace, variable.path),
        *build_parent_conditions(snapshot, VARIABLES, variable),
        snapshot.build_key_condition(KEYRING, variable.key_id),
    ]
    write = Write(write_kind, Cause(by), [VARIABLES.build_put(variable)], conditions)
    return Decision(write, lambda index: VariableWriteResult(index, set_written_index(variable, index)))
