"""Keyring operations: rotation, deletion, collection and re-encryption."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import AState, Refused, an_allocation
from wharf.cluster.operations import keyring
from wharf.cluster.operations.acl import tokens
from wharf.cluster.operations.keyring import KeyRotationRequest
from wharf.cluster.operations.variables import VariableKey, put_variable
from wharf.cluster.state.tables import ACL_TOKENS, ALLOCATIONS, KEYRING, VARIABLES
from wharf.contract.model.acl.tokens import LifetimeLimits, Token, TokenType
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.cluster import KeyringKey, KeyState
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.secrets import NewSecret, SealedData
from wharf.contract.model.times import HOUR


def make_key(state: AState, name: str) -> KeyringKey:
    return KeyringKey(key_id=name, wrapped=name.encode(), wrapped_with="w", create_time=state.now_ns)


def rotate(state: AState, name: str, **options: Any) -> keyring.KeyringWriteResult:
    return state.do(keyring.rotate_key(state.replica, KeyRotationRequest(make_key(state, name), **options)))


def get_key_states(state: AState) -> dict[str, str]:
    return {key.key_id: key.state for key in state.replica.iter_all(KEYRING)}


def store_variable(state: AState, path: str, key_id: str) -> None:
    state.do(put_variable(state.replica, VariableKey("default", path), SealedData(b"sealed", key_id), state.moment))


def test_the_first_key_is_created_once_for_concurrent_requests() -> None:
    state = AState()

    first = rotate(state, "one", only_first=True)
    second = rotate(state, "two", only_first=True)

    assert (first.key, get_key_states(state)) == (second.key, {"one": "active"})


def test_the_active_key_becomes_inactive_in_the_write_of_the_next() -> None:
    state = AState()
    rotate(state, "one")
    late = keyring.rotate_key(state.replica, KeyRotationRequest(make_key(state, "late")))
    rotate(state, "two")

    with pytest.raises(Refused):
        state.do(late)

    assert get_key_states(state) == {"one": "inactive", "two": "active"}


def test_a_write_encrypted_with_a_key_that_becomes_inactive_meanwhile_conflicts() -> None:
    state = AState()
    rotate(state, "one")
    late = put_variable(state.replica, VariableKey("default", "db"), SealedData(b"x", "one"), state.moment)
    rotate(state, "two")

    with pytest.raises(Refused):
        state.do(late)

    assert state.replica.count_records(VARIABLES) == 0


def test_a_full_rotation_continues_after_an_interruption() -> None:
    state = AState()
    rotate(state, "one")
    for number in range(5):
        store_variable(state, f"v{number}", "one")
    rotate(state, "two", full=True)
    steps = 0

    while step := keyring.list_records_to_reencrypt(state.replica, max_records=2):
        decided = keyring.reencrypt_records(state.replica, [(item, SealedData(b"again", "two")) for item in step])
        state.do(decided)
        with pytest.raises(Refused):
            state.do(decided)  # The same step again, as after a crash, conflicts.
        steps += 1

    finished = keyring.finish_reencryption(state.replica)
    assert finished is not None
    state.do(finished)
    assert (steps, get_key_states(state)) == (3, {"one": "inactive", "two": "active"})
    assert {variable.data for variable in state.replica.iter_all(VARIABLES)} == {b"again"}


def test_every_encrypted_field_counts_as_use_of_its_key() -> None:
    state = AState()
    rotate(state, "one")
    desired = Token(accessor_id="a", type=TokenType.MANAGEMENT)
    state.do(
        tokens.create_token(
            state.replica,
            desired,
            NewSecret("digest", SealedData(b"s", "one")),
            state.moment,
            limits=LifetimeLimits(),
            owns_global_records=True,
        )
    )
    rotate(state, "two")
    before = state.replica.index

    with pytest.raises(Refusal) as caught:
        keyring.delete_key(state.replica, "one")

    assert (caught.value.text, state.replica.index) == ("root key in use, cannot delete", before)


def test_a_key_is_collected_only_when_it_is_unused_and_long_inactive() -> None:
    state = AState()
    rotate(state, "used")
    store_variable(state, "db", "used")
    rotate(state, "unused")
    rotate(state, "active")

    early = keyring.collect_unused_keys(state.replica, state.moment, threshold_ns=HOUR)
    state.now_ns += 2 * HOUR
    due = keyring.collect_unused_keys(state.replica, state.moment, threshold_ns=HOUR)
    assert due is not None
    state.do(due)

    assert (early, get_key_states(state)) == (None, {"used": "inactive", "active": "active"})


def test_a_key_is_retained_while_identities_that_it_signed_may_be_valid() -> None:
    state = AState()
    rotate(state, "old")
    lives = an_allocation(a_job("web"), create_time=state.now_ns - HOUR)
    state.put(ALLOCATIONS.build_put(lives))
    state.now_ns += 1
    rotate(state, "active")
    state.now_ns += 2 * HOUR

    stored = keyring.collect_unused_keys(state.replica, state.moment, threshold_ns=HOUR)
    state.put(ALLOCATIONS.build_put(replace(lives, client_status=ClientStatus.COMPLETE)))
    due = keyring.collect_unused_keys(state.replica, state.moment, threshold_ns=HOUR)

    assert (stored, due is not None) == (None, True)


def test_a_rotation_is_due_if_the_clock_was_set_back_by_more_than_the_age_of_a_key() -> None:
    state = AState()
    rotate(state, "one")

    state.now_ns -= 2 * HOUR

    assert keyring.is_rotation_due(state.replica, state.moment, threshold_ns=HOUR)


def test_a_rotation_is_due_when_the_active_key_is_too_old() -> None:
    state = AState()
    rotate(state, "one")
    before = keyring.is_rotation_due(state.replica, state.moment, threshold_ns=HOUR)

    state.now_ns += HOUR + 1

    assert (before, keyring.is_rotation_due(state.replica, state.moment, threshold_ns=HOUR)) == (False, True)


def test_the_last_of_several_due_keys_becomes_active() -> None:
    state = AState()
    rotate(state, "one")
    rotate(state, "two", publish_time_ns=state.now_ns + 1)
    rotate(state, "three", publish_time_ns=state.now_ns + 2)
    state.now_ns += HOUR

    due = keyring.activate_prepublished_key(state.replica, state.moment)
    assert due is not None
    state.do(due)

    assert get_key_states(state) == {"one": "inactive", "two": "inactive", "three": "active"}
    assert keyring.activate_prepublished_key(state.replica, state.moment) is None


def test_only_expired_tokens_are_collected_in_batches() -> None:
    state = AState()
    rotate(state, "one")
    for number in range(5):
        desired = Token(accessor_id=f"a{number}", type=TokenType.MANAGEMENT, expiration_ttl=HOUR if number < 4 else 0)
        secret = NewSecret(f"d{number}", SealedData(b"s", "one"))
        state.do(
            tokens.create_token(
                state.replica, desired, secret, state.moment, limits=LifetimeLimits(), owns_global_records=True
            )
        )
    state.now_ns += 3 * HOUR
    counts = []

    while decided := tokens.collect_expired_tokens(state.replica, state.moment, threshold_ns=HOUR, max_tokens=3):
        state.do(decided)
        counts.append(state.replica.count_records(ACL_TOKENS))

    assert (counts, [token.accessor_id for token in state.replica.iter_all(ACL_TOKENS)]) == ([2, 1], ["a4"])


def test_a_token_that_changed_meanwhile_is_not_collected() -> None:
    state = AState()
    rotate(state, "one")
    desired = Token(accessor_id="a", type=TokenType.MANAGEMENT, expiration_ttl=HOUR)
    created = state.do(
        tokens.create_token(
            state.replica,
            desired,
            NewSecret("d", SealedData(b"s", "one")),
            state.moment,
            limits=LifetimeLimits(),
            owns_global_records=True,
        )
    )
    state.now_ns += 3 * HOUR
    decided = tokens.collect_expired_tokens(state.replica, state.moment, threshold_ns=HOUR, max_tokens=3)
    assert decided is not None
    state.put(ACL_TOKENS.build_put(replace(created.token, name="changed", create_index=WRITE_INDEX)))

    with pytest.raises(Refused):
        state.do(decided)
    assert KeyState.ACTIVE in get_key_states(state).values()


def test_nothing_is_written_if_no_key_is_wrapped_again_and_no_record_is_encrypted_again() -> None:
    state = AState()
    rotate(state, "one")

    assert keyring.rewrap_keys(state.replica, []) is None
    assert keyring.reencrypt_records(state.replica, []).write is None


def test_keys_that_were_wrapped_again_are_stored_unless_they_changed_meanwhile() -> None:
    state = AState()
    rotate(state, "one")
    (key,) = state.replica.iter_all(KEYRING)
    decision = keyring.rewrap_keys(state.replica, [replace(key, wrapped=b"again", wrapped_with="other")])
    outdated = keyring.rewrap_keys(state.replica, [replace(key, wrapped=b"outdated")])
    assert decision is not None
    assert outdated is not None
    state.do(decision)

    with pytest.raises(Refused):
        state.do(outdated)
    (stored,) = state.replica.iter_all(KEYRING)
    assert (stored.wrapped, stored.wrapped_with) == (b"again", "other")


@pytest.mark.parametrize("full", [True, False])
def test_a_full_rotation_re_encrypts_with_all_older_keys_and_another_one_with_none(full: bool) -> None:
    state = AState()
    states = {"a": KeyState.INACTIVE, "b": KeyState.DEPRECATED, "c": KeyState.REKEYING, "d": KeyState.ACTIVE}
    for name, key_state in states.items():
        state.put(KEYRING.build_put(replace(make_key(state, name), state=key_state, create_index=WRITE_INDEX)))

    rotate(state, "new", full=full)

    assert get_key_states(state) == (
        {"a": "rekeying", "b": "rekeying", "c": "rekeying", "d": "rekeying", "new": "active"}
        if full
        else {**states, "d": "inactive", "new": "active"}
    )
