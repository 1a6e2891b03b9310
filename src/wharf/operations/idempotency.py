"""Writes that are made once however often they are asked for: the records that remember them.

A key belongs to whoever sent it. It stands for one request (method, path, body) for a day; with another request it is
refused. What a key remembers is the answer, sealed; one without an answer is claimed by a request under way.
"""

import hashlib
from itertools import islice
from typing import Final

import msgspec

from wharf.model.changes import THIS, Cause, CauseKind, Condition, Put, Write
from wharf.model.cluster import IdempotencyKey
from wharf.model.durations import HOUR
from wharf.model.moment import Moment
from wharf.model.refusal import Code, Refusal, invalid
from wharf.model.secret import Sealed
from wharf.operations.decision import Decision
from wharf.state import Replica
from wharf.state.tables import IDEMPOTENCY_KEYS

KEPT_NS: Final = 24 * HOUR
KEY_LENGTH_MAX: Final = 255
CLAIMED: Final = 0
"""The status of a key whose request has not told its end."""


class Repeatable(msgspec.Struct, frozen=True):
    """One request, and the key that its sender gave it."""

    scope: str
    key: str
    method: str
    path: str
    body: bytes

    @property
    def body_digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


def check_key(key: str) -> None:
    if not key or len(key) > KEY_LENGTH_MAX or not key.isascii() or not key.isprintable():
        raise invalid(f"an Idempotency-Key is 1 to {KEY_LENGTH_MAX} printable ASCII characters")


def remembered(snapshot: Replica, asked: Repeatable, *, now_ns: int) -> IdempotencyKey | None:
    """What is known of this request; None: nothing. Raises where the key stands for another request."""
    kept = snapshot.get(IDEMPOTENCY_KEYS, asked.scope, asked.key)
    if kept is None or kept.expires_at <= now_ns:
        return None
    if (kept.method, kept.path, kept.body_digest) != (asked.method, asked.path, asked.body_digest):
        raise invalid(
            f"the Idempotency-Key {asked.key!r} was sent with another request ({kept.method} {kept.path}) less than a day "
            "ago; give each request a key of its own"
        )
    if kept.status == CLAIMED:
        raise Refusal(
            Code.CONFLICT,
            f"a request with the Idempotency-Key {asked.key!r} is under way, or its end was never told; "
            "read what it was to change before you ask with another key",
        )
    return kept


def remember(
    snapshot: Replica, asked: Repeatable, *, status: int, answer: Sealed | None, now_ns: int
) -> tuple[Put, Condition]:
    """The change that keeps an answer (or claims the key, without one), and the condition that nobody else has."""
    record = IdempotencyKey(
        scope=asked.scope,
        key=asked.key,
        method=asked.method,
        path=asked.path,
        body_digest=asked.body_digest,
        status=status,
        answer_sealed=answer.data if answer else b"",
        sealed_with=answer.key_id if answer else "",
        expires_at=now_ns + KEPT_NS,
        create_index=THIS,
    )
    return IDEMPOTENCY_KEYS.put(record), snapshot.as_seen(IDEMPOTENCY_KEYS, asked.scope, asked.key)


def beside(write: Write | None, change: Put, condition: Condition, *, cause: str) -> Write:
    """The effect and the memory of it, in one write."""
    if write is None:
        return Write("remember", Cause(CauseKind.REQUEST, cause), [change], [condition])
    return msgspec.structs.replace(write, changes=[*write.changes, change], conditions=[*write.conditions, condition])


def forget(snapshot: Replica, asked: Repeatable, *, cause: str) -> Write:
    """The claim of a request that was refused: it may be sent again."""
    seen = snapshot.as_seen(IDEMPOTENCY_KEYS, asked.scope, asked.key)
    return Write("forget", Cause(CauseKind.REQUEST, cause), [IDEMPOTENCY_KEYS.drop(asked.scope, asked.key)], [seen])


def collect_expired(snapshot: Replica, moment: Moment, *, most: int) -> Decision[int] | None:
    """Removes keys whose day is over, at most so many; None: there are none."""
    over = list(islice((kept for kept in snapshot.all(IDEMPOTENCY_KEYS) if kept.expires_at <= moment.now_ns), most))
    if not over:
        return None
    write = Write(
        "collect-idempotency-keys",
        Cause(CauseKind.TIMER),
        [IDEMPOTENCY_KEYS.drop(kept.scope, kept.key) for kept in over],
        [snapshot.unchanged(IDEMPOTENCY_KEYS, kept) for kept in over],
    )
    return Decision(write, lambda _index: len(over))
