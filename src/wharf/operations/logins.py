"""Logins: from what somebody has proven elsewhere to a token here (reference 5.3, rules 5 and 6)."""

from wharf.access import MappedClaims, bind, method_named, token_name
from wharf.model.auth_method import AuthMethod, AuthMethodType, TokenLocality
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.content import content_hash
from wharf.model.moment import Moment, to_time
from wharf.model.refusal import invalid
from wharf.model.secret import NewSecret
from wharf.model.token import Token
from wharf.operations.decision import Decision
from wharf.operations.tokens import TokenWritten, with_secret, written
from wharf.state import Replica
from wharf.state.tables import ACL_AUTH_METHODS, ACL_TOKENS, KEYRING


def method_of_type(snapshot: Replica, name: str, kind: AuthMethodType) -> AuthMethod:
    """The method by its name; without one, the default of its type."""
    if not name:
        defaults = [one for one in snapshot.all(ACL_AUTH_METHODS) if one.default and one.type == kind]
        if not defaults:
            raise invalid(f"missing auth method name, and no default of type {kind} is there")
        return defaults[0]
    method = method_named(snapshot, name)
    if method.type != kind:
        raise invalid(f'auth-method "{name}" is of type {method.type}, not {kind}')
    return method


def log_in(
    snapshot: Replica,
    method: AuthMethod,
    claims: MappedClaims,
    accessor_id: str,
    secret: NewSecret,
    moment: Moment,
) -> Decision[TokenWritten]:
    """A token with what the rules of the method give for these claims, for as long as the method says.

    `method` is the one that the claims were checked by: if it was written since, they must be checked again.
    """
    if snapshot.version(ACL_AUTH_METHODS, method.name) != method.modify_index:
        raise invalid(f'auth-method "{method.name}" was changed during this login; log in again')
    bound = bind(snapshot, method, claims)
    token = Token(
        accessor_id=accessor_id,
        name=token_name(method, claims),
        type=bound.type,
        policies=bound.policies or None,
        roles=bound.roles or None,
        global_=method.token_locality == TokenLocality.GLOBAL,
        create_time=to_time(moment.now_ns),
        expiration_time=to_time(moment.now_ns + method.max_token_ttl),
        expiration_ttl=method.max_token_ttl,
        create_index=THIS,
    )
    token = with_secret(token, secret, hash_=content_hash(token))
    write = Write(
        "logged-in",
        Cause(CauseKind.REQUEST),
        [ACL_TOKENS.put(token)],
        [
            snapshot.as_seen(ACL_TOKENS, accessor_id),
            snapshot.unchanged(ACL_AUTH_METHODS, method),
            snapshot.as_seen(KEYRING, secret.sealed.key_id),
        ],
    )
    return Decision(write, written(token))
