"""What a store process and the engines attached to it say to each other: frames of msgpack over a Unix socket.

A frame is four bytes of length and one message. Every connection begins with `Hello` and is answered `Welcome`, or `Failed`
with number 0. On the main connection of an engine requests carry a number and are answered in any order. A connection
that asks for a stream (`Follow`, `LoadAll`, `RestoreBegin`) carries that stream and nothing else.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from wharf.engines.port import Batch, Bounds, Health, LogWrite, Outcome, Row, Standing

VERSION: Final = 1
FRAME_BYTES: Final = 256_000_000
"""A longer frame is none of ours."""

_ADDRESS_BYTES: Final = 100  # Unix socket addresses hold 104 to 108, depending on the system.


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

_encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


class NotOurs(Exception):
    """The other end does not speak this protocol."""


def frame(message: msgspec.Struct) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


class Frames:
    """Cuts what arrives into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are whole with this. Raises `NotOurs`."""
        buffer = self._buffer
        source: bytes | bytearray = data
        if buffer:
            buffer += data
            source = buffer
        bodies = []
        start, end = 0, len(source)
        while end - start >= 4:
            length = int.from_bytes(source[start : start + 4], "big")
            if length > FRAME_BYTES:
                raise NotOurs(f"a frame of {length} bytes")
            if end - start - 4 < length:
                break
            bodies.append(bytes(source[start + 4 : start + 4 + length]))
            start += 4 + length
        if source is buffer:
            del buffer[:start]
        elif start < end:
            buffer += data[start:]
        return bodies


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """An address of the socket at `path` that is short enough for the system, as long as the context lasts."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not Path("/proc/self/fd").exists():
            raise OSError(f"the path is longer than the {_ADDRESS_BYTES} bytes that a socket's address may have here")
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
