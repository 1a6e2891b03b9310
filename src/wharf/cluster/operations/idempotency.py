"""Idempotency keys: records that make a repeated request take effect once.

A key belongs to its sender (`scope`) and stands for one request (method, path, body) for a day; using it for
another request is refused. A record holds the encrypted response, or none while its request is in progress (a
claim). The keys of one caller replace its own oldest ones, never those of another caller.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    IDEMPOTENCY_KEYS,
    IDEMPOTENCY_KEYS_OF_CALLER,
    LARGE_SEALED_REPLY_BYTES,
)
from wharf.contract.model.cluster import IdempotencyKey
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import HOUR, DecisionContext, has_passed

KEY_RETENTION_NS: Final = 24 * HOUR
"""How long a key is stored, in nanoseconds."""
MAX_KEY_CHARS: Final = 255
"""Limits the memory that a key takes in every server."""
MAX_KEYS: Final = (100_000, 2_000)
"""How many keys all callers together may have, with small and with large responses; limits the memory of every server: a
key takes about 1.5 kB. Callers share them equally."""
MAX_KEYS_PER_CALLER: Final = (50_000, 500)
"""The most keys of one caller, with small and with large responses: at 1,000 writes a second those of the last 50 s."""
MIN_KEYS_PER_CALLER: Final = (500, 20)
"""The share of a caller, however many callers there are: enough for retries that follow within minutes."""
MAX_DELETIONS: Final = 2
"""The oldest keys that a new one replaces. More than one, so that a caller who is above its share gets below it."""
MAX_CHANGES_WITH_DELETIONS: Final = 64
"""A write with more changes replaces no old keys, because a transaction of etcd has 128 operations."""
EXPIRY_SCAN: Final = 1_000
"""The oldest keys that one search for expired ones reads. Keys expire in the order in which they were stored, unless clocks
differ."""
CLAIMED_STATUS: Final = 0
"""The status of a key whose request is in progress, or whose outcome was never recorded."""


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A request and the idempotency key that its sender chose."""

    scope: str  # The sender, so that two senders can use the same key.
    key: str  # The value of the `Idempotency-Key` header.
    method: str
    path: str
    body_digest: str  # The SHA-256 of the body, in hexadecimal digits.


def check_idempotency_key(key: str) -> None:
    """Raise unless the key is 1 to `MAX_KEY_CHARS` printable ASCII characters."""
    if not key or len(key) > MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise invalid_request(f"an Idempotency-Key is 1 to {MAX_KEY_CHARS} printable ASCII characters")


def find_recorded_response(snapshot: Replica, request: IdempotentRequest, *, now_ns: int) -> IdempotencyKey | None:
    """Return the record of the response to this request, or `None` if the request is new or its record has expired.

    Raises if the key was used for another request, or if the request is still in progress.
    """
    record = snapshot.get(IDEMPOTENCY_KEYS, request.scope, request.key)
    if record is None or has_passed(record.expires_at, KEY_RETENTION_NS, now_ns):
        return None
    if (record.method, record.path, record.body_digest) != (request.method, request.path, request.body_digest):
        raise invalid_request(
            f"the Idempotency-Key {request.key!r} was sent with another request ({record.method} {record.path}) less than a day "
            "ago; give each request a key of its own"
        )
    if record.status == CLAIMED_STATUS:
        raise Refusal(
            RefusalCode.CONFLICT,
            f"a request with the Idempotency-Key {request.key!r} is in progress, or its outcome was never recorded; "
            "check whether its change was applied before you retry with another key",
        )
    return record


def record_response(
    snapshot: Replica, request: IdempotentRequest, *, status: int, response: SealedData | None, now_ns: int
) -> tuple[list[PutRecord | DeleteRecord], Condition]:
    """Return the changes that store the response to a request, the record first, and the condition that no record of its
    key was stored since.

    The other changes delete the oldest keys of the caller if it has too many. `status` is the HTTP status. Without a
    response, the record claims the key while the request is in progress.
    """
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
    condition = snapshot.build_key_condition(IDEMPOTENCY_KEYS, request.scope, request.key)
    return [IDEMPOTENCY_KEYS.build_put(record), *_delete_oldest_keys(snapshot, record)], condition


def _delete_oldest_keys(snapshot: Replica, record: IdempotencyKey) -> list[DeleteRecord]:
    """Return the deletions of the caller's oldest keys that exceed its share once the record is stored.

    They have no conditions: concurrent writes of a caller delete the same keys, and must not conflict.
    """
    is_large = len(record.answer_sealed) > LARGE_SEALED_REPLY_BYTES
    count = snapshot.count_by_index(IDEMPOTENCY_KEYS_OF_CALLER, record.caller, is_large)
    share = MAX_KEYS[is_large] // max(1, snapshot.count_index_values(IDEMPOTENCY_KEYS_OF_CALLER))
    excess = count + 1 - max(MIN_KEYS_PER_CALLER[is_large], min(share, MAX_KEYS_PER_CALLER[is_large]))
    if excess <= 0:
        return []
    oldest = snapshot.iter_by_index(IDEMPOTENCY_KEYS_OF_CALLER, record.caller, is_large)
    return [
        IDEMPOTENCY_KEYS.build_delete(old.scope, old.key)
        for _, old in islice(oldest, min(excess, MAX_DELETIONS))
        if (old.scope, old.key) != (record.scope, record.key)
    ]


def attach_response_record(
    write: Write | None, changes: Sequence[PutRecord | DeleteRecord], condition: Condition, *, cause: str
) -> Write:
    """Return the write extended by the record of its response, so that effect and record are committed together.

    `changes` and `condition` are those of the record. If the request changes nothing (`None`), the write contains only
    them.
    """
    if write is None:
        return Write("remember", Cause(CauseKind.REQUEST, cause), list(changes), [condition])
    if len(write.changes) > MAX_CHANGES_WITH_DELETIONS:
        changes = changes[:1]
    return msgspec.structs.replace(write, changes=[*write.changes, *changes], conditions=[*write.conditions, condition])


def delete_claim(snapshot: Replica, request: IdempotentRequest, *, cause: str) -> Write:
    """Return the write that deletes the record of a request that was refused, so that the request can be sent again."""
    condition = snapshot.build_key_condition(IDEMPOTENCY_KEYS, request.scope, request.key)
    return Write(
        "forget",
        Cause(CauseKind.REQUEST, cause),
        [IDEMPOTENCY_KEYS.build_delete(request.scope, request.key)],
        [condition],
    )


def collect_expired_keys(snapshot: Replica, context: DecisionContext, *, max_keys: int) -> Decision[int] | None:
    """Return the decision that deletes up to `max_keys` expired records, or `None` if there are none.

    The reply is the number of deleted records.
    """
    expired = list(
        islice(
            (
                record
                for record in islice(snapshot.iter_all(IDEMPOTENCY_KEYS), max(EXPIRY_SCAN, max_keys))
                if has_passed(record.expires_at, KEY_RETENTION_NS, context.now_ns)
            ),
            max_keys,
        )
    )
    if not expired:
        return None
    write = Write(
        "collect-idempotency-keys",
        Cause(CauseKind.TIMER),
        [IDEMPOTENCY_KEYS.build_delete(record.scope, record.key) for record in expired],
        [snapshot.build_record_condition(IDEMPOTENCY_KEYS, record) for record in expired],
    )
    return Decision(write, lambda _index: len(expired))
