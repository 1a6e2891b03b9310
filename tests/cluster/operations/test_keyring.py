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
from wharf.contract.model.acl.tokens import Token, TokenType
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.cluster import KeyringKey, KeyState
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.secrets import NewSecret, SealedData
from wharf.contract.model.times import HOUR


def a_key(state: AState, name: str) -> KeyringKey:
    return KeyringKey(key_id=name, wrapped=name.encode(), wrapped_with="w", create_time=state.now_ns)


def rotated(state: AState, name: str, **options: Any) -> keyring.KeyringWriteResult:
    return state.do(keyring.rotate_key(state.replica, KeyRotationRequest(a_key(state, name), **options)))


def states(state: AState) -> dict[str, str]:
    return {key.key_id: key.state for key in state.replica.iter_all(KEYRING)}


def a_variable(state: AState, path: str, key_id: str) -> None:
    state.do(put_variable(state.replica, VariableKey("default", path), SealedData(b"sealed", key_id), state.moment))


def test_the_first_key_is_made_once_however_many_ask() -> None:
    state = AState()

    first = rotated(state, "one", only_first=True)
    second = rotated(state, "two", only_first=True)

    assert (first.key, states(state)) == (second.key, {"one": "active"})


def test_a_key_in_force_steps_down_in_the_write_that_brings_the_next() -> None:
    state = AState()
    rotated(state, "one")
    late = keyring.rotate_key(state.replica, KeyRotationRequest(a_key(state, "late")))
    rotated(state, "two")

    with pytest.raises(Refused):
        state.do(late)

    assert states(state) == {"one": "inactive", "two": "active"}


def test_what_is_sealed_with_a_key_that_steps_down_meanwhile_is_not_written() -> None:
    state = AState()
    rotated(state, "one")
    late = put_variable(state.replica, VariableKey("default", "db"), SealedData(b"x", "one"), state.moment)
    rotated(state, "two")

    with pytest.raises(Refused):
        state.do(late)

    assert state.replica.count_records(VARIABLES) == 0


def test_a_full_rotation_goes_on_from_wherever_it_was_left() -> None:
    state = AState()
    rotated(state, "one")
    for number in range(5):
        a_variable(state, f"v{number}", "one")
    rotated(state, "two", full=True)
    steps = 0

    while step := keyring.list_records_to_reencrypt(state.replica, max_records=2):
        decided = keyring.reencrypt_records(state.replica, [(item, SealedData(b"again", "two")) for item in step])
        state.do(decided)
        with pytest.raises(Refused):
            state.do(decided)  # The same step again, as after a crash: it finds that it was made.
        steps += 1

    finished = keyring.finish_reencryption(state.replica)
    assert finished is not None
    state.do(finished)
    assert (steps, states(state)) == (3, {"one": "inactive", "two": "active"})
    assert {variable.data for variable in state.replica.iter_all(VARIABLES)} == {b"again"}


def test_every_sealed_text_counts_as_use_of_its_key() -> None:
    state = AState()
    rotated(state, "one")
    wanted = Token(accessor_id="a", type=TokenType.MANAGEMENT)
    state.do(tokens.create_token(state.replica, wanted, NewSecret("digest", SealedData(b"s", "one")), state.moment))
    rotated(state, "two")
    before = state.replica.index

    with pytest.raises(Refusal) as refused:
        keyring.delete_key(state.replica, "one")

    assert (refused.value.text, state.replica.index) == ("root key in use, cannot delete", before)


def test_a_key_is_collected_only_when_it_is_unused_and_long_out_of_force() -> None:
    state = AState()
    rotated(state, "used")
    a_variable(state, "db", "used")
    rotated(state, "unused")
    rotated(state, "active")

    early = keyring.collect_unused_keys(state.replica, state.moment, threshold_ns=HOUR)
    state.now_ns += 2 * HOUR
    due = keyring.collect_unused_keys(state.replica, state.moment, threshold_ns=HOUR)
    assert due is not None
    state.do(due)

    assert (early, states(state)) == (None, {"used": "inactive", "active": "active"})


def test_a_key_stays_while_a_task_may_hold_an_identity_that_it_signed() -> None:
    state = AState()
    rotated(state, "old")
    lives = an_allocation(a_job("web"), create_time=state.now_ns - HOUR)
    state.put(ALLOCATIONS.build_put(lives))
    state.now_ns += 1
    rotated(state, "active")
    state.now_ns += 2 * HOUR

    kept = keyring.collect_unused_keys(state.replica, state.moment, threshold_ns=HOUR)
    state.put(ALLOCATIONS.build_put(replace(lives, client_status=ClientStatus.COMPLETE)))
    due = keyring.collect_unused_keys(state.replica, state.moment, threshold_ns=HOUR)

    assert (kept, due is not None) == (None, True)


def test_a_rotation_is_due_when_the_key_in_force_is_too_old() -> None:
    state = AState()
    rotated(state, "one")
    before = keyring.is_rotation_due(state.replica, state.moment, threshold_ns=HOUR)

    state.now_ns += HOUR + 1

    assert (before, keyring.is_rotation_due(state.replica, state.moment, threshold_ns=HOUR)) == (False, True)


def test_of_several_keys_that_are_due_the_last_one_is_put_in_force() -> None:
    state = AState()
    rotated(state, "one")
    rotated(state, "two", publish_time_ns=state.now_ns + 1)
    rotated(state, "three", publish_time_ns=state.now_ns + 2)
    state.now_ns += HOUR

    due = keyring.activate_prepublished_key(state.replica, state.moment)
    assert due is not None
    state.do(due)

    assert states(state) == {"one": "inactive", "two": "inactive", "three": "active"}
    assert keyring.activate_prepublished_key(state.replica, state.moment) is None


def test_expired_tokens_are_collected_in_batches_and_others_stay() -> None:
    state = AState()
    rotated(state, "one")
    for number in range(5):
        wanted = Token(accessor_id=f"a{number}", type=TokenType.MANAGEMENT, expiration_ttl=HOUR if number < 4 else 0)
        secret = NewSecret(f"d{number}", SealedData(b"s", "one"))
        state.do(tokens.create_token(state.replica, wanted, secret, state.moment))
    state.now_ns += 3 * HOUR
    counts = []

    while decided := tokens.collect_expired_tokens(state.replica, state.moment, threshold_ns=HOUR, max_tokens=3):
        state.do(decided)
        counts.append(state.replica.count_records(ACL_TOKENS))

    assert (counts, [token.accessor_id for token in state.replica.iter_all(ACL_TOKENS)]) == ([2, 1], ["a4"])


def test_a_token_that_was_changed_meanwhile_is_not_collected_with_the_others() -> None:
    state = AState()
    rotated(state, "one")
    wanted = Token(accessor_id="a", type=TokenType.MANAGEMENT, expiration_ttl=HOUR)
    made = state.do(tokens.create_token(state.replica, wanted, NewSecret("d", SealedData(b"s", "one")), state.moment))
    state.now_ns += 3 * HOUR
    decided = tokens.collect_expired_tokens(state.replica, state.moment, threshold_ns=HOUR, max_tokens=3)
    assert decided is not None
    state.put(ACL_TOKENS.build_put(replace(made.token, name="changed", create_index=WRITE_INDEX)))

    with pytest.raises(Refused):
        state.do(decided)
    assert KeyState.ACTIVE in states(state).values()
