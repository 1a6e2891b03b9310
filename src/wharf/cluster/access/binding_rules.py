"""Binding rules: the roles and policies of a login's token, from the claims that the login proved (reference 5.3).

All matching rules of the auth method add up. A rule grants nothing if its selector is invalid or a claim for its
`${name}` placeholders is missing.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from wharf.cluster.access.claims import MappedClaims
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_POLICIES, BINDING_RULES_OF_METHOD, ROLES_BY_NAME
from wharf.contract.model.acl.auth_methods import DEFAULT_TOKEN_NAME_FORMAT, AuthMethod
from wharf.contract.model.acl.binding_rules import NO_BINDINGS_TEXT, BindingRule, BindType
from wharf.contract.model.acl.tokens import RoleLink, TokenType
from wharf.contract.model.body_limits import MAX_NAME_BYTES, replace_forbidden_characters
from wharf.contract.model.refusal import invalid_request
from wharf.languages.filters import Filter, FilterError, FilterSubject, compile_filter

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_PLACEHOLDER_START: Final = "${"


def find_placeholders(text: str) -> list[str] | None:
    """Return the names of the `${name}` placeholders, in order; None if a brace is not closed."""
    if text.count(_PLACEHOLDER_START) != len(found := _PLACEHOLDER.findall(text)):
        return None
    return [name.strip() for name in found]


def fill_placeholders(text: str, values: Mapping[str, str]) -> str | None:
    """Replace every placeholder by its value; None if a value is missing."""
    names = find_placeholders(text)
    if names is None or not values.keys() >= set(names):
        return None
    return _PLACEHOLDER.sub(lambda found: values[found[1].strip()], text)


_SUBJECT: Final = FilterSubject(MappedClaims)
_VALUE_PREFIX: Final = "value."


RuleTest = Callable[[BindingRule], bool]
"""Returns whether a binding rule applies to the claims of a login."""


class TokenBindings(msgspec.Struct, frozen=True, kw_only=True):
    """Roles and policies of a login's token. A management token has neither."""

    type: TokenType
    roles: tuple[RoleLink, ...] = ()
    policies: tuple[str, ...] = ()


def find_auth_method(snapshot: Replica, name: str) -> AuthMethod:
    """Return the auth method with this name. Raises a refusal if it does not exist."""
    method = snapshot.get(ACL_AUTH_METHODS, name)
    if method is None:
        raise invalid_request(f'auth-method "{name}" not found')
    return method


def list_binding_rules(snapshot: Replica, method: AuthMethod) -> list[BindingRule]:
    """Return the binding rules of the method, in a fixed order."""
    rules = snapshot.list_by_index_sorted(BINDING_RULES_OF_METHOD, method.name)
    # A rule that is older than its method belongs to an earlier method of the same name.
    return [rule for rule in rules if rule.create_index >= method.create_index]


def bind_claims(
    snapshot: Replica, method: AuthMethod, claims: MappedClaims, *, matches: RuleTest | None = None
) -> TokenBindings:
    """Return what the matching rules of the method grant for these claims. Raises a refusal if that is nothing.

    `matches` returns whether a rule applies; by default its selector is evaluated now, which may take long.
    """
    matches = matches or (lambda rule: matches_selector(rule, claims))
    rules = [rule for rule in list_binding_rules(snapshot, method) if matches(rule)]
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
        raise invalid_request(NO_BINDINGS_TEXT)
    return TokenBindings(
        type=TokenType.CLIENT,
        roles=tuple(sorted(roles.values(), key=lambda link: link.name)),
        policies=tuple(sorted(policies)),
    )


def matches_selector(rule: BindingRule, claims: MappedClaims) -> bool:
    """Return whether the rule applies to these claims. A rule without a selector always applies."""
    try:
        selector = compile_selector(rule)
        return selector is None or selector.accepts(claims)
    except FilterError:
        return False


def compile_selector(rule: BindingRule) -> Filter | None:
    """Return the compiled selector of the rule; `None` if the rule always applies. Raises `FilterError`."""
    return compile_filter(rule.selector, _SUBJECT) if rule.selector.strip() else None


def fill_bind_name(rule: BindingRule, claims: MappedClaims) -> str | None:
    """Return the name of the role or policy that the rule grants; None if a claim for the name is missing."""
    return fill_placeholders(rule.bind_name, _build_placeholder_values(claims))


def build_token_name(method: AuthMethod, claims: MappedClaims) -> str:
    """Return the name of a login's token, from the method's format or the default format.

    The claims of a user can contain any text, so a long name is cut, and characters that no name may have are replaced.
    """
    known = {"auth_method_type": method.type, "auth_method_name": method.name, **_build_placeholder_values(claims)}
    name = (
        fill_placeholders(method.token_name_format, known)
        or fill_placeholders(DEFAULT_TOKEN_NAME_FORMAT, known)
        or method.name
    )
    return replace_forbidden_characters(name.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore"))


def find_rule_problems(rule: BindingRule) -> list[str]:
    """Return what is wrong with the selector and the bind name of a rule."""
    problems = []
    if rule.selector.strip():
        try:
            compile_filter(rule.selector, _SUBJECT)
        except FilterError as error:
            problems.append(f"selector is invalid: {error.text}")
    names = find_placeholders(rule.bind_name)
    if names is None:
        problems.append("bind name is invalid: every ${ needs its }")
    invalid_names = [name for name in names or () if not name.startswith(_VALUE_PREFIX) or name == _VALUE_PREFIX]
    return problems + [
        f"bind name is invalid: ${{{name}}} is no claim; write ${{value.NAME}}" for name in invalid_names
    ]


def _build_placeholder_values(claims: MappedClaims) -> dict[str, str]:
    """Return the claims as values for placeholders."""
    return {f"{_VALUE_PREFIX}{name}": value for name, value in claims.values.items()}
