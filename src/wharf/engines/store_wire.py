"""What a store process and the engines attached to it say to each other, in frames (`engines.framing`) over a Unix socket.

Every connection begins with `Hello` and is answered `Welcome`, or `Failed`
with number 0. On the main connection of an engine requests carry a number and are answered in any order. A connection
that asks for a stream (`Follow`, `LoadAll`, `RestoreBegin`) carries that stream and nothing else.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.engines.port import Batch, Bounds, Health, LogWrite, Outcome, Row, Standing

VERSION: Final = 1


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A frame's content: an array that begins with its tag."""


# -- requests


class Hello(Message, frozen=True, gc=False, tag="hello"):
    """`owner` is the engine; its main connection keeps its leases, and ends an earlier main connection of it."""

    version: int
    owner: str
    is_main: bool


class Commit(Message, frozen=True, gc=False, tag="commit"):
    number: int
    write: LogWrite


class Barrier(Message, frozen=True, gc=False, tag="barrier"):
    number: int


class Find(Message, frozen=True, gc=False, tag="find"):
    number: int
    write_id: str
    since: int


class Grant(Message, frozen=True, gc=False, tag="grant"):
    number: int
    ttl_s: float


class Revoke(Message, frozen=True, gc=False, tag="revoke"):
    number: int
    lease: int


class Compact(Message, frozen=True, gc=False, tag="compact"):
    number: int
    before: int


class AskHealth(Message, frozen=True, gc=False, tag="health"):
    number: int


class Follow(Message, frozen=True, gc=False, tag="follow"):
    after: int


class LoadAll(Message, frozen=True, gc=False, tag="load"):
    pass


class RestoreBegin(Message, frozen=True, gc=False, tag="restore"):
    standing: Standing


class RestoreRows(Message, frozen=True, gc=False, tag="rows"):
    rows: Sequence[Row]


class RestoreEnd(Message, frozen=True, gc=False, tag="end"):
    """`is_whole`: all rows came, the new state is to be put in force; else the restore is given up. `Told` answers both."""

    is_whole: bool


Numbered = Commit | Barrier | Find | Grant | Revoke | Compact | AskHealth

Request = (
    Hello
    | Commit
    | Barrier
    | Find
    | Grant
    | Revoke
    | Compact
    | AskHealth
    | Follow
    | LoadAll
    | RestoreBegin
    | RestoreRows
    | RestoreEnd
)

# -- replies


class Welcome(Message, frozen=True, gc=False, tag="welcome"):
    """`leases`: those of the engine that still live."""

    bounds: Bounds
    leases: Sequence[int]


class Decided(Message, frozen=True, gc=False, tag="decided"):
    """The outcome of a commit."""

    number: int
    outcome: Outcome


class Told(Message, frozen=True, gc=False, tag="told"):
    """An index or a lease, as asked; None: there is none."""

    number: int
    value: int | None


class Healthy(Message, frozen=True, gc=False, tag="healthy"):
    number: int
    health: Health


class Failed(Message, frozen=True, gc=False, tag="failed"):
    """The port's `Behind` or `Unavailable`. Number 0: the connection or its stream ends with it."""

    number: int
    is_behind: bool
    why: str


class Fed(Message, frozen=True, gc=False, tag="fed"):
    batch: Batch


class Slice(Message, frozen=True, gc=False, tag="slice"):
    rows: Sequence[Row]


class Loaded(Message, frozen=True, gc=False, tag="loaded"):
    standing: Standing


Reply = Welcome | Decided | Told | Healthy | Failed | Fed | Slice | Loaded

decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
