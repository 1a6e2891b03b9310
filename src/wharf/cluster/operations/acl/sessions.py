"""Decisions about sessions of pages: a browser signs in, signs out, or is found by its secret."""

import datetime
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.cluster.access import Caller, deny
from wharf.cluster.operations.decision import Decision, set_written_index
from wharf.cluster.state import Replica
from wharf.cluster.state.formats import get_active_format
from wharf.cluster.state.tables import ACL_TOKENS, PAGE_SESSIONS, PAGE_SESSIONS_OF_TOKEN
from wharf.contract.model.acl.sessions import PageSession
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import DecisionContext, to_datetime

MAX_SESSIONS_PER_TOKEN: Final = 20
"""How many browsers can be signed in with a token. One more ends the oldest of these sessions."""
MAX_SESSIONS: Final = 10_000
"""How many sessions a cluster has. Limits the memory that callers with many tokens can fill."""
MAX_BROWSER_CHARS: Final = 200
MAX_ADDRESS_CHARS: Final = 64
"""The longest address of version 6 has 45 characters; a zone may follow."""


class SessionRequest(msgspec.Struct, frozen=True):
    """What a browser that signs in is stored with."""

    digest: str  # The digest of the secret that it gets.
    address: str
    browser: str


class SessionWriteResult(msgspec.Struct, frozen=True):
    """The session that was created, and the log index of the write."""

    index: int
    session: PageSession


def create_session(
    snapshot: Replica,
    caller: Caller,
    request: SessionRequest,
    context: DecisionContext,
    *,
    ttl_ns: int,
) -> Decision[SessionWriteResult]:
    """Return the decision that signs a browser in with the caller's token, for `ttl_ns` or as long as the token is valid.

    Raises a denial if the caller has no valid token, and a refusal if the cluster has too many sessions or servers that do not
    know sessions.
    """
    token = caller.token
    if token is None or caller.is_refused:
        raise deny(caller, "a token")
    if get_active_format(snapshot) < PAGE_SESSIONS.since_format:
        raise Refusal(
            RefusalCode.UNAVAILABLE,
            "nobody can sign in while servers of an older version run: upgrade them, then retry",
        )
    ended = _list_ended_sessions(snapshot, token, context)
    if snapshot.count_records(PAGE_SESSIONS) - len(ended) >= MAX_SESSIONS:
        raise Refusal(
            RefusalCode.RATE_LIMITED,
            f"{MAX_SESSIONS} browsers are signed in, which is the limit: end a session, or retry when one has expired",
        )
    expires_ns = context.now_ns + ttl_ns
    created = PageSession(
        secret_digest=request.digest,
        id=context.new_id(),
        accessor_id=token.accessor_id,
        token_digest=token.secret_digest,
        created_at=to_datetime(context.now_ns),
        expires_at=_get_earlier(to_datetime(expires_ns), token),
        address=request.address[:MAX_ADDRESS_CHARS],
        browser=request.browser[:MAX_BROWSER_CHARS],
        create_index=WRITE_INDEX,
    )
    write = Write(
        "page-session-made",
        Cause(CauseKind.REQUEST),
        [PAGE_SESSIONS.build_put(created), *(PAGE_SESSIONS.build_delete(each.secret_digest) for each in ended)],
        [
            snapshot.build_record_condition(ACL_TOKENS, token),
            # Requests at the same time must not exceed the limits together.
            snapshot.build_prefix_condition(PAGE_SESSIONS),
            *(snapshot.build_record_condition(PAGE_SESSIONS, each) for each in ended),
        ],
    )
    return Decision(write, lambda index: SessionWriteResult(index, set_written_index(created, index)))


def _get_earlier(expires_at: datetime.datetime, token: Token) -> datetime.datetime:
    """Return when a session ends: at this time, or before with its token."""
    return expires_at if token.expiration_time is None else min(expires_at, token.expiration_time)


def _list_ended_sessions(snapshot: Replica, token: Token, context: DecisionContext) -> list[PageSession]:
    """Return the sessions of the token that a new one replaces: those that have expired, and the oldest beyond the limit."""
    of_token = sorted(
        snapshot.list_by_index(PAGE_SESSIONS_OF_TOKEN, token.accessor_id), key=lambda session: session.create_index
    )
    expired = [session for session in of_token if is_ended(snapshot, session, context.now_ns)]
    valid = [session for session in of_token if session not in expired]
    return [*expired, *valid[: max(0, len(valid) - MAX_SESSIONS_PER_TOKEN + 1)]]


def is_ended(snapshot: Replica, session: PageSession, now_ns: int) -> bool:
    """Return whether the session is no longer valid: by time, or because its token is gone, expired or another one."""
    token = snapshot.get(ACL_TOKENS, session.accessor_id)
    return (
        session.is_expired(now_ns)
        or token is None
        or token.secret_digest != session.token_digest
        or token.is_expired(to_datetime(now_ns))
    )


def find_session_token(snapshot: Replica, digest: str, now_ns: int) -> Token | None:
    """Return the token with which the browser with this secret is signed in; `None` if it is not signed in."""
    session = snapshot.get(PAGE_SESSIONS, digest)
    if session is None or is_ended(snapshot, session, now_ns):
        return None
    return snapshot.get(ACL_TOKENS, session.accessor_id)


def list_sessions(snapshot: Replica, caller: Caller, now_ns: int) -> Sequence[PageSession]:
    """Return the valid sessions of the caller's token, the newest first."""
    if caller.token is None:
        return ()
    found = snapshot.list_by_index(PAGE_SESSIONS_OF_TOKEN, caller.token.accessor_id)
    valid = [session for session in found if not is_ended(snapshot, session, now_ns)]
    return sorted(valid, key=lambda session: session.create_index, reverse=True)


def end_session(snapshot: Replica, caller: Caller, session_id: str) -> Decision[int]:
    """Return the decision that ends a session of the caller's token. A management token may end every session.

    Raises a refusal if there is no such session.
    """
    if caller.is_refused:
        raise deny(caller, "a token")
    found = _find_session(snapshot, caller, session_id)
    if found is None:
        raise Refusal(RefusalCode.NOT_FOUND, "session not found: it has ended, or belongs to another token")
    write = Write(
        "page-session-ended",
        Cause(CauseKind.REQUEST),
        [PAGE_SESSIONS.build_delete(found.secret_digest)],
        [snapshot.build_record_condition(PAGE_SESSIONS, found)],
    )
    return Decision(write, lambda index: index)


def _find_session(snapshot: Replica, caller: Caller, session_id: str) -> PageSession | None:
    if caller.token is not None and not caller.token.is_management:
        sessions = snapshot.list_by_index(PAGE_SESSIONS_OF_TOKEN, caller.token.accessor_id)
    else:
        sessions = list(snapshot.iter_all(PAGE_SESSIONS))
    return next((session for session in sessions if session.id == session_id), None)
