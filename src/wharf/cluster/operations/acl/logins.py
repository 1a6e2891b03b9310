"""Logins: exchange the verified claims of an identity provider for an ACL token (reference 5.3, rules 5 and 6)."""

from wharf.cluster.access import MappedClaims, bind_claims, build_token_name, find_auth_method
from wharf.cluster.access.binding_rules import RuleTest
from wharf.cluster.operations.acl.tokens import (
    TokenWriteResult,
    add_token_secret,
    check_token_region,
    make_token_reply,
)
from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_TOKENS, KEYRING
from wharf.contract.model.acl.auth_methods import AuthMethod, AuthMethodType, TokenLocality
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.secrets import NewSecret
from wharf.contract.model.times import DecisionContext, to_datetime


def find_login_method(snapshot: Replica, name: str, method_type: AuthMethodType) -> AuthMethod:
    """Return the auth method with this name, or the default method of the type if no name is given.

    Raises if there is no such method, or if the named method has another type.
    """
    if not name:
        defaults = [
            method for method in snapshot.iter_all(ACL_AUTH_METHODS) if method.default and method.type == method_type
        ]
        if not defaults:
            raise invalid_request(f"missing auth method name, and no default auth method of type {method_type} exists")
        return defaults[0]
    method = find_auth_method(snapshot, name)
    if method.type != method_type:
        raise invalid_request(f'auth-method "{name}" is of type {method.type}, not {method_type}')
    return method


def create_login_token(
    snapshot: Replica,
    method: AuthMethod,
    claims: MappedClaims,
    accessor_id: str,
    secret: NewSecret,
    context: DecisionContext,
    *,
    owns_global_records: bool,
    matches: RuleTest | None = None,
) -> Decision[TokenWriteResult]:
    """Return the decision that creates a token with the roles and policies that binding rules grant for these claims.

    The token expires after the `max_token_ttl` of the auth method. `method` is the auth method that verified the
    claims; if it was changed since, the login is refused and the claims must be verified again. `matches` returns whether
    a binding rule applies.
    """
    if snapshot.get_version(ACL_AUTH_METHODS, method.name) != method.modify_index:
        raise invalid_request(f'auth-method "{method.name}" was changed during this login; log in again')
    binding = bind_claims(snapshot, method, claims, matches=matches)
    token = Token(
        accessor_id=accessor_id,
        name=build_token_name(method, claims),
        type=binding.type,
        policies=binding.policies or None,
        roles=binding.roles or None,
        global_=method.token_locality == TokenLocality.GLOBAL,
        create_time=to_datetime(context.now_ns),
        expiration_time=to_datetime(context.now_ns + method.max_token_ttl),
        expiration_ttl=method.max_token_ttl,
        create_index=WRITE_INDEX,
    )
    check_token_region(token, owns_global_records=owns_global_records)
    token = add_token_secret(token, secret)
    write = Write(
        "logged-in",
        Cause(CauseKind.REQUEST),
        [ACL_TOKENS.build_put(token)],
        [
            snapshot.build_key_condition(ACL_TOKENS, accessor_id),
            snapshot.build_record_condition(ACL_AUTH_METHODS, method),
            snapshot.build_key_condition(KEYRING, secret.sealed.key_id),
        ],
    )
    return Decision(write, make_token_reply(token))
