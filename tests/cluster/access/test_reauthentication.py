"""The caller of a long request is authenticated again."""

from msgspec.structs import replace

from tests.kit.state import SECOND_NS, AState
from wharf.cluster.access import (
    UNCHECKED_CALLER,
    Caller,
    CallerKind,
    TokenSecret,
    authenticate_caller,
    reauthenticate_caller,
)
from wharf.cluster.state.tables import ACL_POLICIES, ACL_TOKENS
from wharf.contract.model.acl.policies import ANONYMOUS_POLICY, Policy
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import to_datetime

READ = 'namespace "default" { policy = "read" }'


def make_caller(**fields: object) -> tuple[AState, Caller]:
    state = AState()
    token = Token(accessor_id="acc", secret_digest="digest", policies=("reader",), create_index=WRITE_INDEX, **fields)  # type: ignore[arg-type]
    state.put(
        ACL_POLICIES.build_put(Policy(name="reader", rules=READ, create_index=WRITE_INDEX)), ACL_TOKENS.build_put(token)
    )
    return state, authenticate_caller(state.replica, TokenSecret("digest"), state.moment)


def reauthenticate(state: AState, caller: Caller) -> Caller:
    return reauthenticate_caller(state.replica, caller, state.moment)


def test_an_unchecked_caller_is_not_checked_again() -> None:
    assert reauthenticate(AState(), UNCHECKED_CALLER) is UNCHECKED_CALLER


def test_a_token_has_the_rights_that_its_policies_give_now() -> None:
    state, caller = make_caller()
    policy = state.replica.get(ACL_POLICIES, "reader")
    assert policy is not None
    state.put(ACL_POLICIES.build_put(replace(policy, rules="")))

    assert caller.rights.allows_any_in("default")
    assert not reauthenticate(state, caller).rights.allows_any_in("default")


def test_a_token_that_was_deleted_is_unknown() -> None:
    state, caller = make_caller()
    state.put(ACL_TOKENS.build_delete("acc"))

    assert reauthenticate(state, caller).kind is CallerKind.UNKNOWN


def test_a_token_that_was_created_again_with_another_secret_is_unknown_to_the_holder_of_the_first_secret() -> None:
    state, caller = make_caller()
    token = state.replica.get(ACL_TOKENS, "acc")
    assert token is not None
    state.put(ACL_TOKENS.build_delete("acc"))
    state.put(ACL_TOKENS.build_put(replace(token, secret_digest="other", create_index=WRITE_INDEX)))

    assert reauthenticate(state, caller).kind is CallerKind.UNKNOWN


def test_a_token_that_expired_meanwhile_is_refused() -> None:
    state = AState()
    state, caller = make_caller(expiration_time=to_datetime(state.now_ns + SECOND_NS))
    state.now_ns += SECOND_NS

    assert (caller.is_refused, reauthenticate(state, caller).is_refused) == (False, True)


def test_an_anonymous_caller_gets_the_current_anonymous_rights() -> None:
    state = AState()
    caller = authenticate_caller(state.replica, None, state.moment)
    state.put(ACL_POLICIES.build_put(Policy(name=ANONYMOUS_POLICY, rules=READ, create_index=WRITE_INDEX)))

    assert reauthenticate(state, caller).rights.allows_any_in("default")
