"""Binding rules at a login: mapped claims, selectors, bind names, and the resulting bindings (reference 5.3, rules 5, 6)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.state import AState
from wharf.cluster.access import (
    MappedClaims,
    TokenBindings,
    bind_claims,
    build_token_name,
    find_auth_method,
    find_binding_rule_problems,
    map_claims,
)
from wharf.cluster.access.binding_rules import fill_bind_name, matches_selector
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_BINDING_RULES, ACL_POLICIES, ACL_ROLES
from wharf.contract.model.acl.auth_methods import AuthMethod, AuthMethodConfig
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.acl.tokens import RoleLink, TokenType
from wharf.contract.model.body_limits import find_name_problem
from wharf.contract.model.refusal import Refusal, RefusalCode

ADA = MappedClaims({"name": "ada", "team": "payments"}, {"groups": ("developers", "on-call")})
METHOD = AuthMethod(name="sso", type="OIDC")


def a_rule(selector: str = "", bind_type: str = "policy", bind_name: str = "readers", id: str = "r1") -> BindingRule:
    return BindingRule(id=id, auth_method="sso", selector=selector, bind_type=bind_type, bind_name=bind_name)


@pytest.fixture
def state() -> AState:
    state = AState()
    state.put(
        ACL_AUTH_METHODS.build_put(METHOD),
        ACL_POLICIES.build_put(Policy(name="readers")),
        ACL_POLICIES.build_put(Policy(name="team-payments")),
        ACL_ROLES.build_put(Role(id="1", name="developers")),
        ACL_ROLES.build_put(Role(id="2", name="operators")),
    )
    return state


def bind(state: AState, *rules: BindingRule) -> TokenBindings:
    state.put(*map(ACL_BINDING_RULES.build_put, rules))
    return bind_claims(state.replica, METHOD, ADA)


def refusal(state: AState, *rules: BindingRule) -> str:
    with pytest.raises(Refusal) as caught:
        bind(state, *rules)
    assert caught.value.code is RefusalCode.INVALID
    return caught.value.text


# -- rules ---------------------------------------------------------------------------------------------------------


def test_the_bindings_of_all_matching_rules_are_combined(state: AState) -> None:
    rules = (
        a_rule(id="1"),
        a_rule('"developers" in list.groups', "role", "developers", id="2"),
        a_rule('value.team == "payments"', "policy", "team-${value.team}", id="3"),
        a_rule('"managers" in list.groups', "management", "", id="4"),
        a_rule('value.name == "bob"', "role", "operators", id="5"),
    )

    assert TokenBindings(
        type=TokenType.CLIENT, roles=(RoleLink(id="1", name="developers"),), policies=("readers", "team-payments")
    ) == bind(state, *rules)


def test_a_rule_for_management_overrides_all_other_bindings(state: AState) -> None:
    assert TokenBindings(type=TokenType.MANAGEMENT) == bind(state, a_rule(id="1"), a_rule("", "management", "", id="2"))


def test_rules_of_other_methods_do_not_apply(state: AState) -> None:
    other_rule = BindingRule(id="9", auth_method="other", bind_type="management")

    assert refusal(state, other_rule) == "no role or policy bindings matched"


def test_a_login_without_a_matching_rule_is_refused(state: AState) -> None:
    assert refusal(state, a_rule('value.name == "bob"')) == "no role or policy bindings matched"


def test_missing_roles_and_policies_are_ignored(state: AState) -> None:
    rules_without_target = (a_rule(bind_name="gone", id="1"), a_rule("", "role", "gone", id="2"))

    assert refusal(state, *rules_without_target) == "no role or policy bindings matched"
    assert TokenBindings(type=TokenType.CLIENT, policies=("readers",)) == bind(state, a_rule(id="3"))


def test_an_unknown_auth_method_is_an_error(state: AState) -> None:
    assert METHOD.name == find_auth_method(state.replica, "sso").name
    with pytest.raises(Refusal, match='auth-method "x" not found') as caught:
        find_auth_method(state.replica, "x")
    assert caught.value.code is RefusalCode.INVALID


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", True),
        (" ", True),
        ('value.name == "ada"', True),
        ('value.name != "ada"', False),
        ('"on-call" in list.groups', True),
        ('"on-call" not in list.groups', False),
        ('value.name matches "^a" and list.groups is not empty', True),
        ('any list.groups as g { g matches "^dev" }', True),
        # A claim that is missing has no value.
        ('value.email == "ada@example.org"', False),
        ("value.email is empty", True),
        ('"x" in list.other', False),
        # An invalid selector matches no login, even if it is negated.
        ('not value.name.first == "x"', False),
        ("value.name ==", False),
        ('groups == "x"', False),
    ],
)
def test_a_selector_matches_mapped_claims(selector: str, selected: bool) -> None:
    assert selected is matches_selector(a_rule(selector), ADA)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("readers", "readers"),
        ("${value.team}", "payments"),
        ("a-${value.team}-${ value.name }-b", "a-payments-ada-b"),
        ("${value.other}", None),
        ("${list.groups}", None),
        ("${value.team", None),
        ("$value.team", "$value.team"),
    ],
)
def test_a_bind_name_is_filled_in_or_the_rule_binds_nothing(text: str, name: str | None) -> None:
    assert name == fill_bind_name(a_rule(bind_name=text), ADA)


def test_variables_in_the_value_of_a_claim_are_not_replaced() -> None:
    claims = MappedClaims({"a": "${value.b}", "b": "admin"})

    assert fill_bind_name(a_rule(bind_name="${value.a}"), claims) == "${value.b}"


@pytest.mark.parametrize(
    ("rule", "problems"),
    [
        (a_rule('value.team == "x"', bind_name="a-${value.team}"), []),
        (a_rule("value.team = x"), ['selector is invalid: 1:12 (11): no match found, expected: "!=", "==", "contains", "in", "is", "matches" or "not"; write "=="']),
        (a_rule('team == "x"'), ["selector is invalid: 1:1 (0): error finding value in datum: /team at part 0: couldn't find key: struct field with name \"team\" in MappedClaims; the fields are list, value"]),
        (a_rule(bind_name="${team}"), ["bind name is invalid: ${team} is no claim; write ${value.NAME}"]),
        (a_rule(bind_name="${list.groups}"), ["bind name is invalid: ${list.groups} is no claim; write ${value.NAME}"]),
        (a_rule(bind_name="${value.team"), ["bind name is invalid: every ${ needs its }"]),
        (a_rule(bind_name=""), ["bind name is missing"]),
    ],
)  # fmt: skip
def test_an_invalid_binding_rule_is_rejected_when_it_is_stored(rule: BindingRule, problems: list[str]) -> None:
    assert problems == find_binding_rule_problems(rule)


# -- the name of the token -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("${auth_method_type}-${auth_method_name}", "OIDC-sso"),
        ("${auth_method_name}/${value.name}", "sso/ada"),
        ("${value.other}", "OIDC-sso"),
        ("", "OIDC-sso"),
        ("x" * 300, "x" * 256),
    ],
)
def test_a_token_is_named_by_the_format_of_its_method(format: str, name: str) -> None:
    assert name == build_token_name(AuthMethod(name="sso", type="OIDC", token_name_format=format), ADA)


def test_characters_of_a_claim_that_no_name_may_have_are_replaced_in_the_name_of_the_token() -> None:
    method = AuthMethod(name="sso", type="OIDC", token_name_format="${value.name}")
    claims = MappedClaims({"name": "ada\nroot\u202e" + "\u00e9" * 200}, {})

    name = build_token_name(method, claims)

    assert name == "ada_root_" + "\u00e9" * 122
    assert "" == find_name_problem(name)


# -- claims --------------------------------------------------------------------------------------------------------

CLAIMS = {
    "sub": "ada", "admin": True, "level": 3, "half": 1.5, "whole": 2.0, "groups": ["a", 1, None, {"x": 1}], "empty": [],
    "org": {"name": "acme", "a/b": {"~": "deep"}, "teams": ["x", "y"]}, "nothing": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("sub", "ada"), ("admin", "true"), ("level", "3"), ("half", "1.5"), ("whole", "2"), ("/org/name", "acme"),
        ("/org/a~1b/~0", "deep"), ("/org/teams/1", "y"), ("/org/teams/2", None), (f"/org/teams/{'1' * 5_000}", None), ("/org/teams/x", None), ("gone", None),
        ("/org/gone/x", None), ("groups", None), ("org", None), ("nothing", None), ("/sub/x", None),
    ],
)  # fmt: skip
def test_a_scalar_claim_is_mapped_to_a_text(source: str, value: str | None) -> None:
    mapped = map_claims(AuthMethodConfig(claim_mappings={source: "target"}), CLAIMS)

    assert ({} if value is None else {"target": value}) == mapped.values


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("groups", ("a", "1")),
        ("/org/teams", ("x", "y")),
        ("sub", ("ada",)),
        ("empty", ()),
        ("gone", None),
        ("org", None),
    ],
)
def test_a_claim_is_mapped_to_a_list_of_texts_if_possible(source: str, values: tuple[str, ...] | None) -> None:
    mapped = map_claims(AuthMethodConfig(list_claim_mappings={source: "target"}), CLAIMS)

    assert ({} if values is None else {"target": values}) == mapped.lists


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab/~"), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from("ab"), JSON),
    st.sampled_from(["a", "/a", "/a/b", "/a/0", "/a/~1", "/", "", "/a/-1"]),
)
def test_any_claims_are_mapped(claims: dict[str, object], source: str) -> None:
    mapped = map_claims(AuthMethodConfig(claim_mappings={source: "v"}, list_claim_mappings={source: "l"}), claims)

    assert {type(value) for value in (*mapped.values.values(), *mapped.lists.get("l", ()))} <= {str}
    assert json.dumps(mapped.values)
