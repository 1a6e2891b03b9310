"""A caller that goes on for long is looked at again."""

from msgspec.structs import replace

from tests.kit.state import SECOND_NS, AState
from wharf.access import UNCHECKED, Caller, CallerKind, Secret, who_is, who_is_it_now
from wharf.model.changes import THIS
from wharf.model.moment import to_time
from wharf.model.policy import ANONYMOUS, Policy
from wharf.model.token import Token
from wharf.state.tables import ACL_POLICIES, ACL_TOKENS

READ = 'namespace "default" { policy = "read" }'


def with_token(**fields: object) -> tuple[AState, Caller]:
    state = AState()
    token = Token(accessor_id="acc", secret_digest="digest", policies=("reader",), create_index=THIS, **fields)  # type: ignore[arg-type]
    state.put(ACL_POLICIES.put(Policy(name="reader", rules=READ, create_index=THIS)), ACL_TOKENS.put(token))
    return state, who_is(state.replica, Secret("digest"), state.moment)


def now(state: AState, caller: Caller) -> Caller:
    return who_is_it_now(state.replica, caller, state.moment)


def test_whoever_was_not_checked_is_not_checked_again() -> None:
    assert now(AState(), UNCHECKED) is UNCHECKED


def test_a_token_has_the_rights_that_its_policies_give_now() -> None:
    state, caller = with_token()
    policy = state.replica.get(ACL_POLICIES, "reader")
    assert policy is not None
    state.put(ACL_POLICIES.put(replace(policy, rules="")))

    assert caller.rights.allows_any_in("default")
    assert not now(state, caller).rights.allows_any_in("default")


def test_a_token_that_was_deleted_is_unknown() -> None:
    state, caller = with_token()
    state.put(ACL_TOKENS.drop("acc"))

    assert now(state, caller).kind is CallerKind.UNKNOWN


def test_a_token_that_expired_meanwhile_is_refused() -> None:
    state = AState()
    state, caller = with_token(expiration_time=to_time(state.now_ns + SECOND_NS))
    state.now_ns += SECOND_NS

    assert (caller.is_refused, now(state, caller).is_refused) == (False, True)


def test_whoever_came_without_a_token_has_what_anybody_has_now() -> None:
    state = AState()
    caller = who_is(state.replica, None, state.moment)
    state.put(ACL_POLICIES.put(Policy(name=ANONYMOUS, rules=READ, create_index=THIS)))

    assert now(state, caller).rights.allows_any_in("default")
