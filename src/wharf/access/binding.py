"""Binding rules: what somebody who logs in gets, by the claims that the login proved (reference 5.3).

All rules of the method that match add up. A rule that cannot be understood or filled in for somebody binds nothing.
"""

from typing import Final

import msgspec

from wharf.access.claims import MappedClaims
from wharf.access.placeholders import fill, names_in
from wharf.filters import FilterError, Subject, compile_filter
from wharf.model.auth_method import DEFAULT_NAME_FORMAT, AuthMethod
from wharf.model.binding_rule import BindingRule, BindType
from wharf.model.naming import MAX_NAME_LENGTH
from wharf.model.refusal import invalid
from wharf.model.token import RoleLink, TokenType
from wharf.state import Replica
from wharf.state.tables import ACL_AUTH_METHODS, ACL_POLICIES, ROLES_BY_NAME, RULES_OF_METHOD

_SUBJECT: Final = Subject(MappedClaims)
_VALUE: Final = "value."


class Bindings(msgspec.Struct, frozen=True, kw_only=True):
    """What the token of a login carries. A management token carries nothing else."""

    type: TokenType
    roles: tuple[RoleLink, ...] = ()
    policies: tuple[str, ...] = ()


def method_named(snapshot: Replica, name: str) -> AuthMethod:
    method = snapshot.get(ACL_AUTH_METHODS, name)
    if method is None:
        raise invalid(f'auth-method "{name}" not found')
    return method


def bind(snapshot: Replica, method: AuthMethod, claims: MappedClaims) -> Bindings:
    """What these claims give by the rules of the method, or a refusal where that is nothing."""
    rules = [rule for rule in snapshot.those_by_key(RULES_OF_METHOD, method.name) if selects(rule, claims)]
    if any(rule.bind_type == BindType.MANAGEMENT for rule in rules):
        return Bindings(type=TokenType.MANAGEMENT)
    roles: dict[str, RoleLink] = {}
    policies: dict[str, None] = {}
    for rule in rules:
        name = bound_name(rule, claims)
        if name is None:
            continue
        if rule.bind_type == BindType.POLICY and snapshot.get(ACL_POLICIES, name) is not None:
            policies[name] = None
        if rule.bind_type == BindType.ROLE:
            roles |= {role.id: RoleLink(id=role.id, name=role.name) for role in snapshot.those(ROLES_BY_NAME, name)}
    if not roles and not policies:
        raise invalid("no role or policy bindings matched")
    return Bindings(
        type=TokenType.CLIENT,
        roles=tuple(sorted(roles.values(), key=lambda link: link.name)),
        policies=tuple(sorted(policies)),
    )


def selects(rule: BindingRule, claims: MappedClaims) -> bool:
    """Whether the rule is about whoever has these claims. One without a selector is about everybody."""
    if not rule.selector.strip():
        return True
    try:
        return compile_filter(rule.selector, _SUBJECT).accepts(claims)
    except FilterError:
        return False


def bound_name(rule: BindingRule, claims: MappedClaims) -> str | None:
    """The role or policy that the rule gives; None where a claim is missing of which its name is made."""
    return fill(rule.bind_name, _values(claims))


def token_name(method: AuthMethod, claims: MappedClaims) -> str:
    """What the token of a login is called."""
    known = {"auth_method_type": method.type, "auth_method_name": method.name, **_values(claims)}
    name = fill(method.token_name_format, known) or fill(DEFAULT_NAME_FORMAT, known) or method.name
    return name[:MAX_NAME_LENGTH]


def rule_problems(rule: BindingRule) -> list[str]:
    """What is wrong with the selector and the bind name of a rule that somebody wants to write."""
    found = []
    if rule.selector.strip():
        try:
            compile_filter(rule.selector, _SUBJECT)
        except FilterError as error:
            found.append(f"selector is invalid: {error.text}")
    names = names_in(rule.bind_name)
    if names is None:
        found.append("bind name is invalid: every ${ needs its }")
    wrong = [name for name in names or () if not name.startswith(_VALUE) or name == _VALUE]
    return found + [f"bind name is invalid: ${{{name}}} is no claim; write ${{value.NAME}}" for name in wrong]


def _values(claims: MappedClaims) -> dict[str, str]:
    return {f"{_VALUE}{name}": value for name, value in claims.values.items()}
