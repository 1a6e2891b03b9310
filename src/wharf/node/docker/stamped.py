"""The engine's log with its moments: entry by entry, each with when it was written, whichever way it is cut on its way."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal, NamedTuple

from wharf.node.docker.frames import Chunk

SECOND_NS: Final = 1_000_000_000
STAMP_MAX_BYTES: Final = 64
_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class Piece(NamedTuple):
    """Of one entry; `at_ns` is given with its first piece."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    at_ns: int | None


class Stamped:
    """Takes what the engine sends with `timestamps`, gives it without."""

    def __init__(self, *, is_tty: bool) -> None:
        self._is_tty = is_tty
        self._head: bytes | None = b""
        """What there is of a moment that is not read to its end; None within an entry."""

    def feed(self, chunk: Chunk) -> Iterator[Piece]:
        if not self._is_tty:
            if chunk.begins:
                self._head = b""
            yield from self._entry(chunk.stream, chunk.data)
            return
        # With a terminal there are no frames: an entry is a line.
        for line in _lines(chunk.data):
            yield from self._entry(chunk.stream, line)
            if line.endswith(b"\n"):
                self._head = b""

    def _entry(self, stream: Literal["stdout", "stderr"], data: bytes) -> Iterator[Piece]:
        if self._head is None:
            yield Piece(stream, data, None)
            return
        head = self._head + data
        stamp, space, rest = head.partition(b" ")
        if not space and len(head) < STAMP_MAX_BYTES:
            self._head = head
            return
        self._head = None
        at_ns = read_stamp(stamp)
        if at_ns is None:  # An engine that stamps nothing: better doubled than lost.
            yield Piece(stream, head, 0)
        else:
            yield Piece(stream, rest, at_ns)


def _lines(data: bytes) -> list[bytes]:
    """By line feeds only: a carriage return is the terminal's."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


def read_stamp(stamp: bytes) -> int | None:
    """Nanoseconds of the Unix clock."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    zone = "+00:00" if found[3] == b"Z" else found[3].decode()
    seconds = int(datetime.fromisoformat(found[1].decode() + zone).timestamp())
    return seconds * SECOND_NS + int((found[2] or b"0").ljust(9, b"0"))
