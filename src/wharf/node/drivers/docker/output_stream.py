"""Output and errors of a task in one stream: each piece behind eight bytes that say which it is and how long.

With a terminal there is one stream and no frames.

The engine's log with its moments: entry by entry, each with when it was written, whichever way it is cut on its way.
"""

import re
import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal, NamedTuple

FRAME_HEADER_BYTES: Final = 8
_HEADER: Final = struct.Struct(">BxxxL")


class OutputChunk(NamedTuple):
    stream: Literal["stdout", "stderr"]
    data: bytes
    is_frame_start: bool = True  # A frame: the engine makes one of each entry of the log.


class FrameDecoder:
    """Takes bytes as they come, gives what is complete of them."""

    def __init__(self, *, is_tty: bool) -> None:
        self._is_tty = is_tty
        self._rest = b""
        self._stream: Literal["stdout", "stderr"] = "stdout"
        self._begins = False
        self._left = 0  # Of the frame that is begun: large ones are passed on in pieces.

    def feed(self, data: bytes) -> Iterator[OutputChunk]:
        if self._is_tty:
            if data:
                yield OutputChunk("stdout", data)
            return
        self._rest += data
        while self._rest:
            if not self._left:
                if len(self._rest) < FRAME_HEADER_BYTES:
                    return
                kind, self._left = _HEADER.unpack_from(self._rest)
                self._stream = "stderr" if kind == 2 else "stdout"
                self._rest = self._rest[FRAME_HEADER_BYTES:]
                self._begins = True
                continue
            piece, self._rest = self._rest[: self._left], self._rest[self._left :]
            self._left -= len(piece)
            begins, self._begins = self._begins, False
            yield OutputChunk(self._stream, piece, begins)


SECOND_NS: Final = 1_000_000_000
MAX_TIMESTAMP_BYTES: Final = 64
_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class LogEntryChunk(NamedTuple):
    """Of one entry; `at_ns` is given with its first piece."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    at_ns: int | None


class TimestampDecoder:
    """Takes what the engine sends with `timestamps`, gives it without."""

    def __init__(self, *, is_tty: bool) -> None:
        self._is_tty = is_tty
        self._head: bytes | None = b""
        """What there is of a moment that is not read to its end; None within an entry."""

    def feed(self, chunk: OutputChunk) -> Iterator[LogEntryChunk]:
        if not self._is_tty:
            if chunk.is_frame_start:
                self._head = b""
            yield from self._entry(chunk.stream, chunk.data)
            return
        # With a terminal there are no frames: an entry is a line.
        for line in _lines(chunk.data):
            yield from self._entry(chunk.stream, line)
            if line.endswith(b"\n"):
                self._head = b""

    def _entry(self, stream: Literal["stdout", "stderr"], data: bytes) -> Iterator[LogEntryChunk]:
        if self._head is None:
            yield LogEntryChunk(stream, data, None)
            return
        head = self._head + data
        stamp, space, rest = head.partition(b" ")
        if not space and len(head) < MAX_TIMESTAMP_BYTES:
            self._head = head
            return
        self._head = None
        at_ns = parse_timestamp(stamp)
        if at_ns is None:  # An engine that stamps nothing: better doubled than lost.
            yield LogEntryChunk(stream, head, 0)
        else:
            yield LogEntryChunk(stream, rest, at_ns)


def _lines(data: bytes) -> list[bytes]:
    """By line feeds only: a carriage return is the terminal's."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


def parse_timestamp(stamp: bytes) -> int | None:
    """Nanoseconds of the Unix clock."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    zone = "+00:00" if found[3] == b"Z" else found[3].decode()
    seconds = int(datetime.fromisoformat(found[1].decode() + zone).timestamp())
    return seconds * SECOND_NS + int((found[2] or b"0").ljust(9, b"0"))
