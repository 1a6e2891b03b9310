"""Writing, deleting and locking variables, and the conditions of these writes."""

import pytest
from msgspec.structs import replace

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


def make_state() -> AState:
    state = AState()
    state.put(KEYRING.build_put(KeyringKey(key_id="one", create_index=WRITE_INDEX)))
    return state


def test_only_one_of_two_writers_with_the_same_version_succeeds() -> None:
    state = make_state()
    decisions = [variables.put_variable(state.replica, DB, SEALED, state.moment, expected_index=0) for _ in range(2)]
    first = state.do(decisions[0])

    with pytest.raises(Refused):
        state.do(decisions[1])

    repeated = state.do(variables.put_variable(state.replica, DB, SEALED, state.moment, expected_index=0))
    assert (first.conflict, repeated.conflict, repeated.variable) == (None, VariableConflict.VERSION, first.variable)


def test_only_one_of_two_callers_acquires_a_lock() -> None:
    state = make_state()
    lock = VariableLock(id="")
    decisions = [variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=SEALED) for _ in range(2)]
    state.do(decisions[0])

    with pytest.raises(Refused):
        state.do(decisions[1])

    repeated = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=SEALED))
    assert repeated.conflict is VariableConflict.LOCKED


def test_an_expired_lock_is_refused_during_the_lock_delay_but_a_released_one_is_not() -> None:
    state = make_state()
    lock = VariableLock(id="", lock_delay=5 * SECOND)
    taken_lock = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=SEALED)).variable
    assert taken_lock is not None
    assert taken_lock.lock is not None
    state.do(variables.expire_lock(state.replica, DB, taken_lock.lock.id, state.moment))

    early = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=None))
    state.now_ns += 5 * SECOND
    later = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=None))

    assert (early.conflict, later.conflict) == (VariableConflict.LOCKED, None)


@pytest.mark.parametrize("stores_delay", [True, False])
def test_the_lock_delay_of_a_lock_that_expired_in_the_future_ends_when_the_clock_is_set_back(
    stores_delay: bool,
) -> None:
    state = make_state()
    lock = VariableLock(id="", lock_delay=5 * SECOND)
    taken_lock = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=SEALED)).variable
    assert taken_lock is not None
    assert taken_lock.lock is not None
    now_ns = state.now_ns
    state.now_ns += 10 * 365 * 24 * 3_600 * SECOND
    expired = state.do(variables.expire_lock(state.replica, DB, taken_lock.lock.id, state.moment)).variable
    assert expired is not None
    if not stores_delay:  # A record of an earlier release.
        state.put(VARIABLES.build_put(replace(expired, expired_lock_delay=0)))
    state.now_ns = now_ns

    later = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=None))

    assert later.conflict is None
    assert later.variable is not None
    assert (later.variable.lock_refused_until, later.variable.expired_lock_delay) == (0, 0)


def test_a_lock_of_a_new_holder_does_not_expire_with_the_old_one() -> None:
    state = make_state()
    state.do(variables.acquire_lock(state.replica, DB, VariableLock(id=""), state.moment, sealed=SEALED))
    before = state.replica.index

    state.do(variables.expire_lock(state.replica, DB, "the lock before", state.moment))

    assert state.replica.index == before


def test_a_holder_can_acquire_its_lock_again() -> None:
    state = make_state()
    taken_lock = state.do(
        variables.acquire_lock(state.replica, DB, VariableLock(id=""), state.moment, sealed=SEALED)
    ).variable
    assert taken_lock is not None
    assert taken_lock.lock is not None

    repeated = state.do(
        variables.acquire_lock(
            state.replica, DB, VariableLock(id=taken_lock.lock.id, ttl=20 * SECOND), state.moment, sealed=None
        )
    )

    assert repeated.variable is not None
    assert repeated.variable.lock == VariableLock(id=taken_lock.lock.id, ttl=20 * SECOND)


def test_a_write_conflicts_if_its_namespace_is_deleted_meanwhile() -> None:
    state = make_state()
    decided = variables.put_variable(state.replica, DB, SEALED, state.moment)
    state.put(NAMESPACES.build_delete("default"))

    with pytest.raises(Refused):
        state.do(decided)
    with pytest.raises(Refusal):
        variables.put_variable(state.replica, DB, SEALED, state.moment)
    assert state.replica.count_records(VARIABLES) == 0


def test_a_change_keeps_the_creation_fields_of_a_variable() -> None:
    state = make_state()
    first = state.do(variables.put_variable(state.replica, DB, SEALED, state.moment)).variable
    state.now_ns += SECOND
    second = state.do(variables.put_variable(state.replica, DB, SEALED, state.moment)).variable

    assert first is not None
    assert second is not None
    assert (second.create_index, second.create_time) == (first.create_index, first.create_time)
    assert (second.modify_index > first.modify_index, second.modify_time - first.modify_time) == (True, SECOND)


def test_a_variable_that_must_not_exist_yet_is_refused_if_it_exists_and_accepted_if_not() -> None:
    state = make_state()

    deleted = state.do(variables.delete_variable(state.replica, DB, expected_index=0))
    state.do(variables.put_variable(state.replica, DB, SEALED, state.moment))
    refused = state.do(variables.delete_variable(state.replica, DB, expected_index=0))

    assert (deleted.conflict, refused.conflict) == (None, VariableConflict.VERSION)
    assert state.replica.count_records(VARIABLES) == 1


def test_a_lock_of_a_deleted_variable_a_released_lock_and_a_lock_of_another_holder_do_not_expire() -> None:
    state = make_state()
    assert variables.expire_lock(state.replica, DB, "gone", state.moment).write is None

    state.do(variables.put_variable(state.replica, DB, SEALED, state.moment))
    assert variables.expire_lock(state.replica, DB, "released", state.moment).write is None

    state.do(variables.acquire_lock(state.replica, DB, VariableLock(id=""), state.moment, sealed=SEALED))
    assert variables.expire_lock(state.replica, DB, "another", state.moment).write is None


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_a_locked_variable_changes_only_with_the_id_of_its_lock(operation: str) -> None:
    state = make_state()
    lock = VariableLock(id="")
    taken = state.do(variables.acquire_lock(state.replica, DB, lock, state.moment, sealed=SEALED)).variable
    assert taken is not None
    assert taken.lock is not None

    def change(lock_id: str) -> VariableConflict | None:
        if operation == "put":
            decision = variables.put_variable(state.replica, DB, SEALED, state.moment, lock_id=lock_id)
        else:
            decision = variables.delete_variable(state.replica, DB, lock_id=lock_id)
        return state.do(decision).conflict

    assert [change(lock_id) for lock_id in ("", "another", taken.lock.id)] == [
        VariableConflict.LOCKED,
        VariableConflict.LOCKED,
        None,
    ]
