"""Writes that are made once however often they are asked for: the records that remember them.

A key belongs to whoever sent it. It stands for one request (method, path, body) for a day; with another request it is
refused. What a key remembers is the answer, sealed; one without an answer is claimed by a request under way.
"""

import hashlib
from itertools import islice
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import IDEMPOTENCY_KEYS
from wharf.contract.model.cluster import IdempotencyKey
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, PutRecord, Write
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import HOUR, DecisionContext

KEY_RETENTION_NS: Final = 24 * HOUR
MAX_KEY_CHARS: Final = 255
CLAIMED_STATUS: Final = 0
"""The status of a key whose request has not told its end."""


class IdempotentRequest(msgspec.Struct, frozen=True):
    """One request, and the key that its sender gave it."""

    scope: str
    key: str
    method: str
    path: str
    body: bytes

    @property
    def body_digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


def check_idempotency_key(key: str) -> None:
    if not key or len(key) > MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise invalid_request(f"an Idempotency-Key is 1 to {MAX_KEY_CHARS} printable ASCII characters")


def find_recorded_response(snapshot: Replica, request: IdempotentRequest, *, now_ns: int) -> IdempotencyKey | None:
    """What is known of this request; None: nothing. Raises where the key stands for another request."""
    kept = snapshot.get(IDEMPOTENCY_KEYS, request.scope, request.key)
    if kept is None or kept.expires_at <= now_ns:
        return None
    if (kept.method, kept.path, kept.body_digest) != (request.method, request.path, request.body_digest):
        raise invalid_request(
            f"the Idempotency-Key {request.key!r} was sent with another request ({kept.method} {kept.path}) less than a day "
            "ago; give each request a key of its own"
        )
    if kept.status == CLAIMED_STATUS:
        raise Refusal(
            RefusalCode.CONFLICT,
            f"a request with the Idempotency-Key {request.key!r} is under way, or its end was never told; "
            "read what it was to change before you ask with another key",
        )
    return kept


def record_response(
    snapshot: Replica, request: IdempotentRequest, *, status: int, response: SealedData | None, now_ns: int
) -> tuple[PutRecord, Condition]:
    """The change that keeps an answer (or claims the key, without one), and the condition that nobody else has."""
    record = IdempotencyKey(
        scope=request.scope,
        key=request.key,
        method=request.method,
        path=request.path,
        body_digest=request.body_digest,
        status=status,
        answer_sealed=response.data if response else b"",
        sealed_with=response.key_id if response else "",
        expires_at=now_ns + KEY_RETENTION_NS,
        create_index=WRITE_INDEX,
    )
    return IDEMPOTENCY_KEYS.build_put(record), snapshot.build_key_condition(
        IDEMPOTENCY_KEYS, request.scope, request.key
    )


def attach_response_record(write: Write | None, change: PutRecord, condition: Condition, *, cause: str) -> Write:
    """The effect and the memory of it, in one write."""
    if write is None:
        return Write("remember", Cause(CauseKind.REQUEST, cause), [change], [condition])
    return msgspec.structs.replace(write, changes=[*write.changes, change], conditions=[*write.conditions, condition])


def delete_claim(snapshot: Replica, request: IdempotentRequest, *, cause: str) -> Write:
    """The claim of a request that was refused: it may be sent again."""
    seen = snapshot.build_key_condition(IDEMPOTENCY_KEYS, request.scope, request.key)
    return Write(
        "forget", Cause(CauseKind.REQUEST, cause), [IDEMPOTENCY_KEYS.build_delete(request.scope, request.key)], [seen]
    )


def collect_expired_keys(snapshot: Replica, context: DecisionContext, *, max_keys: int) -> Decision[int] | None:
    """Removes keys whose day is over, at most so many; None: there are none."""
    over = list(
        islice((kept for kept in snapshot.iter_all(IDEMPOTENCY_KEYS) if kept.expires_at <= context.now_ns), max_keys)
    )
    if not over:
        return None
    write = Write(
        "collect-idempotency-keys",
        Cause(CauseKind.TIMER),
        [IDEMPOTENCY_KEYS.build_delete(kept.scope, kept.key) for kept in over],
        [snapshot.build_record_condition(IDEMPOTENCY_KEYS, kept) for kept in over],
    )
    return Decision(write, lambda _index: len(over))
