"""What people do to tokens: make, change and delete them, pass one on for once; and what time does (reference 5.2, 5.3).

Secrets come in as a digest and a sealed text: nothing here ever holds one.
"""

import datetime
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from wharf.access import Caller, CallerKind, denial
from wharf.model import token as tokens
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Write
from wharf.model.content import content_hash
from wharf.model.durations import MINUTE
from wharf.model.moment import Moment, to_ns, to_time
from wharf.model.refusal import invalid
from wharf.model.secret import NewSecret
from wharf.model.token import DEFAULT_LIFETIME_BOUNDS, LifetimeBounds, OneTimeToken, RoleLink, Token
from wharf.model.validation.findings import Problem, multi_error
from wharf.operations.decision import Decision
from wharf.state import Replica
from wharf.state.tables import (
    ACL_ROLES,
    ACL_TOKENS,
    KEYRING,
    ONE_TIME_TOKENS,
    ROLES_BY_NAME,
    TOKENS_BY_EXPIRY,
    TOKENS_BY_SECRET,
)

replace = msgspec.structs.replace

ONE_TIME_TTL_NS: Final = 10 * MINUTE


class TokenWritten(msgspec.Struct, frozen=True):
    """The token as it stands now."""

    index: int
    token: Token


class OneTimeWritten(msgspec.Struct, frozen=True):
    index: int
    one_time: OneTimeToken


def create(
    snapshot: Replica,
    wanted: Token,
    secret: NewSecret,
    moment: Moment,
    *,
    bounds: LifetimeBounds = DEFAULT_LIFETIME_BOUNDS,
) -> Decision[TokenWritten]:
    """A new token, under the accessor that `wanted` names; one that exists already is refused."""
    if snapshot.get(ACL_TOKENS, wanted.accessor_id) is not None:
        raise invalid(f"token {wanted.accessor_id} exists already")
    if snapshot.those(TOKENS_BY_SECRET, secret.digest):
        raise invalid("the secret is in use by another token")
    now = to_time(moment.now_ns)
    linked, conditions = _linked(snapshot, wanted)
    _refuse(tokens.problems(linked, stored=None, now=now, bounds=bounds))
    token = replace(linked, create_time=now, expiration_time=_end_of(linked, now), create_index=THIS, modify_index=0)
    token = with_secret(token, secret, hash_=content_hash(token))
    conditions += [snapshot.as_seen(ACL_TOKENS, token.accessor_id), snapshot.as_seen(KEYRING, secret.sealed.key_id)]
    write = Write("token-stored", Cause(CauseKind.REQUEST), [ACL_TOKENS.put(token)], conditions)
    return Decision(write, written(token))


def update(snapshot: Replica, wanted: Token, moment: Moment) -> Decision[TokenWritten]:
    """Name, kind and rights of a token. Its secret, its reach and its end stay as they were made."""
    stored = snapshot.get(ACL_TOKENS, wanted.accessor_id)
    if stored is None:
        raise invalid(f"cannot find token {wanted.accessor_id}")
    linked, conditions = _linked(snapshot, wanted)
    _refuse(tokens.problems(linked, stored=stored, now=to_time(moment.now_ns)))
    token = replace(stored, name=linked.name, type=linked.type, policies=linked.policies, roles=linked.roles)
    token = replace(token, hash=content_hash(replace(token, hash=b"")))
    conditions.append(snapshot.unchanged(ACL_TOKENS, stored))
    write = Write("token-stored", Cause(CauseKind.REQUEST), [ACL_TOKENS.put(token)], conditions)
    return Decision(write, written(token))


def delete(snapshot: Replica, accessor_id: str) -> Decision[int]:
    if snapshot.get(ACL_TOKENS, accessor_id) is None:
        raise invalid(f"Cannot delete nonexistent tokens: {accessor_id}")
    write = Write(
        "token-deleted",
        Cause(CauseKind.REQUEST),
        [ACL_TOKENS.drop(accessor_id)],
        [snapshot.as_seen(ACL_TOKENS, accessor_id)],
    )
    return Decision(write, lambda index: index)


# -- once ------------------------------------------------------------------------------------------------------------


def make_one_time(snapshot: Replica, caller: Caller, digest: str, moment: Moment) -> Decision[OneTimeWritten]:
    """A secret that stands for the caller's token once, for ten minutes."""
    if caller.token is None or caller.is_refused:
        raise denial(caller)
    one_time = OneTimeToken(
        secret_digest=digest,
        accessor_id=caller.token.accessor_id,
        expires_at=to_time(moment.now_ns + ONE_TIME_TTL_NS),
        create_index=THIS,
    )
    write = Write(
        "one-time-token-made",
        Cause(CauseKind.REQUEST),
        [ONE_TIME_TOKENS.put(one_time)],
        [snapshot.unchanged(ACL_TOKENS, caller.token)],
    )
    return Decision(
        write, lambda index: OneTimeWritten(index, replace(one_time, create_index=index, modify_index=index))
    )


def exchange(snapshot: Replica, digest: str, moment: Moment) -> Decision[TokenWritten]:
    """The token that a one-time secret stands for. Unknown, used and too late are one answer."""
    one_time = snapshot.get(ONE_TIME_TOKENS, digest)
    if one_time is None or one_time.expires_at <= to_time(moment.now_ns):
        raise denial(NOBODY)
    token = snapshot.get(ACL_TOKENS, one_time.accessor_id)
    if token is None or token.is_expired(to_time(moment.now_ns)):
        raise denial(NOBODY)
    write = Write(
        "one-time-token-exchanged",
        Cause(CauseKind.REQUEST),
        [ONE_TIME_TOKENS.drop(digest)],
        [snapshot.unchanged(ONE_TIME_TOKENS, one_time), snapshot.unchanged(ACL_TOKENS, token)],
    )
    return Decision(write, lambda index: TokenWritten(index, token))


# -- time ------------------------------------------------------------------------------------------------------------


def collect_expired(snapshot: Replica, moment: Moment, *, threshold_ns: int, most: int) -> Decision[int] | None:
    """Tokens whose end is longer ago than this, and one-time secrets that are over; None: there are none."""
    now, over = to_time(moment.now_ns), to_time(moment.now_ns - threshold_ns)
    drops: list[Drop] = []
    conditions: list[Condition] = []
    for token in _expired(snapshot, over):
        if len(drops) == most:
            break
        drops.append(ACL_TOKENS.drop(token.accessor_id))
        conditions.append(snapshot.unchanged(ACL_TOKENS, token))
    for one_time in snapshot.all(ONE_TIME_TOKENS):
        if len(drops) == most:
            break
        if one_time.expires_at <= now:
            drops.append(ONE_TIME_TOKENS.drop(one_time.secret_digest))
            conditions.append(snapshot.unchanged(ONE_TIME_TOKENS, one_time))
    if not drops:
        return None
    return Decision(Write("tokens-collected", Cause(CauseKind.TIMER, "tokens"), drops, conditions), lambda index: index)


def _expired(snapshot: Replica, over: datetime.datetime) -> Iterable[Token]:
    last_hour = int(over.timestamp() // 3_600)
    hours = sorted(hour for hour in snapshot.values_of(TOKENS_BY_EXPIRY) if isinstance(hour, int) and hour <= last_hour)
    for hour in hours:
        for token in snapshot.those_by_key(TOKENS_BY_EXPIRY, hour):
            if token.is_expired(over):
                yield token


# -- what tokens are made of -------------------------------------------------------------------------------------------


def with_secret(token: Token, secret: NewSecret, *, hash_: bytes) -> Token:
    return replace(
        token,
        secret_digest=secret.digest,
        secret_sealed=secret.sealed.data,
        sealed_with=secret.sealed.key_id,
        hash=hash_,
    )


def written(token: Token) -> Callable[[int], TokenWritten]:
    """The reply that shows the token as it was written."""

    def reply(index: int) -> TokenWritten:
        created = index if token.create_index == THIS else token.create_index
        return TokenWritten(index, replace(token, create_index=created, modify_index=index))

    return reply


def _linked(snapshot: Replica, wanted: Token) -> tuple[Token, list[Condition]]:
    """The token with the roles that it names, each by id and once, and the condition that they are still there."""
    roles: dict[str, RoleLink] = {}
    conditions = []
    for link in wanted.roles or ():
        named = snapshot.those(ROLES_BY_NAME, link.name) if link.name and not link.id else []
        role = snapshot.get(ACL_ROLES, link.id) if link.id else next(iter(named), None)
        if role is None:
            raise invalid(f"cannot find role {link.id or link.name}")
        if role.id not in roles:
            conditions.append(snapshot.as_seen(ACL_ROLES, role.id))
        roles[role.id] = RoleLink(id=role.id, name=role.name)
    policies = tuple(dict.fromkeys(wanted.policies or ()))
    return replace(wanted, roles=tuple(roles.values()) or None, policies=policies or None), conditions


def _end_of(token: Token, now: datetime.datetime) -> datetime.datetime | None:
    if not token.expiration_ttl:
        return token.expiration_time
    return to_time(to_ns(now) + token.expiration_ttl)


def _refuse(problems: list[str]) -> None:
    if problems:
        raise invalid(f"token 0 invalid: {multi_error([Problem('', problem) for problem in problems])}")


NOBODY: Final = Caller(kind=CallerKind.UNKNOWN)
