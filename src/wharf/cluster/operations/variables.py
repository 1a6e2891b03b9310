"""What people do to variables: write and delete them, with check-and-set, and take and give back their locks.

Items come in sealed (reference, nodes-allocations 5.2). Who holds a lock is in the record; how long a silent holder is
believed is the leader's business (`controllers.locks`), as it is with nodes.
"""

import enum
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import KEYRING, NAMESPACES, VARIABLES
from wharf.contract.model import variables
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, Write
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import DecisionContext
from wharf.contract.model.variables import Variable, VariableLock

replace = msgspec.structs.replace

LOCKED_ERROR: Final = "attempting to modify locked variable"


class VariableConflict(enum.Enum):
    """Why a variable was not written."""

    VERSION = "version"  # Check-and-set: it has another ModifyIndex.
    LOCKED = "locked"  # Somebody else holds its lock, or may not yet take it.


class VariableWriteResult(msgspec.Struct, frozen=True):
    """`variable`: as it stands now; None: there is none. With `conflict` nothing was written."""

    index: int
    variable: Variable | None = None
    conflict: VariableConflict | None = None


class VariableKey(msgspec.Struct, frozen=True):
    namespace: str
    path: str


def check_variable_write(key: VariableKey, items: dict[str, str] | None) -> None:
    """Raises unless a variable may be called so and hold this."""
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
    """Write the items. `expected`: only over this ModifyIndex; 0: only where nothing is. `lock_id`: of the holder."""
    _check_key(key)
    stored = _stored(snapshot, key)
    if expected_index is not None and expected_index != (stored.modify_index if stored is not None else 0):
        return _conflict(stored, VariableConflict.VERSION)
    held = stored.lock if stored is not None else None
    if (held is not None or lock_id) and (held is None or held.id != lock_id):
        return _conflict(stored, VariableConflict.LOCKED)
    lock = VariableLock(id=held.id) if held is not None else None
    return _write(snapshot, "variable-stored", _with_items(stored, key, sealed, context, lock=lock))


def delete_variable(
    snapshot: Replica, key: VariableKey, *, expected_index: int | None = None, lock_id: str = ""
) -> Decision[VariableWriteResult]:
    """Deleting what is not there is no mistake."""
    stored = _stored(snapshot, key)
    if expected_index is not None and expected_index != (stored.modify_index if stored is not None else 0):
        return _conflict(stored, VariableConflict.VERSION)
    if stored is None:
        return Decision(None, VariableWriteResult)
    if stored.lock is not None and stored.lock.id != lock_id:
        return _conflict(stored, VariableConflict.LOCKED)
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
    """Take the lock, or take it again as its holder. Without `sealed` the items stay; a missing variable has none then.

    A lock whose `id` is empty gets a new one.
    """
    _check_key(key)
    problems = variables.list_lock_problems(lock)
    if problems:
        raise invalid_request("; ".join(problems))
    stored = _stored(snapshot, key)
    if stored is None and sealed is None:
        raise invalid_request("a variable that is to be made with its lock needs items, were they none")
    held = stored.lock if stored is not None else None
    if held is not None and held.id != lock.id:
        return _conflict(stored, VariableConflict.LOCKED)
    if held is None and stored is not None and stored.lock_refused_until > context.now_ns:
        return _conflict(stored, VariableConflict.LOCKED)
    taken = replace(lock, id=held.id if held is not None else context.new_id())
    if sealed is not None:
        variable = _with_items(stored, key, sealed, context, lock=taken)
    else:
        assert stored is not None, "a missing variable without items was refused above"
        variable = replace(stored, lock=taken, modify_time=context.now_ns)
    return _write(snapshot, "variable-locked", replace(variable, lock_refused_until=0))


def release_lock(
    snapshot: Replica, key: VariableKey, lock_id: str, context: DecisionContext
) -> Decision[VariableWriteResult]:
    """Give the lock back: the next may take it at once."""
    if not lock_id:
        raise invalid_request("a lock is given back by its ID: Lock.ID is missing")
    stored = _stored(snapshot, key)
    if stored is None:
        raise not_found("variable doesn't exist")
    if stored.lock is None or stored.lock.id != lock_id:
        return _conflict(stored, VariableConflict.LOCKED)
    return _write(snapshot, "variable-unlocked", replace(stored, lock=None, modify_time=context.now_ns))


def get_renewable_variable(snapshot: Replica, key: VariableKey, lock_id: str) -> Variable:
    """The variable whose holder says that it is alive. Nothing is written for that; raises where it is not held so."""
    stored = _stored(snapshot, key)
    if stored is None:
        raise not_found("variable not found")
    if stored.lock is None or stored.lock.id != lock_id or not lock_id:
        raise Refusal(RefusalCode.CONFLICT, LOCKED_ERROR)
    return stored


def expire_lock(
    snapshot: Replica, key: VariableKey, lock_id: str, context: DecisionContext
) -> Decision[VariableWriteResult]:
    """The holder was silent for too long: its lock goes, and nobody may take another for the lock's delay."""
    stored = _stored(snapshot, key)
    if stored is None or stored.lock is None or stored.lock.id != lock_id:
        return Decision(None, VariableWriteResult)  # It was given back, or is another's by now.
    free = replace(stored, lock=None, lock_refused_until=context.now_ns + stored.lock.lock_delay)
    return _write(snapshot, "variable-lock-expired", replace(free, modify_time=context.now_ns), by=CauseKind.TIMER)


# -- parts -----------------------------------------------------------------------------------------------------------


def _check_key(key: VariableKey) -> None:
    if key.namespace == "*":
        raise invalid_request("a variable is written in one namespace; * is all of them")
    problems = variables.list_path_problems(key.path)
    if problems:
        raise invalid_request("; ".join(problems))


def _stored(snapshot: Replica, key: VariableKey) -> Variable | None:
    return snapshot.get(VARIABLES, key.namespace, key.path)


def _with_items(
    stored: Variable | None,
    key: VariableKey,
    sealed: SealedData,
    context: DecisionContext,
    *,
    lock: VariableLock | None,
) -> Variable:
    return Variable(
        namespace=key.namespace,
        path=key.path,
        data=sealed.data,
        key_id=sealed.key_id,
        lock=lock,
        lock_refused_until=stored.lock_refused_until if stored is not None else 0,
        create_index=stored.create_index if stored is not None else WRITE_INDEX,
        create_time=stored.create_time if stored is not None else context.now_ns,
        modify_time=context.now_ns,
    )


def _conflict(stored: Variable | None, conflict: VariableConflict) -> Decision[VariableWriteResult]:
    return Decision(None, lambda index: VariableWriteResult(index, stored, conflict))


def _write(
    snapshot: Replica, kind: str, variable: Variable, *, by: CauseKind = CauseKind.REQUEST
) -> Decision[VariableWriteResult]:
    if snapshot.get(NAMESPACES, variable.namespace) is None:
        raise invalid_request(f'nonexistent namespace: "{variable.namespace}"')
    conditions: list[Condition] = [
        snapshot.build_key_condition(VARIABLES, variable.namespace, variable.path),
        snapshot.build_key_condition(NAMESPACES, variable.namespace),
        snapshot.build_key_condition(KEYRING, variable.key_id),
    ]

    def reply(index: int) -> VariableWriteResult:
        created = index if variable.create_index == WRITE_INDEX else variable.create_index
        return VariableWriteResult(index, replace(variable, create_index=created, modify_index=index))

    return Decision(Write(kind, Cause(by), [VARIABLES.build_put(variable)], conditions), reply)
