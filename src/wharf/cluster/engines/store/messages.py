"""What a store process and the engines attached to it say to each other, in frames (`engines.framing`) over a Unix socket.

Every connection begins with `Hello` and is answered `Welcome`, or `Failed`
with number 0. On the main connection of an engine requests carry a number and are answered in any order. A connection
that asks for a stream (`Follow`, `LoadAll`, `RestoreBegin`) carries that stream and nothing else.
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


class StoreMessage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A frame's content: an array that begins with its tag."""


# -- requests


class StoreHello(StoreMessage, frozen=True, gc=False, tag="hello"):
    """`owner` is the engine; its main connection keeps its leases, and ends an earlier main connection of it."""

    version: int
    owner: str
    is_main: bool


class CommitRequest(StoreMessage, frozen=True, gc=False, tag="commit"):
    number: int
    write: EncodedWrite


class BarrierRequest(StoreMessage, frozen=True, gc=False, tag="barrier"):
    number: int


class FindWriteRequest(StoreMessage, frozen=True, gc=False, tag="find"):
    number: int
    write_id: str
    since: int


class GrantLeaseRequest(StoreMessage, frozen=True, gc=False, tag="grant"):
    number: int
    ttl_s: float


class RevokeLeaseRequest(StoreMessage, frozen=True, gc=False, tag="revoke"):
    number: int
    lease: int


class CompactRequest(StoreMessage, frozen=True, gc=False, tag="compact"):
    number: int
    before: int


class LogHealthRequest(StoreMessage, frozen=True, gc=False, tag="health"):
    number: int


class FollowRequest(StoreMessage, frozen=True, gc=False, tag="follow"):
    after: int


class LoadRequest(StoreMessage, frozen=True, gc=False, tag="load"):
    pass


class RestoreBegin(StoreMessage, frozen=True, gc=False, tag="restore"):
    position: LogPosition


class RestoreRecords(StoreMessage, frozen=True, gc=False, tag="rows"):
    records: Sequence[StoredRecord]


class RestoreEnd(StoreMessage, frozen=True, gc=False, tag="end"):
    """`is_whole`: all rows came, the new state is to be put in force; else the restore is given up. `Told` answers both."""

    is_whole: bool


NumberedRequest = (
    CommitRequest
    | BarrierRequest
    | FindWriteRequest
    | GrantLeaseRequest
    | RevokeLeaseRequest
    | CompactRequest
    | LogHealthRequest
)

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
    """`leases`: those of the engine that still live."""

    limits: WriteLimits
    leases: Sequence[int]


class CommitReply(StoreMessage, frozen=True, gc=False, tag="decided"):
    """The outcome of a commit."""

    number: int
    outcome: WriteOutcome


class ValueReply(StoreMessage, frozen=True, gc=False, tag="told"):
    """An index or a lease, as asked; None: there is none."""

    number: int
    value: int | None


class LogHealthReply(StoreMessage, frozen=True, gc=False, tag="healthy"):
    number: int
    health: LogHealth


class FailureReply(StoreMessage, frozen=True, gc=False, tag="failed"):
    """The port's `Behind` or `Unavailable`. Number 0: the connection or its stream ends with it."""

    number: int
    is_behind: bool
    why: str


class BatchReply(StoreMessage, frozen=True, gc=False, tag="fed"):
    batch: Batch


class RecordsReply(StoreMessage, frozen=True, gc=False, tag="slice"):
    records: Sequence[StoredRecord]


class LoadEndReply(StoreMessage, frozen=True, gc=False, tag="loaded"):
    position: LogPosition


StoreReply = (
    StoreWelcome | CommitReply | ValueReply | LogHealthReply | FailureReply | BatchReply | RecordsReply | LoadEndReply
)

decode_request = msgspec.msgpack.Decoder(StoreRequest).decode
decode_reply = msgspec.msgpack.Decoder(StoreReply).decode
