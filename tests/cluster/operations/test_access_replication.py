"""Replication of access control as one set: no caller has rights in between that the source never granted."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit.state import AState
from wharf.cluster.access import (
    NO_RIGHTS,
    MappedClaims,
    Rights,
    TokenSecret,
    authenticate_caller,
    bind_claims,
    get_rights,
)
from wharf.cluster.access.identities import WorkloadClaims, list_workload_policies
from wharf.cluster.operations.access_replication import (
    CLOSED_RULES,
    AccessRecords,
    WriteSize,
    build_access_write,
    build_token_write,
    list_effective_rules,
)
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_BINDING_RULES, ACL_POLICIES, ACL_ROLES, ACL_TOKENS
from wharf.contract.model.acl.auth_methods import AuthMethod
from wharf.contract.model.acl.binding_rules import BindingRule, BindType
from wharf.contract.model.acl.policies import JobACL, Policy
from wharf.contract.model.acl.roles import PolicyLink, Role
from wharf.contract.model.acl.tokens import RoleLink, Token, TokenType
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.record import hash_content
from wharf.contract.model.refusal import Refusal

NAMES = ("a", "b", "c", "d", "e")
CAPABILITIES = ("deny", "read", "write")
LARGE = WriteSize(changes=1_000)


def make_policy(name: str, policy: str, job: str = "") -> Policy:
    job_acl = JobACL(namespace="default", job_id=job) if job else None
    made = Policy(name=name, rules=f'namespace "default" {{ policy = "{policy}" }}', job_acl=job_acl)
    return replace(made, hash=hash_content(made))


def make_role(name: str, policies: tuple[str, ...]) -> Role:
    role = Role(id=f"id-{name}", name=name, policies=tuple(PolicyLink(name=each) for each in policies))
    return replace(role, hash=hash_content(role))


def make_method(name: str, description: str = "") -> AuthMethod:
    method = AuthMethod(name=name, type="JWT", token_name_format=description)
    return replace(method, hash=hash_content(method))


def make_rule(rule_id: str, method: str, bind_type: str, bind_name: str) -> BindingRule:
    rule = BindingRule(id=rule_id, auth_method=method, bind_type=bind_type, bind_name=bind_name)
    return replace(rule, hash=hash_content(rule))


def make_token(name: str, policies: tuple[str, ...], roles: tuple[str, ...], *, is_global: bool = True) -> Token:
    token = Token(
        accessor_id=name,
        secret_digest=f"digest of {name}",
        type=TokenType.CLIENT,
        policies=policies,
        roles=tuple(RoleLink(id=f"id-{role}") for role in roles),
        global_=is_global,
    )
    return replace(token, hash=hash_content(token))


def make_source(
    policies: list[Policy],
    roles: list[Role] | None = None,
    methods: list[AuthMethod] | None = None,
    rules: list[BindingRule] | None = None,
    tokens: list[Token] | None = None,
) -> AccessRecords:
    by_table: dict[str, Sequence[Any]] = {
        ACL_POLICIES.name: policies,
        ACL_ROLES.name: roles or [],
        ACL_AUTH_METHODS.name: methods or [],
        ACL_BINDING_RULES.name: rules or [],
    }
    return AccessRecords(by_table, tokens or [])


def choose(random: Random, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if random.random() < 0.5)


def make_random_source(random: Random) -> AccessRecords:
    return make_source(
        [
            make_policy(name, random.choice(CAPABILITIES), random.choice(("", "web", "db")))
            for name in choose(random, NAMES)
        ],
        [make_role(name, choose(random, NAMES)) for name in choose(random, NAMES)],
        [make_method("m", random.choice(("x", "y")))] if random.random() < 0.8 else [],
        [
            make_rule(f"{kind}-{name}", "m", kind, name)
            for name in choose(random, NAMES)
            for kind in (BindType.POLICY, BindType.ROLE)
        ],
        [make_token(name, choose(random, NAMES), choose(random, NAMES)) for name in choose(random, NAMES)],
    )


def apply(state: AState, source: AccessRecords, size: WriteSize) -> Iterator[None]:
    """Apply the source; yield after each write."""
    for _ in range(1_000):
        write = build_access_write(state.replica, source, region="main", size=size)
        if write is None:
            return
        assert len(write.changes) <= size.changes
        state.commit(write)
        yield
    raise AssertionError("the writes do not end")


def read_rights(state: AState) -> dict[str, Rights]:
    """Return the rights of each token, job and caller without a token."""
    found = {
        token.accessor_id: authenticate_caller(state.replica, TokenSecret(token.secret_digest), state.moment).rights
        for token in state.replica.iter_all(ACL_TOKENS)
    }
    found["anonymous"] = authenticate_caller(state.replica, None, state.moment).rights
    for job in ("web", "db"):
        claims = WorkloadClaims(namespace="default", job_id=job, task="t", alloc_id="x")
        found[job] = get_rights(policy.rules for policy in list_workload_policies(state.replica, claims, "g"))
    return found


def read_login(state: AState) -> object:
    """Return the names that a login grants, or `None` if it is refused."""
    method = state.replica.get(ACL_AUTH_METHODS, "m")
    if method is None:
        return None
    try:
        bound = bind_claims(state.replica, method, MappedClaims(values={}, lists={}))
    except Refusal:
        return None
    return bound.policies, tuple(role.name for role in bound.roles), method.token_name_format


def put_local_tokens(state: AState) -> None:
    """Store tokens of this region only, with all policies and roles that may exist."""
    tokens = [
        make_token("local", NAMES, (), is_global=False),
        make_token("local-roles", (), NAMES, is_global=False),
        make_token("local-both", NAMES[:2], NAMES[2:], is_global=False),
    ]
    state.put(*(ACL_TOKENS.build_put(replace(token, create_index=WRITE_INDEX)) for token in tokens))


@pytest.mark.parametrize("size", [WriteSize(1), WriteSize(2), WriteSize(7), WriteSize(1_000, 300), LARGE])
@pytest.mark.parametrize("seed", range(25))
def test_no_caller_has_rights_in_between_that_the_source_never_granted(seed: int, size: WriteSize) -> None:
    random = Random(seed)
    sources = [make_random_source(random) for _ in range(3)]
    state, target = AState(), AState()
    put_local_tokens(state)
    put_local_tokens(target)
    for _ in apply(state, sources[0], LARGE):
        pass
    for source in sources[1:]:
        before, login_before = read_rights(state), read_login(state)
        for _ in apply(target, source, LARGE):
            pass
        after, login_after = read_rights(target), read_login(target)

        for _ in apply(state, source, size):
            for caller, rights in read_rights(state).items():
                assert rights is NO_RIGHTS or rights in (before.get(caller), after.get(caller)), caller
            assert read_login(state) in (None, login_before, login_after)

        assert read_rights(state) == after
        assert read_login(state) == login_after
        assert all(policy.rules != CLOSED_RULES for policy in state.replica.iter_all(ACL_POLICIES))


def test_a_set_that_fits_is_applied_in_one_write() -> None:
    state = AState()
    list(apply(state, make_source([make_policy("a", "write")], tokens=[make_token("t", ("a",), ())]), LARGE))
    source = make_source([make_policy("a", "read"), make_policy("b", "deny")], [make_role("r", ("b",))])

    assert len(list(apply(state, source, LARGE))) == 1
    assert state.replica.get(ACL_TOKENS, "t") is None


def test_a_binding_rule_that_arrived_before_its_method_has_an_effect() -> None:
    state = AState()
    rule = make_rule("one", "m", BindType.POLICY, "a")
    state.put(ACL_BINDING_RULES.build_put(replace(rule, create_index=WRITE_INDEX)))
    state.put(ACL_AUTH_METHODS.build_put(replace(make_method("m"), create_index=WRITE_INDEX)))
    source = make_source([make_policy("a", "read")], methods=[make_method("m")], rules=[rule])

    list(apply(state, source, LARGE))

    assert read_login(state) == (("a",), (), "")


def test_binding_rules_without_effect_in_the_source_are_not_replicated() -> None:
    methods = [replace(make_method("m"), create_index=5)]
    rules = [
        replace(make_rule("old", "m", BindType.POLICY, "a"), create_index=4),
        replace(make_rule("new", "m", BindType.POLICY, "a"), create_index=5),
        replace(make_rule("orphan", "other", BindType.POLICY, "a"), create_index=9),
    ]

    assert [rule.id for rule in list_effective_rules(rules, methods)] == ["new"]


def test_new_tokens_are_stored_in_writes_of_a_limited_size() -> None:
    state = AState()
    tokens = [make_token(name, ("a",), ()) for name in NAMES]
    counts = []
    while (write := build_token_write(state.replica, tokens, region="main", size=WriteSize(2))) is not None:
        counts.append(len(write.changes))
        state.commit(write)

    assert counts == [2, 2, 1]
