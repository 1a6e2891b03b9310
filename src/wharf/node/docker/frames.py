"""Output and errors of a task in one stream: each piece behind eight bytes that say which it is and how long.

With a terminal there is one stream and no frames.
"""

import struct
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

HEADER_BYTES: Final = 8
_HEADER: Final = struct.Struct(">BxxxL")


class Chunk(NamedTuple):
    stream: Literal["stdout", "stderr"]
    data: bytes
    begins: bool = True  # A frame: the engine makes one of each entry of the log.


class Frames:
    """Takes bytes as they come, gives what is complete of them."""

    def __init__(self, *, is_tty: bool) -> None:
        self._is_tty = is_tty
        self._rest = b""
        self._stream: Literal["stdout", "stderr"] = "stdout"
        self._begins = False
        self._left = 0  # Of the frame that is begun: large ones are passed on in pieces.

    def feed(self, data: bytes) -> Iterator[Chunk]:
        if self._is_tty:
            if data:
                yield Chunk("stdout", data)
            return
        self._rest += data
        while self._rest:
            if not self._left:
                if len(self._rest) < HEADER_BYTES:
                    return
                kind, self._left = _HEADER.unpack_from(self._rest)
                self._stream = "stderr" if kind == 2 else "stdout"
                self._rest = self._rest[HEADER_BYTES:]
                self._begins = True
                continue
            piece, self._rest = self._rest[: self._left], self._rest[self._left :]
            self._left -= len(piece)
            begins, self._begins = self._begins, False
            yield Chunk(self._stream, piece, begins)
