"""`${name}` in the texts that make up a login: which role it binds to, and what its token is called.

Binding rules: what somebody who logs in gets, by the claims that the login proved (reference 5.3).

All rules of the method that match add up. A rule that cannot be understood or filled in for somebody binds nothing.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.cluster.access.claims import MappedClaims
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_POLICIES, BINDING_RULES_OF_METHOD, ROLES_BY_NAME
from wharf.contract.model.acl.auth_methods import DEFAULT_TOKEN_NAME_FORMAT, AuthMethod
from wharf.contract.model.acl.binding_rules import BindingRule, BindType
from wharf.contract.model.acl.tokens import RoleLink, TokenType
from wharf.contract.model.names import MAX_DISPLAY_NAME_CHARS
from wharf.contract.model.refusal import invalid_request
from wharf.languages.filters import FilterError, FilterSubject, compile_filter

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_OPENING: Final = "${"


def find_placeholders(text: str) -> list[str] | None:
    """The names between the braces, in order; None where a brace is not closed."""
    if text.count(_OPENING) != len(found := _PLACEHOLDER.findall(text)):
        return None
    return [name.strip() for name in found]


def fill_placeholders(text: str, values: Mapping[str, str]) -> str | None:
    """The text with every name replaced by its value; None where one has none."""
    names = find_placeholders(text)
    if names is None or not values.keys() >= set(names):
        return None
    return _PLACEHOLDER.sub(lambda found: values[found[1].strip()], text)


_SUBJECT: Final = FilterSubject(MappedClaims)
_VALUE: Final = "value."


class TokenBindings(msgspec.Struct, frozen=True, kw_only=True):
    """What the token of a login carries. A management token carries nothing else."""

    type: TokenType
    roles: tuple[RoleLink, ...] = ()
    policies: tuple[str, ...] = ()


def find_auth_method(snapshot: Replica, name: str) -> AuthMethod:
    method = snapshot.get(ACL_AUTH_METHODS, name)
    if method is None:
        raise invalid_request(f'auth-method "{name}" not found')
    return method


def bind_claims(snapshot: Replica, method: AuthMethod, claims: MappedClaims) -> TokenBindings:
    """What these claims give by the rules of the method, or a refusal where that is nothing."""
    rules = [
        rule
        for rule in snapshot.list_by_index_sorted(BINDING_RULES_OF_METHOD, method.name)
        if matches_selector(rule, claims)
    ]
    if any(rule.bind_type == BindType.MANAGEMENT for rule in rules):
        return TokenBindings(type=TokenType.MANAGEMENT)
    roles: dict[str, RoleLink] = {}
    policies: dict[str, None] = {}
    for rule in rules:
        name = fill_bind_name(rule, claims)
        if name is None:
            continue
        if rule.bind_type == BindType.POLICY and snapshot.get(ACL_POLICIES, name) is not None:
            policies[name] = None
        if rule.bind_type == BindType.ROLE:
            roles |= {
                role.id: RoleLink(id=role.id, name=role.name) for role in snapshot.list_by_index(ROLES_BY_NAME, name)
            }
    if not roles and not policies:
        raise invalid_request("no role or policy bindings matched")
    return TokenBindings(
        type=TokenType.CLIENT,
        roles=tuple(sorted(roles.values(), key=lambda link: link.name)),
        policies=tuple(sorted(policies)),
    )


def matches_selector(rule: BindingRule, claims: MappedClaims) -> bool:
    """Whether the rule is about whoever has these claims. One without a selector is about everybody."""
    if not rule.selector.strip():
        return True
    try:
        return compile_filter(rule.selector, _SUBJECT).accepts(claims)
    except FilterError:
        return False


def fill_bind_name(rule: BindingRule, claims: MappedClaims) -> str | None:
    """The role or policy that the rule gives; None where a claim is missing of which its name is made."""
    return fill_placeholders(rule.bind_name, _values(claims))


def build_token_name(method: AuthMethod, claims: MappedClaims) -> str:
    """What the token of a login is called."""
    known = {"auth_method_type": method.type, "auth_method_name": method.name, **_values(claims)}
    name = (
        fill_placeholders(method.token_name_format, known)
        or fill_placeholders(DEFAULT_TOKEN_NAME_FORMAT, known)
        or method.name
    )
    return name[:MAX_DISPLAY_NAME_CHARS]


def find_rule_problems(rule: BindingRule) -> list[str]:
    """What is wrong with the selector and the bind name of a rule that somebody wants to write."""
    found = []
    if rule.selector.strip():
        try:
            compile_filter(rule.selector, _SUBJECT)
        except FilterError as error:
            found.append(f"selector is invalid: {error.text}")
    names = find_placeholders(rule.bind_name)
    if names is None:
        found.append("bind name is invalid: every ${ needs its }")
    wrong = [name for name in names or () if not name.startswith(_VALUE) or name == _VALUE]
    return found + [f"bind name is invalid: ${{{name}}} is no claim; write ${{value.NAME}}" for name in wrong]


def _values(claims: MappedClaims) -> dict[str, str]:
    return {f"{_VALUE}{name}": value for name, value in claims.values.items()}
