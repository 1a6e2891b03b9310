"""Idempotency keys: records that make a repeated request take effect once.

A key belongs to its sender (`scope`) and stands for one request (method, path, body) for a day; using it for
another request is refused. A record holds the encrypted response, or none while its request is in progress (a
claim).
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
from wharf.contract.model.times import HOUR, DecisionContext, has_passed

KEY_RETENTION_NS: Final = 24 * HOUR
"""How long a key is stored, in nanoseconds."""
MAX_KEY_CHARS: Final = 255
"""Limits the memory that a key takes in every server."""
CLAIMED_STATUS: Final = 0
"""The status of a key whose request is in progress, or whose outcome was never recorded."""


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A request and the idempotency key that its sender chose."""

    scope: str  # The sender, so that two senders can use the same key.
    key: str  # The value of the `Idempotency-Key` header.
    method: str
    path: str
    body: bytes

    @property
    def body_digest(self) -> str:
        """The SHA-256 of the body, in hexadecimal digits."""
        return hashlib.sha256(self.body).hexdigest()


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
) -> tuple[PutRecord, Condition]:
    """Return the change that stores the response to a request, and the condition that no record of its key was stored
    since.

    `status` is the HTTP status. Without a response, the record claims the key while the request is in progress.
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
    return IDEMPOTENCY_KEYS.build_put(record), snapshot.build_key_condition(
        IDEMPOTENCY_KEYS, request.scope, request.key
    )


def attach_response_record(write: Write | None, change: PutRecord, condition: Condition, *, cause: str) -> Write:
    """Return the write extended by the record of its response, so that effect and record are committed together.

    `change` and `condition` are those of the record. If the request changes nothing (`None`), the write contains only
    the record.
    """
    if write is None:
        return Write("remember", Cause(CauseKind.REQUEST, cause), [change], [condition])
    return msgspec.structs.replace(write, changes=[*write.changes, change], conditions=[*write.conditions, condition])


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
                for record in snapshot.iter_all(IDEMPOTENCY_KEYS)
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
