"""Create, update and delete ACL tokens, exchange one-time tokens, and collect expired ones (reference 5.2, 5.3).

Secrets arrive as a digest and as encrypted data: no plain-text secret passes through this module.
"""

import datetime
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.access import Caller, deny
from wharf.cluster.operations.decision import Decision, build_delete_decision, set_written_index
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ACL_ROLES,
    ACL_TOKENS,
    KEYRING,
    ONE_TIME_TOKENS,
    ONE_TIME_TOKENS_OF_TOKEN,
    ROLES_BY_NAME,
    TOKENS_BY_EXPIRY,
    TOKENS_BY_SECRET,
)
from wharf.contract.model.acl import tokens
from wharf.contract.model.acl.tokens import LifetimeLimits, OneTimeToken, RoleLink, Token
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, Write
from wharf.contract.model.record import hash_content
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, permission_denied
from wharf.contract.model.secrets import NewSecret
from wharf.contract.model.times import MINUTE, SECOND, DecisionContext, has_passed, to_datetime, to_ns

ONE_TIME_TOKEN_TTL_NS: Final = 10 * MINUTE
"""Lifetime of a one-time token in nanoseconds: a leaked one soon becomes useless."""
MAX_ONE_TIME_TOKENS_PER_TOKEN: Final = 10
"""One-time tokens of one token that are not exchanged yet. A user needs one for each browser; protects the total."""
MAX_ONE_TIME_TOKENS: Final = 5_000
"""One-time tokens of all tokens; protects memory, and the time of the search for expired ones."""
UNKNOWN_ACCESSOR_TEXT: Final = "no token has this accessor ID, which is not the token's secret"
"""Does not repeat the value: it may be a secret, which a caller gave in place of the accessor ID."""


class TokenWriteResult(msgspec.Struct, frozen=True):
    """The result of a request that concerns one token."""

    index: int  # The log index of the write.
    token: Token  # As stored, with its indexes.


class OneTimeTokenWriteResult(msgspec.Struct, frozen=True):
    """The result of a request to create a one-time token."""

    index: int  # The log index of the write.
    one_time_token: OneTimeToken  # The token as stored, with the digest of its secret.


def create_token(
    snapshot: Replica,
    requested: Token,
    secret: NewSecret,
    context: DecisionContext,
    *,
    limits: LifetimeLimits,
    owns_global_records: bool,
) -> Decision[TokenWriteResult]:
    """Return the decision that creates a token under the accessor id of `requested`.

    Raises if that accessor id or the secret is in use, or if the token is invalid. `owns_global_records`: see
    `check_token_region`.
    """
    check_token_region(requested, owns_global_records=owns_global_records)
    if snapshot.get(ACL_TOKENS, requested.accessor_id) is not None:
        raise invalid_request(f"token {requested.accessor_id} exists already")
    if snapshot.list_by_index(TOKENS_BY_SECRET, secret.digest):
        raise invalid_request("the secret is in use by another token")
    now = to_datetime(context.now_ns)
    linked, conditions = _resolve_roles(snapshot, requested)
    _raise_problems(tokens.list_new_token_problems(linked, now=now, limits=limits))
    token = replace(
        linked,
        create_time=now,
        expiration_time=_compute_expiration_time(linked, now),
        create_index=WRITE_INDEX,
        modify_index=0,
    )
    token = add_token_secret(token, secret)
    conditions += [
        snapshot.build_key_condition(ACL_TOKENS, token.accessor_id),
        snapshot.build_key_condition(KEYRING, secret.sealed.key_id),
    ]
    write = Write("token-stored", Cause(CauseKind.REQUEST), [ACL_TOKENS.build_put(token)], conditions)
    return Decision(write, make_token_reply(token))


def update_token(snapshot: Replica, requested: Token, *, owns_global_records: bool) -> Decision[TokenWriteResult]:
    """Return the decision that updates the name, type, policies and roles of a token.

    Its secret, scope and expiration time never change. Raises if the token does not exist or the update is invalid.
    """
    stored = snapshot.get(ACL_TOKENS, requested.accessor_id)
    if stored is None:
        raise invalid_request(f"cannot find token: {UNKNOWN_ACCESSOR_TEXT}")
    check_token_region(stored, owns_global_records=owns_global_records)
    linked, conditions = _resolve_roles(snapshot, requested)
    _raise_problems(tokens.list_token_update_problems(linked, stored=stored))
    token = replace(stored, name=linked.name, type=linked.type, policies=linked.policies, roles=linked.roles)
    token = replace(token, hash=hash_content(token))
    conditions.append(snapshot.build_record_condition(ACL_TOKENS, stored))
    write = Write("token-stored", Cause(CauseKind.REQUEST), [ACL_TOKENS.build_put(token)], conditions)
    return Decision(write, make_token_reply(token))


def delete_token(snapshot: Replica, accessor_id: str, *, owns_global_records: bool) -> Decision[int]:
    """Return the decision that deletes the token. Raises if it does not exist."""
    stored = snapshot.get(ACL_TOKENS, accessor_id)
    if stored is None:
        raise invalid_request(f"Cannot delete nonexistent tokens: {UNKNOWN_ACCESSOR_TEXT}")
    check_token_region(stored, owns_global_records=owns_global_records)
    return build_delete_decision(
        snapshot, ACL_TOKENS, accessor_id, write_kind="token-deleted", cause=Cause(CauseKind.REQUEST)
    )


# -- one-time tokens ------------------------------------------------------------------------------------------------------------


def create_one_time_token(
    snapshot: Replica, caller: Caller, digest: str, context: DecisionContext, *, ttl_ns: int = ONE_TIME_TOKEN_TTL_NS
) -> Decision[OneTimeTokenWriteResult]:
    """Return the decision that stores a secret that can be exchanged once, within `ttl_ns`, for the caller's token.

    `digest` is the digest of this secret. Expired secrets of the token are deleted. Raises a denial if the caller has no
    valid token, and a refusal if the token, or the cluster, has too many of these secrets, or if `ttl_ns` is not between
    one second and ten minutes.
    """
    if caller.token is None or caller.is_refused:
        raise deny(caller, "a token")
    if not SECOND <= ttl_ns <= ONE_TIME_TOKEN_TTL_NS:
        raise invalid_request(f"ttl: expected a duration from 1s to {ONE_TIME_TOKEN_TTL_NS // MINUTE}m")
    of_token = snapshot.list_by_index(ONE_TIME_TOKENS_OF_TOKEN, caller.token.accessor_id)
    expired = [each for each in of_token if _is_one_time_token_expired(each, context.now_ns)]
    _check_one_time_token_limits(len(of_token) - len(expired), snapshot.count_records(ONE_TIME_TOKENS) - len(expired))
    one_time = OneTimeToken(
        secret_digest=digest,
        accessor_id=caller.token.accessor_id,
        token_digest=caller.token.secret_digest,
        expires_at=to_datetime(context.now_ns + ttl_ns),
        create_index=WRITE_INDEX,
    )
    write = Write(
        "one-time-token-made",
        Cause(CauseKind.REQUEST),
        [ONE_TIME_TOKENS.build_put(one_time), *(ONE_TIME_TOKENS.build_delete(each.secret_digest) for each in expired)],
        [
            snapshot.build_record_condition(ACL_TOKENS, caller.token),
            # Requests at the same time must not exceed the limits together.
            snapshot.build_prefix_condition(ONE_TIME_TOKENS),
            *(snapshot.build_record_condition(ONE_TIME_TOKENS, each) for each in expired),
        ],
    )
    return Decision(write, lambda index: OneTimeTokenWriteResult(index, set_written_index(one_time, index)))


def _check_one_time_token_limits(of_token: int, in_all: int) -> None:
    """Raise unless another one-time token is permitted, besides those of the same token and those of all tokens."""
    if of_token >= MAX_ONE_TIME_TOKENS_PER_TOKEN:
        owner, count = "this token", of_token
    elif in_all >= MAX_ONE_TIME_TOKENS:
        owner, count = "the cluster", in_all
    else:
        return
    raise Refusal(
        RefusalCode.RATE_LIMITED,
        f"{owner} has {count} one-time tokens that were not exchanged: exchange one, or retry when one has expired, after "
        f"at most {ONE_TIME_TOKEN_TTL_NS // MINUTE} minutes",
    )


UNUSABLE_ONE_TIME_TOKEN: Final = "the one-time token does not exist, was used already, or has expired"


def exchange_one_time_token(snapshot: Replica, digest: str, context: DecisionContext) -> Decision[TokenWriteResult]:
    """Return the decision that deletes a one-time secret and replies with the token for which it was created.

    `digest` is the digest of the secret. Unknown, used and expired secrets get the same error, so that the reply
    reveals nothing. So does a secret whose token was deleted, even if another token has its accessor id now.
    """
    one_time = snapshot.get(ONE_TIME_TOKENS, digest)
    if one_time is None or _is_one_time_token_expired(one_time, context.now_ns):
        raise permission_denied(UNUSABLE_ONE_TIME_TOKEN)
    token = snapshot.get(ACL_TOKENS, one_time.accessor_id)
    if token is None or token.secret_digest != one_time.token_digest or token.is_expired(to_datetime(context.now_ns)):
        raise permission_denied(UNUSABLE_ONE_TIME_TOKEN)
    write = Write(
        "one-time-token-exchanged",
        Cause(CauseKind.REQUEST),
        [ONE_TIME_TOKENS.build_delete(digest)],
        [
            snapshot.build_record_condition(ONE_TIME_TOKENS, one_time),
            snapshot.build_record_condition(ACL_TOKENS, token),
        ],
    )
    return Decision(write, lambda index: TokenWriteResult(index, token))


def _is_one_time_token_expired(one_time: OneTimeToken, now_ns: int) -> bool:
    """Return whether the secret can no longer be exchanged."""
    return has_passed(to_ns(one_time.expires_at), ONE_TIME_TOKEN_TTL_NS, now_ns)


# -- expiration ------------------------------------------------------------------------------------------------------------


def collect_expired_tokens(
    snapshot: Replica, context: DecisionContext, *, threshold_ns: int, max_tokens: int
) -> Decision[int] | None:
    """Return the decision that deletes up to `max_tokens` expired tokens, or `None` if there are none.

    These are tokens that expired more than `threshold_ns` ago, and all expired one-time tokens.
    """
    expired_before = to_datetime(context.now_ns - threshold_ns)
    deletions: list[DeleteRecord] = []
    conditions: list[Condition] = []
    for token in _iter_expired_tokens(snapshot, expired_before):
        if len(deletions) == max_tokens:
            break
        deletions.append(ACL_TOKENS.build_delete(token.accessor_id))
        conditions.append(snapshot.build_record_condition(ACL_TOKENS, token))
    for one_time in snapshot.iter_all(ONE_TIME_TOKENS):
        if len(deletions) == max_tokens:
            break
        if _is_one_time_token_expired(one_time, context.now_ns):
            deletions.append(ONE_TIME_TOKENS.build_delete(one_time.secret_digest))
            conditions.append(snapshot.build_record_condition(ONE_TIME_TOKENS, one_time))
    if not deletions:
        return None
    return Decision(
        Write("tokens-collected", Cause(CauseKind.TIMER, "tokens"), deletions, conditions), lambda index: index
    )


def _iter_expired_tokens(snapshot: Replica, expired_before: datetime.datetime) -> Iterable[Token]:
    """Yield the tokens that expired before this time, by the hour of their expiration, the oldest hour first.

    The index of tokens groups them by hour, so that only hours in the past are read.
    """
    last_hour = int(expired_before.timestamp() // 3_600)
    hours = sorted(
        hour for hour in snapshot.iter_index_values(TOKENS_BY_EXPIRY) if isinstance(hour, int) and hour <= last_hour
    )
    for hour in hours:
        for token in snapshot.list_by_index_sorted(TOKENS_BY_EXPIRY, hour):
            if token.expiration_time is not None and token.expiration_time <= expired_before:
                yield token


def check_token_region(token: Token, *, owns_global_records: bool) -> None:
    """Raise unless this region may write the token: only the authoritative region may write global ones.

    Servers of other regions relay such requests. This check protects against a token or auth method that becomes global
    between that choice and the write.
    """
    if token.global_ and not owns_global_records:
        raise Refusal(
            RefusalCode.CONFLICT,
            f"token {token.accessor_id} is valid in all regions, so only the authoritative region can write it: retry",
        )


# -- helpers -------------------------------------------------------------------------------------------


def add_token_secret(token: Token, secret: NewSecret) -> Token:
    """Return the token with the digest and the encrypted text of its secret, and the hash of both content and digest."""
    token = replace(
        token, secret_digest=secret.digest, secret_sealed=secret.sealed.data, sealed_with=secret.sealed.key_id
    )
    return replace(token, hash=hash_content(token))


def make_token_reply(token: Token) -> Callable[[int], TokenWriteResult]:
    """Return a function that takes the log index of the token's write and returns the reply with the stored token."""
    return lambda index: TokenWriteResult(index, set_written_index(token, index))


def _resolve_roles(snapshot: Replica, requested: Token) -> tuple[Token, list[Condition]]:
    """Return the token with complete links to its roles, and the conditions that these roles still exist at the commit.

    A role may be named by id or by name; each occurs once in the result. Duplicate policies are removed too. Raises if
    a role does not exist.
    """
    roles: dict[str, RoleLink] = {}
    conditions = []
    for link in requested.roles or ():
        roles_with_name = snapshot.list_by_index(ROLES_BY_NAME, link.name) if link.name and not link.id else []
        role = snapshot.get(ACL_ROLES, link.id) if link.id else next(iter(roles_with_name), None)
        if role is None:
            raise invalid_request(f"cannot find role {link.id or link.name}")
        if role.id not in roles:
            conditions.append(snapshot.build_key_condition(ACL_ROLES, role.id))
        roles[role.id] = RoleLink(id=role.id, name=role.name)
    policies = tuple(dict.fromkeys(requested.policies or ()))
    return replace(requested, roles=tuple(roles.values()) or None, policies=policies or None), conditions


def _compute_expiration_time(token: Token, now: datetime.datetime) -> datetime.datetime | None:
    """Return when a token created now expires: its lifetime from now, else its own expiration time, which may be
    `None`.
    """
    if not token.expiration_ttl:
        return token.expiration_time
    return to_datetime(to_ns(now) + token.expiration_ttl)


def _raise_problems(problems: list[str]) -> None:
    """Raise an error that lists the problems, if there are any."""
    if problems:
        raise invalid_request(
            f"token 0 invalid: {format_problems([ValidationProblem('', problem) for problem in problems])}"
        )
