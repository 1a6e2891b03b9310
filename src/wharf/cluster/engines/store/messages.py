"""The messages between the store process and its engines, in frames (`world.framing`) over a Unix socket.

Every connection begins with `StoreHello`; the store replies with `StoreWelcome`, or with `FailureReply` with number 0.
On an engine's main connection, requests carry a number and are answered in any order. A connection for a stream
(`FollowRequest`, `LoadRequest`, `RestoreBegin`) carries only that stream. The order of fields and the tags are the
protocol.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.cluster.engines.port import (
    Batch,
    EncodedWrite,
    LogHealth,
    LogPosition,
    StoredRecord,
    WriteLimits,
    WriteOutcome,
)

PROTOCOL_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 256_000_000
"""Protects the memory of both processes against data that is not of this protocol."""


class StoreMessage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A frame's content: an array whose first element is the tag."""


# -- requests


class StoreHello(StoreMessage, frozen=True, gc=False, tag="hello"):
    """First message of a connection. `owner` identifies the engine. Its main connection holds its leases; a new one
    replaces the earlier."""

    version: int
    owner: str
    is_main: bool


class CommitRequest(StoreMessage, frozen=True, gc=False, tag="commit"):
    """A request to commit a write; answered by `CommitReply`."""

    number: int
    write: EncodedWrite


class BarrierRequest(StoreMessage, frozen=True, gc=False, tag="barrier"):
    """A request for the newest index; answered by `ValueReply`."""

    number: int


class FindWriteRequest(StoreMessage, frozen=True, gc=False, tag="find"):
    """A request for the index of a write, searched from the index `since`; answered by `ValueReply`."""

    number: int
    write_id: str
    since: int


class GrantLeaseRequest(StoreMessage, frozen=True, gc=False, tag="grant"):
    """A request to grant a lease; answered by `ValueReply` with its id."""

    number: int
    ttl_s: float


class RevokeLeaseRequest(StoreMessage, frozen=True, gc=False, tag="revoke"):
    """A request to end a lease; answered by `ValueReply`."""

    number: int
    lease: int


class CompactRequest(StoreMessage, frozen=True, gc=False, tag="compact"):
    """A request to discard batches with an index below `before`; answered by `ValueReply`."""

    number: int
    before: int


class LogHealthRequest(StoreMessage, frozen=True, gc=False, tag="health"):
    """A request for the health of the log; answered by `LogHealthReply`."""

    number: int


class FollowRequest(StoreMessage, frozen=True, gc=False, tag="follow"):
    """A request for all batches after an index: a stream of `BatchReply`."""

    after: int


class LoadRequest(StoreMessage, frozen=True, gc=False, tag="load"):
    """A request for all records: a stream of `RecordsReply`, then `LoadEndReply`."""


class RestoreBegin(StoreMessage, frozen=True, gc=False, tag="restore"):
    """A request to replace the log; `RestoreRecords` and `RestoreEnd` follow on the same connection."""

    position: LogPosition


class RestoreRecords(StoreMessage, frozen=True, gc=False, tag="rows"):
    """Some of the records of a restore."""

    records: Sequence[StoredRecord]


class RestoreEnd(StoreMessage, frozen=True, gc=False, tag="end"):
    """The end of a restore: activate it if `is_whole` (all records were sent), else abandon it. Answered by `ValueReply`."""

    is_whole: bool


StoreRequest = (
    StoreHello
    | CommitRequest
    | BarrierRequest
    | FindWriteRequest
    | GrantLeaseRequest
    | RevokeLeaseRequest
    | CompactRequest
    | LogHealthRequest
    | FollowRequest
    | LoadRequest
    | RestoreBegin
    | RestoreRecords
    | RestoreEnd
)

# -- replies


class StoreWelcome(StoreMessage, frozen=True, gc=False, tag="welcome"):
    """The store accepts the connection. `leases`: the live leases of this engine."""

    limits: WriteLimits
    leases: Sequence[int]


class CommitReply(StoreMessage, frozen=True, gc=False, tag="decided"):
    """The outcome of a commit."""

    number: int
    outcome: WriteOutcome


class ValueReply(StoreMessage, frozen=True, gc=False, tag="told"):
    """An index or a lease id, depending on the request; None if there is no such value."""

    number: int
    value: int | None


class LogHealthReply(StoreMessage, frozen=True, gc=False, tag="healthy"):
    """The health of the log."""

    number: int
    health: LogHealth


class FailureReply(StoreMessage, frozen=True, gc=False, tag="failed"):
    """A failed request: `FollowerBehind` if `is_behind`, otherwise `LogUnavailable`. With number 0, the connection or its stream ends."""

    number: int
    is_behind: bool
    why: str
    is_unchanged: bool = False
    """Whether a failed restore certainly left the log as it was (`LogUnchanged`)."""


class BatchReply(StoreMessage, frozen=True, gc=False, tag="fed"):
    """One batch of a feed."""

    batch: Batch


class RecordsReply(StoreMessage, frozen=True, gc=False, tag="slice"):
    """Some of the records of a load."""

    records: Sequence[StoredRecord]


class LoadEndReply(StoreMessage, frozen=True, gc=False, tag="loaded"):
    """End of a load, with its position."""

    position: LogPosition


StoreReply = (
    StoreWelcome | CommitReply | ValueReply | LogHealthReply | FailureReply | BatchReply | RecordsReply | LoadEndReply
)

decode_request = msgspec.msgpack.Decoder(StoreRequest).decode
decode_reply = msgspec.msgpack.Decoder(StoreReply).decode
