"""Decisions about ACL tokens and the bootstrap: what they check, and on which records they depend."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.state import SECOND_NS, AState, Refused
from wharf.cluster.access import Caller, TokenSecret, authenticate_caller
from wharf.cluster.operations.acl import auth_methods, bootstrap, roles, tokens
from wharf.cluster.operations.acl.tokens import (
    MAX_ONE_TIME_TOKENS,
    MAX_ONE_TIME_TOKENS_PER_TOKEN,
    ONE_TIME_TOKEN_TTL_NS,
    OneTimeTokenWriteResult,
    TokenWriteResult,
)
from wharf.cluster.operations.decision import Decision
from wharf.cluster.state.tables import (
    ACL_AUTH_METHODS,
    ACL_BINDING_RULES,
    ACL_BOOTSTRAP,
    ACL_POLICIES,
    ACL_ROLES,
    ACL_TOKENS,
    KEYRING,
    ONE_TIME_TOKENS,
)
from wharf.contract.model.acl.auth_methods import (
    DEFAULT_TOKEN_NAME_FORMAT,
    AuthMethod,
    AuthMethodConfig,
    AuthMethodType,
    TokenLocality,
)
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.roles import PolicyLink, Role
from wharf.contract.model.acl.tokens import LifetimeLimits, OneTimeToken, RoleLink, Token, TokenType
from wharf.contract.model.cluster import KeyringKey
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.secrets import NewSecret, SealedData
from wharf.contract.model.times import HOUR, to_datetime


def make_state() -> AState:
    """Return a state with a key, two policies, and the roles r1 (reader) and r2 (writer)."""
    state = AState()
    state.put(
        KEYRING.build_put(KeyringKey(key_id="one", create_index=WRITE_INDEX)),
        *(ACL_POLICIES.build_put(Policy(name=name, create_index=WRITE_INDEX)) for name in ("read", "write")),
        ACL_ROLES.build_put(Role(id="r1", name="reader", create_index=WRITE_INDEX)),
        ACL_ROLES.build_put(Role(id="r2", name="writer", create_index=WRITE_INDEX)),
    )
    return state


def decide_token(state: AState, **fields: Any) -> Decision[TokenWriteResult]:
    requested = Token(accessor_id="t1", name="ci", type=TokenType.CLIENT, **fields)
    secret = NewSecret("digest", SealedData(b"sealed", "one"))
    return tokens.create_token(
        state.replica, requested, secret, state.moment, limits=LifetimeLimits(), owns_global_records=True
    )


def test_a_region_that_is_not_authoritative_writes_no_global_token() -> None:
    state = make_state()
    stored = state.do(decide_token(state, policies=("read",), global_=True)).token
    secret = NewSecret("another", SealedData(b"sealed", "one"))
    new = replace(stored, accessor_id="t2")
    decisions: list[Callable[[], object]] = [
        lambda: tokens.create_token(
            state.replica, new, secret, state.moment, limits=LifetimeLimits(), owns_global_records=False
        ),
        lambda: tokens.update_token(state.replica, replace(stored, policies=("write",)), owns_global_records=False),
        lambda: tokens.delete_token(state.replica, "t1", owns_global_records=False),
    ]

    for decide in decisions:
        with pytest.raises(Refusal) as refused:
            decide()
        assert refused.value.code is RefusalCode.CONFLICT


def test_roles_of_a_token_are_found_by_id_or_name_and_occur_once() -> None:
    state = make_state()
    links = (RoleLink(name="writer"), RoleLink(id="r1"), RoleLink(id="r2"), RoleLink(id="r1", name="writer"))

    token = state.do(decide_token(state, roles=links, policies=("read", "write", "read"))).token

    assert [link.id for link in token.roles or ()] == ["r2", "r1"]
    assert token.policies == ("read", "write")


def test_a_token_without_roles_and_one_without_policies_store_none() -> None:
    state = make_state()

    assert state.do(decide_token(state, policies=("read",))).token.roles is None
    state.put(ACL_TOKENS.build_delete("t1"))
    assert state.do(decide_token(state, roles=(RoleLink(id="r1"),))).token.policies is None


@pytest.mark.parametrize(
    "link", [RoleLink(id="r9"), RoleLink(name="unknown"), RoleLink(id="r9", name="reader"), RoleLink()]
)
def test_a_token_with_an_unknown_role_is_refused(link: RoleLink) -> None:
    state = make_state()

    with pytest.raises(Refusal) as caught:
        decide_token(state, roles=(link,))

    assert caught.value.text == f"cannot find role {link.id or link.name}"


@pytest.mark.parametrize("deleted", ["r1", "r2"])
def test_a_token_is_not_created_if_one_of_its_roles_was_deleted_meanwhile(deleted: str) -> None:
    state = make_state()
    decision = decide_token(state, roles=(RoleLink(id="r1"), RoleLink(name="writer")))
    state.do(roles.delete_role(state.replica, deleted))

    with pytest.raises(Refused):
        state.do(decision)


def test_a_token_is_not_created_if_the_key_of_its_secret_was_deleted_meanwhile() -> None:
    state = make_state()
    decision = decide_token(state, policies=("read",))
    state.put(KEYRING.build_delete("one"))

    with pytest.raises(Refused):
        state.do(decision)


def test_a_role_without_policies_is_refused() -> None:
    state = make_state()

    with pytest.raises(Refusal):
        roles.store_role(state.replica, Role(id="", name="empty", policies=None), state.world.new_id)


def test_a_role_is_not_stored_if_one_of_its_policies_was_deleted_meanwhile() -> None:
    state = make_state()
    links = (PolicyLink(name="read"), PolicyLink(name="write"), PolicyLink(name="read"))
    decision = roles.store_role(state.replica, Role(id="", name="both", policies=links), state.world.new_id)
    state.put(ACL_POLICIES.build_delete("write"))

    with pytest.raises(Refused):
        state.do(decision)


# -- expiration


def put_expired(state: AState, count: int, one_time_count: int) -> None:
    expired = to_datetime(state.now_ns - SECOND_NS)
    state.put(
        *(
            ACL_TOKENS.build_put(Token(accessor_id=f"t{number}", expiration_time=expired, create_index=WRITE_INDEX))
            for number in range(count)
        ),
        *(
            ONE_TIME_TOKENS.build_put(
                OneTimeToken(secret_digest=f"o{number}", accessor_id="x", expires_at=expired, create_index=WRITE_INDEX)
            )
            for number in range(one_time_count)
        ),
    )


@pytest.mark.parametrize(
    ("max_tokens", "deleted"),
    [
        (1, ["t0"]),
        (2, ["t0", "t1"]),
        (3, ["o0", "t0", "t1"]),
        (4, ["o0", "o1", "t0", "t1"]),
        (9, ["o0", "o1", "t0", "t1"]),
    ],
)
def test_expired_tokens_are_collected_up_to_the_limit_of_a_write(max_tokens: int, deleted: list[str]) -> None:
    state = AState()
    put_expired(state, 2, 2)

    decision = tokens.collect_expired_tokens(state.replica, state.moment, threshold_ns=0, max_tokens=max_tokens)

    assert decision is not None
    assert decision.write is not None
    assert sorted(change.key for change in decision.write.changes) == deleted


def test_nothing_is_collected_while_no_token_has_expired() -> None:
    state = AState()
    put_expired(state, 1, 0)

    assert tokens.collect_expired_tokens(state.replica, state.moment, threshold_ns=2 * SECOND_NS, max_tokens=9) is None


@pytest.mark.parametrize("is_deleted", [True, False])
@pytest.mark.parametrize("after_us", [0, 1])
def test_a_one_time_secret_is_exchanged_until_it_expires_for_a_token_that_exists(
    is_deleted: bool, after_us: int
) -> None:
    state = AState()
    one_time = OneTimeToken(
        secret_digest="o",
        accessor_id="t1",
        expires_at=to_datetime(state.now_ns + after_us * 1_000),
        create_index=WRITE_INDEX,
    )
    state.put(ONE_TIME_TOKENS.build_put(one_time))
    if not is_deleted:
        state.put(ACL_TOKENS.build_put(Token(accessor_id="t1", create_index=WRITE_INDEX)))

    if is_deleted or not after_us:
        with pytest.raises(Refusal):
            tokens.exchange_one_time_token(state.replica, "o", state.moment)
        return
    exchanged = state.do(tokens.exchange_one_time_token(state.replica, "o", state.moment))
    assert (exchanged.token.accessor_id, state.replica.count_records(ONE_TIME_TOKENS)) == ("t1", 0)


def make_one_time_caller(state: AState) -> Caller:
    token = Token(accessor_id="t1", type=TokenType.MANAGEMENT, secret_digest="first", create_index=WRITE_INDEX)
    state.put(ACL_TOKENS.build_put(token))
    return authenticate_caller(state.replica, TokenSecret("first"), state.moment)


def create_one_time(state: AState, caller: Caller, digest: str) -> Decision[OneTimeTokenWriteResult]:
    return tokens.create_one_time_token(state.replica, caller, digest, state.moment)


def test_a_one_time_secret_is_not_exchanged_for_a_later_token_with_the_same_accessor_id() -> None:
    state = make_state()
    state.do(create_one_time(state, make_one_time_caller(state), "o"))
    state.put(ACL_TOKENS.build_delete("t1"))
    state.put(ACL_TOKENS.build_put(Token(accessor_id="t1", secret_digest="second", create_index=WRITE_INDEX)))

    with pytest.raises(Refusal) as refused:
        tokens.exchange_one_time_token(state.replica, "o", state.moment)
    assert refused.value.code is RefusalCode.FORBIDDEN


def test_a_token_has_a_limited_number_of_one_time_secrets_until_they_expire() -> None:
    state = make_state()
    caller = make_one_time_caller(state)
    for number in range(MAX_ONE_TIME_TOKENS_PER_TOKEN):
        state.do(create_one_time(state, caller, f"o{number}"))
    with pytest.raises(Refusal) as refused:
        create_one_time(state, caller, "more")

    state.now_ns += ONE_TIME_TOKEN_TTL_NS
    state.do(create_one_time(state, caller, "later"))

    assert refused.value.code is RefusalCode.RATE_LIMITED
    assert [each.secret_digest for each in state.replica.iter_all(ONE_TIME_TOKENS)] == ["later"]


def test_one_time_secrets_that_are_created_at_the_same_time_do_not_exceed_the_limit_together() -> None:
    state = make_state()
    caller = make_one_time_caller(state)
    decisions = [create_one_time(state, caller, f"o{number}") for number in range(2)]
    state.do(decisions[0])

    with pytest.raises(Refused):
        state.do(decisions[1])


def test_a_cluster_has_a_limited_number_of_one_time_secrets() -> None:
    state = make_state()
    expires = to_datetime(state.now_ns + HOUR)
    for start in range(0, MAX_ONE_TIME_TOKENS, 1_000):
        state.put(
            *(
                ONE_TIME_TOKENS.build_put(
                    OneTimeToken(secret_digest=f"o{number}", accessor_id=f"t-{number}", expires_at=expires)
                )
                for number in range(start, start + 1_000)
            )
        )

    with pytest.raises(Refusal) as refused:
        create_one_time(state, make_one_time_caller(state), "more")
    assert (refused.value.code, "the cluster has 5000" in refused.value.text) == (RefusalCode.RATE_LIMITED, True)


# -- bootstrap


def bootstrap_again(state: AState, reset_text: str | None) -> TokenWriteResult:
    secret = NewSecret("second", SealedData(b"sealed", "one"))
    return state.do(bootstrap.bootstrap_acl(state.replica, "t2", secret, state.moment, reset_text=reset_text))


@pytest.mark.parametrize(
    ("reset_text", "is_accepted"),
    [
        ("{index}", True),
        (" {index}\n", True),
        ("{index}0", False),
        ("0", False),
        ("", False),
        ("x{index}", False),
        ("²", False),
        ("٣", False),
        ("1" * 5_000, False),
        (None, False),
    ],
)
def test_a_repeated_bootstrap_needs_the_index_of_the_last_one(reset_text: str | None, is_accepted: bool) -> None:
    state = make_state()
    first = NewSecret("first", SealedData(b"sealed", "one"))
    state.do(bootstrap.bootstrap_acl(state.replica, "t1", first, state.moment))
    stored = state.replica.get(ACL_BOOTSTRAP)
    assert stored is not None
    text = None if reset_text is None else reset_text.format(index=stored.modify_index)

    if is_accepted:
        assert bootstrap_again(state, text).token.type is TokenType.MANAGEMENT
        assert state.replica.count_records(ACL_TOKENS) == 2
    else:
        with pytest.raises(Refusal):
            bootstrap_again(state, text)


# -- auth methods


def store_method(
    state: AState, name: str = "corp", *, sealed_secrets: SealedData | None = None, **fields: Any
) -> AuthMethod:
    arguments: dict[str, Any] = {
        "type": AuthMethodType.JWT,
        "token_locality": TokenLocality.LOCAL,
        "max_token_ttl": HOUR,
        "config": AuthMethodConfig(jwt_validation_pub_keys=("key",)),
        **fields,
    }
    decision = auth_methods.store_auth_method(
        state.replica,
        AuthMethod(name=name, **arguments),
        state.moment,
        sealed_secrets=sealed_secrets,
        limits=LifetimeLimits(),
    )
    return state.do(decision).method


def test_the_secrets_of_an_auth_method_stay_until_a_request_replaces_them() -> None:
    state = make_state()
    first = store_method(state, sealed_secrets=SealedData(b"first", "one"))
    state.now_ns += SECOND_NS

    kept = store_method(state, max_token_ttl=2 * HOUR)
    replaced = store_method(state, sealed_secrets=SealedData(b"second", "one"))

    assert [method.secrets_sealed for method in (first, kept, replaced)] == [b"first", b"first", b"second"]
    assert first.secrets_stamp == kept.secrets_stamp != replaced.secrets_stamp
    assert (kept.create_time, kept.create_index) == (first.create_time, first.create_index)
    assert kept.modify_time == to_datetime(state.now_ns)


def test_an_auth_method_without_secrets_names_its_tokens_by_default() -> None:
    method = store_method(make_state(), token_name_format="")

    assert (method.token_name_format, method.secrets_sealed, method.sealed_with) == (DEFAULT_TOKEN_NAME_FORMAT, b"", "")
    assert store_method(make_state(), token_name_format="ci").token_name_format == "ci"


def test_each_type_has_at_most_one_default_auth_method() -> None:
    state = make_state()
    store_method(state, "corp", default=True)
    store_method(state, "corp", default=True, max_token_ttl=2 * HOUR)
    store_method(state, "second", default=False)

    with pytest.raises(Refusal) as caught:
        store_method(state, "third", default=True)

    assert caught.value.text == "default auth method for type JWT already exists: corp"


@pytest.mark.parametrize(("max_changes", "is_deleted"), [(2, False), (3, True)])
def test_an_auth_method_is_deleted_with_its_rules_if_they_fit_in_one_write(max_changes: int, is_deleted: bool) -> None:
    state = make_state()
    store_method(state)
    store_method(state, "other")
    for number, method in enumerate(("corp", "corp", "other")):
        state.put(
            ACL_BINDING_RULES.build_put(BindingRule(id=f"b{number}", auth_method=method, create_index=WRITE_INDEX))
        )

    if is_deleted:
        state.do(auth_methods.delete_auth_method(state.replica, "corp", max_changes=max_changes))
    else:
        with pytest.raises(Refusal):
            auth_methods.delete_auth_method(state.replica, "corp", max_changes=max_changes)

    left = [method.name for method in state.replica.iter_all(ACL_AUTH_METHODS)]
    assert left == (["other"] if is_deleted else ["corp", "other"])
    assert state.replica.count_records(ACL_BINDING_RULES) == (1 if is_deleted else 3)


def test_an_updated_token_keeps_its_secret_and_is_not_stored_if_it_changed_meanwhile() -> None:
    state = make_state()
    stored = state.do(decide_token(state, policies=("read",))).token
    requested = Token(accessor_id="t1", name="changed", type=TokenType.CLIENT, policies=("write",))
    decisions = [tokens.update_token(state.replica, requested, owns_global_records=True) for _ in range(2)]

    updated = state.do(decisions[0]).token

    with pytest.raises(Refused):
        state.do(decisions[1])
    assert (updated.name, updated.policies, updated.secret_digest) == ("changed", ("write",), stored.secret_digest)
    assert (updated.hash != stored.hash, updated.create_index) == (True, stored.create_index)
