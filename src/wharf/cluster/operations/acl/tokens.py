"""What people do to tokens: make, change and delete them, pass one on for once; and what time does (reference 5.2, 5.3).

Secrets come in as a digest and a sealed text: nothing here ever holds one.
"""

import datetime
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from wharf.cluster.access import Caller, CallerKind, build_denial
from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ACL_ROLES,
    ACL_TOKENS,
    KEYRING,
    ONE_TIME_TOKENS,
    ROLES_BY_NAME,
    TOKENS_BY_EXPIRY,
    TOKENS_BY_SECRET,
)
from wharf.contract.model.acl import tokens
from wharf.contract.model.acl.tokens import DEFAULT_LIFETIME_LIMITS, LifetimeLimits, OneTimeToken, RoleLink, Token
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, Write
from wharf.contract.model.record import hash_content
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.secrets import NewSecret
from wharf.contract.model.times import MINUTE, DecisionContext, to_datetime, to_ns

replace = msgspec.structs.replace

ONE_TIME_TOKEN_TTL_NS: Final = 10 * MINUTE


class TokenWriteResult(msgspec.Struct, frozen=True):
    """The token as it stands now."""

    index: int
    token: Token


class OneTimeTokenWriteResult(msgspec.Struct, frozen=True):
    index: int
    one_time_token: OneTimeToken


def create_token(
    snapshot: Replica,
    requested: Token,
    secret: NewSecret,
    context: DecisionContext,
    *,
    limits: LifetimeLimits = DEFAULT_LIFETIME_LIMITS,
) -> Decision[TokenWriteResult]:
    """A new token, under the accessor that `wanted` names; one that exists already is refused."""
    if snapshot.get(ACL_TOKENS, requested.accessor_id) is not None:
        raise invalid_request(f"token {requested.accessor_id} exists already")
    if snapshot.list_by_index(TOKENS_BY_SECRET, secret.digest):
        raise invalid_request("the secret is in use by another token")
    now = to_datetime(context.now_ns)
    linked, conditions = _resolve_roles(snapshot, requested)
    _refuse(tokens.list_token_problems(linked, stored=None, now=now, limits=limits))
    token = replace(
        linked, create_time=now, expiration_time=_end_of(linked, now), create_index=WRITE_INDEX, modify_index=0
    )
    token = add_token_secret(token, secret, token_hash=hash_content(token))
    conditions += [
        snapshot.build_key_condition(ACL_TOKENS, token.accessor_id),
        snapshot.build_key_condition(KEYRING, secret.sealed.key_id),
    ]
    write = Write("token-stored", Cause(CauseKind.REQUEST), [ACL_TOKENS.build_put(token)], conditions)
    return Decision(write, make_token_reply(token))


def update_token(snapshot: Replica, requested: Token, context: DecisionContext) -> Decision[TokenWriteResult]:
    """Name, kind and rights of a token. Its secret, its reach and its end stay as they were made."""
    stored = snapshot.get(ACL_TOKENS, requested.accessor_id)
    if stored is None:
        raise invalid_request(f"cannot find token {requested.accessor_id}")
    linked, conditions = _resolve_roles(snapshot, requested)
    _refuse(tokens.list_token_problems(linked, stored=stored, now=to_datetime(context.now_ns)))
    token = replace(stored, name=linked.name, type=linked.type, policies=linked.policies, roles=linked.roles)
    token = replace(token, hash=hash_content(replace(token, hash=b"")))
    conditions.append(snapshot.build_record_condition(ACL_TOKENS, stored))
    write = Write("token-stored", Cause(CauseKind.REQUEST), [ACL_TOKENS.build_put(token)], conditions)
    return Decision(write, make_token_reply(token))


def delete_token(snapshot: Replica, accessor_id: str) -> Decision[int]:
    if snapshot.get(ACL_TOKENS, accessor_id) is None:
        raise invalid_request(f"Cannot delete nonexistent tokens: {accessor_id}")
    write = Write(
        "token-deleted",
        Cause(CauseKind.REQUEST),
        [ACL_TOKENS.build_delete(accessor_id)],
        [snapshot.build_key_condition(ACL_TOKENS, accessor_id)],
    )
    return Decision(write, lambda index: index)


# -- once ------------------------------------------------------------------------------------------------------------


def create_one_time_token(
    snapshot: Replica, caller: Caller, digest: str, context: DecisionContext
) -> Decision[OneTimeTokenWriteResult]:
    """A secret that stands for the caller's token once, for ten minutes."""
    if caller.token is None or caller.is_refused:
        raise build_denial(caller)
    one_time = OneTimeToken(
        secret_digest=digest,
        accessor_id=caller.token.accessor_id,
        expires_at=to_datetime(context.now_ns + ONE_TIME_TOKEN_TTL_NS),
        create_index=WRITE_INDEX,
    )
    write = Write(
        "one-time-token-made",
        Cause(CauseKind.REQUEST),
        [ONE_TIME_TOKENS.build_put(one_time)],
        [snapshot.build_record_condition(ACL_TOKENS, caller.token)],
    )
    return Decision(
        write, lambda index: OneTimeTokenWriteResult(index, replace(one_time, create_index=index, modify_index=index))
    )


def exchange_one_time_token(snapshot: Replica, digest: str, context: DecisionContext) -> Decision[TokenWriteResult]:
    """The token that a one-time secret stands for. Unknown, used and too late are one answer."""
    one_time = snapshot.get(ONE_TIME_TOKENS, digest)
    if one_time is None or one_time.expires_at <= to_datetime(context.now_ns):
        raise build_denial(UNKNOWN_CALLER)
    token = snapshot.get(ACL_TOKENS, one_time.accessor_id)
    if token is None or token.is_expired(to_datetime(context.now_ns)):
        raise build_denial(UNKNOWN_CALLER)
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


# -- time ------------------------------------------------------------------------------------------------------------


def collect_expired_tokens(
    snapshot: Replica, context: DecisionContext, *, threshold_ns: int, max_tokens: int
) -> Decision[int] | None:
    """Tokens whose end is longer ago than this, and one-time secrets that are over; None: there are none."""
    now, over = to_datetime(context.now_ns), to_datetime(context.now_ns - threshold_ns)
    drops: list[DeleteRecord] = []
    conditions: list[Condition] = []
    for token in _expired(snapshot, over):
        if len(drops) == max_tokens:
            break
        drops.append(ACL_TOKENS.build_delete(token.accessor_id))
        conditions.append(snapshot.build_record_condition(ACL_TOKENS, token))
    for one_time in snapshot.iter_all(ONE_TIME_TOKENS):
        if len(drops) == max_tokens:
            break
        if one_time.expires_at <= now:
            drops.append(ONE_TIME_TOKENS.build_delete(one_time.secret_digest))
            conditions.append(snapshot.build_record_condition(ONE_TIME_TOKENS, one_time))
    if not drops:
        return None
    return Decision(Write("tokens-collected", Cause(CauseKind.TIMER, "tokens"), drops, conditions), lambda index: index)


def _expired(snapshot: Replica, over: datetime.datetime) -> Iterable[Token]:
    last_hour = int(over.timestamp() // 3_600)
    hours = sorted(
        hour for hour in snapshot.iter_index_values(TOKENS_BY_EXPIRY) if isinstance(hour, int) and hour <= last_hour
    )
    for hour in hours:
        for token in snapshot.list_by_index_sorted(TOKENS_BY_EXPIRY, hour):
            if token.is_expired(over):
                yield token


# -- what tokens are made of -------------------------------------------------------------------------------------------


def add_token_secret(token: Token, secret: NewSecret, *, token_hash: bytes) -> Token:
    return replace(
        token,
        secret_digest=secret.digest,
        secret_sealed=secret.sealed.data,
        sealed_with=secret.sealed.key_id,
        hash=token_hash,
    )


def make_token_reply(token: Token) -> Callable[[int], TokenWriteResult]:
    """The reply that shows the token as it was written."""

    def reply(index: int) -> TokenWriteResult:
        created = index if token.create_index == WRITE_INDEX else token.create_index
        return TokenWriteResult(index, replace(token, create_index=created, modify_index=index))

    return reply


def _resolve_roles(snapshot: Replica, requested: Token) -> tuple[Token, list[Condition]]:
    """The token with the roles that it names, each by id and once, and the condition that they are still there."""
    roles: dict[str, RoleLink] = {}
    conditions = []
    for link in requested.roles or ():
        named = snapshot.list_by_index(ROLES_BY_NAME, link.name) if link.name and not link.id else []
        role = snapshot.get(ACL_ROLES, link.id) if link.id else next(iter(named), None)
        if role is None:
            raise invalid_request(f"cannot find role {link.id or link.name}")
        if role.id not in roles:
            conditions.append(snapshot.build_key_condition(ACL_ROLES, role.id))
        roles[role.id] = RoleLink(id=role.id, name=role.name)
    policies = tuple(dict.fromkeys(requested.policies or ()))
    return replace(requested, roles=tuple(roles.values()) or None, policies=policies or None), conditions


def _end_of(token: Token, now: datetime.datetime) -> datetime.datetime | None:
    if not token.expiration_ttl:
        return token.expiration_time
    return to_datetime(to_ns(now) + token.expiration_ttl)


def _refuse(problems: list[str]) -> None:
    if problems:
        raise invalid_request(
            f"token 0 invalid: {format_problems([ValidationProblem('', problem) for problem in problems])}"
        )


UNKNOWN_CALLER: Final = Caller(kind=CallerKind.UNKNOWN)
