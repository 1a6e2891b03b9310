"""Logins: from what somebody has proven elsewhere to a token here (reference 5.3, rules 5 and 6)."""

from wharf.cluster.access import MappedClaims, bind_claims, build_token_name, find_auth_method
from wharf.cluster.operations.acl.tokens import TokenWriteResult, add_token_secret, make_token_reply
from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_TOKENS, KEYRING
from wharf.contract.model.acl.auth_methods import AuthMethod, AuthMethodType, TokenLocality
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.record import hash_content
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.secrets import NewSecret
from wharf.contract.model.times import DecisionContext, to_datetime


def find_login_method(snapshot: Replica, name: str, kind: AuthMethodType) -> AuthMethod:
    """The method by its name; without one, the default of its type."""
    if not name:
        defaults = [one for one in snapshot.iter_all(ACL_AUTH_METHODS) if one.default and one.type == kind]
        if not defaults:
            raise invalid_request(f"missing auth method name, and no default of type {kind} is there")
        return defaults[0]
    method = find_auth_method(snapshot, name)
    if method.type != kind:
        raise invalid_request(f'auth-method "{name}" is of type {method.type}, not {kind}')
    return method


def create_login_token(
    snapshot: Replica,
    method: AuthMethod,
    claims: MappedClaims,
    accessor_id: str,
    secret: NewSecret,
    context: DecisionContext,
) -> Decision[TokenWriteResult]:
    """A token with what the rules of the method give for these claims, for as long as the method says.

    `method` is the one that the claims were checked by: if it was written since, they must be checked again.
    """
    if snapshot.get_version(ACL_AUTH_METHODS, method.name) != method.modify_index:
        raise invalid_request(f'auth-method "{method.name}" was changed during this login; log in again')
    bound = bind_claims(snapshot, method, claims)
    token = Token(
        accessor_id=accessor_id,
        name=build_token_name(method, claims),
        type=bound.type,
        policies=bound.policies or None,
        roles=bound.roles or None,
        global_=method.token_locality == TokenLocality.GLOBAL,
        create_time=to_datetime(context.now_ns),
        expiration_time=to_datetime(context.now_ns + method.max_token_ttl),
        expiration_ttl=method.max_token_ttl,
        create_index=WRITE_INDEX,
    )
    token = add_token_secret(token, secret, token_hash=hash_content(token))
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
