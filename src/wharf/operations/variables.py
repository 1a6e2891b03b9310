"""What people do to variables: write and delete them, with check-and-set, and take and give back their locks.

Items come in sealed (reference, nodes-allocations 5.2). Who holds a lock is in the record; how long a silent holder is
believed is the leader's business (`controllers.locks`), as it is with nodes.
"""

import enum
from typing import Final

import msgspec

from wharf.model import variable as variables
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Write
from wharf.model.moment import Moment
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.model.secret import Sealed
from wharf.model.variable import Variable, VariableLock
from wharf.operations.decision import Decision
from wharf.state import Replica
from wharf.state.tables import KEYRING, NAMESPACES, VARIABLES

replace = msgspec.structs.replace

LOCKED_TEXT: Final = "attempting to modify locked variable"


class Conflicted(enum.Enum):
    """Why a variable was not written."""

    VERSION = "version"  # Check-and-set: it has another ModifyIndex.
    LOCKED = "locked"  # Somebody else holds its lock, or may not yet take it.


class VariableWritten(msgspec.Struct, frozen=True):
    """`variable`: as it stands now; None: there is none. With `conflict` nothing was written."""

    index: int
    variable: Variable | None = None
    conflict: Conflicted | None = None


class VariableKey(msgspec.Struct, frozen=True):
    namespace: str
    path: str


def check_put(key: VariableKey, items: dict[str, str] | None) -> None:
    """Raises unless a variable may be called so and hold this."""
    _check_key(key)
    problems = variables.items_problems(items)
    if problems:
        raise invalid("; ".join(problems))


def put(
    snapshot: Replica,
    key: VariableKey,
    sealed: Sealed,
    moment: Moment,
    *,
    expected: int | None = None,
    lock_id: str = "",
) -> Decision[VariableWritten]:
    """Write the items. `expected`: only over this ModifyIndex; 0: only where nothing is. `lock_id`: of the holder."""
    _check_key(key)
    stored = _stored(snapshot, key)
    if expected is not None and expected != (stored.modify_index if stored is not None else 0):
        return _conflict(stored, Conflicted.VERSION)
    held = stored.lock if stored is not None else None
    if (held is not None or lock_id) and (held is None or held.id != lock_id):
        return _conflict(stored, Conflicted.LOCKED)
    lock = VariableLock(id=held.id) if held is not None else None
    return _write(snapshot, "variable-stored", _with_items(stored, key, sealed, moment, lock=lock))


def delete(
    snapshot: Replica, key: VariableKey, *, expected: int | None = None, lock_id: str = ""
) -> Decision[VariableWritten]:
    """Deleting what is not there is no mistake."""
    stored = _stored(snapshot, key)
    if expected is not None and expected != (stored.modify_index if stored is not None else 0):
        return _conflict(stored, Conflicted.VERSION)
    if stored is None:
        return Decision(None, VariableWritten)
    if stored.lock is not None and stored.lock.id != lock_id:
        return _conflict(stored, Conflicted.LOCKED)
    write = Write(
        "variable-deleted",
        Cause(CauseKind.REQUEST),
        [VARIABLES.drop(key.namespace, key.path)],
        [snapshot.unchanged(VARIABLES, stored)],
    )
    return Decision(write, VariableWritten)


# -- locks -----------------------------------------------------------------------------------------------------------


def acquire(
    snapshot: Replica, key: VariableKey, lock: VariableLock, moment: Moment, *, sealed: Sealed | None
) -> Decision[VariableWritten]:
    """Take the lock, or take it again as its holder. Without `sealed` the items stay; a missing variable has none then.

    A lock whose `id` is empty gets a new one.
    """
    _check_key(key)
    problems = variables.lock_problems(lock)
    if problems:
        raise invalid("; ".join(problems))
    stored = _stored(snapshot, key)
    if stored is None and sealed is None:
        raise invalid("a variable that is to be made with its lock needs items, were they none")
    held = stored.lock if stored is not None else None
    if held is not None and held.id != lock.id:
        return _conflict(stored, Conflicted.LOCKED)
    if held is None and stored is not None and stored.lock_refused_until > moment.now_ns:
        return _conflict(stored, Conflicted.LOCKED)
    taken = replace(lock, id=held.id if held is not None else moment.new_id())
    if sealed is not None:
        variable = _with_items(stored, key, sealed, moment, lock=taken)
    else:
        assert stored is not None, "a missing variable without items was refused above"
        variable = replace(stored, lock=taken, modify_time=moment.now_ns)
    return _write(snapshot, "variable-locked", replace(variable, lock_refused_until=0))


def release(snapshot: Replica, key: VariableKey, lock_id: str, moment: Moment) -> Decision[VariableWritten]:
    """Give the lock back: the next may take it at once."""
    if not lock_id:
        raise invalid("a lock is given back by its ID: Lock.ID is missing")
    stored = _stored(snapshot, key)
    if stored is None:
        raise unknown("variable doesn't exist")
    if stored.lock is None or stored.lock.id != lock_id:
        return _conflict(stored, Conflicted.LOCKED)
    return _write(snapshot, "variable-unlocked", replace(stored, lock=None, modify_time=moment.now_ns))


def renewable(snapshot: Replica, key: VariableKey, lock_id: str) -> Variable:
    """The variable whose holder says that it is alive. Nothing is written for that; raises where it is not held so."""
    stored = _stored(snapshot, key)
    if stored is None:
        raise unknown("variable not found")
    if stored.lock is None or stored.lock.id != lock_id or not lock_id:
        raise Refusal(Code.CONFLICT, LOCKED_TEXT)
    return stored


def expire(snapshot: Replica, key: VariableKey, lock_id: str, moment: Moment) -> Decision[VariableWritten]:
    """The holder was silent for too long: its lock goes, and nobody may take another for the lock's delay."""
    stored = _stored(snapshot, key)
    if stored is None or stored.lock is None or stored.lock.id != lock_id:
        return Decision(None, VariableWritten)  # It was given back, or is another's by now.
    free = replace(stored, lock=None, lock_refused_until=moment.now_ns + stored.lock.lock_delay)
    return _write(snapshot, "variable-lock-expired", replace(free, modify_time=moment.now_ns), by=CauseKind.TIMER)


# -- parts -----------------------------------------------------------------------------------------------------------


def _check_key(key: VariableKey) -> None:
    if key.namespace == "*":
        raise invalid("a variable is written in one namespace; * is all of them")
    problems = variables.path_problems(key.path)
    if problems:
        raise invalid("; ".join(problems))


def _stored(snapshot: Replica, key: VariableKey) -> Variable | None:
    return snapshot.get(VARIABLES, key.namespace, key.path)


def _with_items(
    stored: Variable | None, key: VariableKey, sealed: Sealed, moment: Moment, *, lock: VariableLock | None
) -> Variable:
    return Variable(
        namespace=key.namespace,
        path=key.path,
        data=sealed.data,
        key_id=sealed.key_id,
        lock=lock,
        lock_refused_until=stored.lock_refused_until if stored is not None else 0,
        create_index=stored.create_index if stored is not None else THIS,
        create_time=stored.create_time if stored is not None else moment.now_ns,
        modify_time=moment.now_ns,
    )


def _conflict(stored: Variable | None, conflict: Conflicted) -> Decision[VariableWritten]:
    return Decision(None, lambda index: VariableWritten(index, stored, conflict))


def _write(
    snapshot: Replica, kind: str, variable: Variable, *, by: CauseKind = CauseKind.REQUEST
) -> Decision[VariableWritten]:
    if snapshot.get(NAMESPACES, variable.namespace) is None:
        raise invalid(f'nonexistent namespace: "{variable.namespace}"')
    conditions: list[Condition] = [
        snapshot.as_seen(VARIABLES, variable.namespace, variable.path),
        snapshot.as_seen(NAMESPACES, variable.namespace),
        snapshot.as_seen(KEYRING, variable.key_id),
    ]

    def reply(index: int) -> VariableWritten:
        created = index if variable.create_index == THIS else variable.create_index
        return VariableWritten(index, replace(variable, create_index=created, modify_index=index))

    return Decision(Write(kind, Cause(by), [VARIABLES.put(variable)], conditions), reply)
