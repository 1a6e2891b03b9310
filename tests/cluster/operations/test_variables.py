"""Writing, deleting and locking variables, and the conditions of these writes."""

import pytest

from tests.kit.state import AState, Refused
from wharf.cluster.operations import variables
from wharf.cluster.operations.variables import VariableConflict, VariableKey
from wharf.cluster.state.tables import KEYRING, NAMESPACES, VARIABLES
from wharf.contract.model.cluster import KeyringKey
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import SECOND
from wharf.contract.model.variables import VariableLock

DB = VariableKey("default", "db")
SEALED = SealedData(b"sealed", "one")


def a_state() -> AState:
    state = AState()
    state.put(KEYRING.build_put(KeyringKey(key_id="one", create_index=WRITE_INDEX)))
    return state


def test_of_two_writers_with_the_same_version_one_succeeds() -> None:
    state = a_state()
    decisions = [variables.put_variable(state.replica, DB, SEALED, state.moment, expected_index=0) for _ in range(2)]
    first = state.do(decisions[0])

    with pytest.raises(Refused):
        state.do(decisions[1])

    again = state.do(variables.put_variable(state.replica, DB, SEALED, state.moment, expected_index=0))
    assert (first.conflict, again.conflict, again.variable) == (None, VariableConflict.VERSION, first.variable)


def test_of_two_who_take_a_lock_one_holds_it() -> None:
    state = a_state()
    lock = VariableLock(id="")
    decisions = [variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=SEALED) for _ in range(2)]
    state.do(decisions[0])

    with pytest.raises(Refused):
        state.do(decisions[1])

    again = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=SEALED))
    assert again.conflict is VariableConflict.LOCKED


def test_a_lock_that_expires_is_refused_for_its_delay_and_one_that_is_given_back_is_not() -> None:
    state = a_state()
    lock = VariableLock(id="", lock_delay=5 * SECOND)
    held = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=SEALED)).variable
    assert held is not None
    assert held.lock is not None
    state.do(variables.expire_lock(state.replica, DB, held.lock.id, state.moment))

    early = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=None))
    state.now_ns += 5 * SECOND
    later = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=None))

    assert (early.conflict, later.conflict) == (VariableConflict.LOCKED, None)


def test_a_lock_that_another_holds_by_now_does_not_expire_with_the_old_one() -> None:
    state = a_state()
    state.do(variables.acquire_lock(state.replica, DB, VariableLock(id=""), state.moment, sealed=SEALED))
    before = state.replica.index

    state.do(variables.expire_lock(state.replica, DB, "the lock before", state.moment))

    assert state.replica.index == before


def test_a_holder_that_takes_its_lock_again_keeps_it() -> None:
    state = a_state()
    held = state.do(
        variables.acquire_lock(state.replica, DB, VariableLock(id=""), state.moment, sealed=SEALED)
    ).variable
    assert held is not None
    assert held.lock is not None

    again = state.do(
        variables.acquire_lock(
            state.replica, DB, VariableLock(id=held.lock.id, ttl=20 * SECOND), state.moment, sealed=None
        )
    )

    assert again.variable is not None
    assert again.variable.lock == VariableLock(id=held.lock.id, ttl=20 * SECOND)


def test_nothing_is_written_into_a_namespace_that_goes_meanwhile() -> None:
    state = a_state()
    decided = variables.put_variable(state.replica, DB, SEALED, state.moment)
    state.put(NAMESPACES.build_delete("default"))

    with pytest.raises(Refused):
        state.do(decided)
    with pytest.raises(Refusal):
        variables.put_variable(state.replica, DB, SEALED, state.moment)
    assert state.replica.count_records(VARIABLES) == 0


def test_when_and_by_whom_a_variable_was_made_outlives_its_changes() -> None:
    state = a_state()
    first = state.do(variables.put_variable(state.replica, DB, SEALED, state.moment)).variable
    state.now_ns += SECOND
    second = state.do(variables.put_variable(state.replica, DB, SEALED, state.moment)).variable

    assert first is not None
    assert second is not None
    assert (second.create_index, second.create_time) == (first.create_index, first.create_time)
    assert (second.modify_index > first.modify_index, second.modify_time - first.modify_time) == (True, SECOND)
