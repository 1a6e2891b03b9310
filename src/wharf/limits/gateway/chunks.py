"""Bodies in chunks, read strictly: what was sent, without sizes, extensions and trailers. Nothing here waits."""

import re
from typing import Final

MAX_SIZE_LINE_BYTES: Final = 256
MAX_TRAILER_BYTES: Final = 8_192
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;[\t\x20-\x7e]*)?")
_TRAILER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\0]*")


class BadChunk(Exception):
    """Chunks that cannot be told apart. The text is for the sender."""


class ChunkReader:
    """Feed it what comes. `is_done` after the last chunk; `rest` is then what follows the body."""

    __slots__ = ("_buffer", "_left", "_state", "_trailer_bytes", "is_done", "rest")

    def __init__(self) -> None:
        self.is_done = False
        self.rest = b""
        self._buffer = b""
        self._left = 0
        self._state = _AT_SIZE
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """What of the body came with these bytes."""
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        at, found = 0, []
        while not self.is_done:
            if self._state == _IN_DATA:
                some = data[at : at + self._left]
                if not some:
                    break
                found.append(some)
                at += len(some)
                self._left -= len(some)
                if not self._left:
                    self._state = _AFTER_DATA
                continue
            if self._state == _AFTER_DATA:
                if len(data) - at < 2:
                    if data[at:] not in (b"", b"\r"):
                        raise BadChunk("A chunk is longer than its size says.")
                    break
                if data[at : at + 2] != b"\r\n":
                    raise BadChunk("A chunk is longer than its size says.")
                at += 2
                self._state = _AT_SIZE
                continue
            end = data.find(b"\n", at)
            most = MAX_SIZE_LINE_BYTES if self._state == _AT_SIZE else MAX_TRAILER_BYTES
            if (end if end >= 0 else len(data)) - at > most:
                raise BadChunk("A line between the chunks is too long.")
            if end < 0:
                break
            if data[end - 1 : end] != b"\r" or end == at:
                raise BadChunk("A line between the chunks does not end with CR LF.")
            self._read_line(data[at : end - 1])
            at = end + 1
        if self.is_done:
            self.rest = data[at:]
        else:
            self._buffer = data[at:]
        return found[0] if len(found) == 1 else b"".join(found)

    def _read_line(self, line: bytes) -> None:
        if self._state == _IN_TRAILERS:
            self._trailer_bytes += len(line) + 2
            if not line:
                self.is_done = True
            elif self._trailer_bytes > MAX_TRAILER_BYTES or _TRAILER.fullmatch(line) is None:
                raise BadChunk("What follows the last chunk are no headers.")
            return
        found = _SIZE.fullmatch(line)
        if found is None:
            raise BadChunk("The size of a chunk is no hexadecimal number.")
        self._left = int(found[1], 16)
        self._state = _IN_DATA if self._left else _IN_TRAILERS


_AT_SIZE: Final = 0
_IN_DATA: Final = 1
_AFTER_DATA: Final = 2
_IN_TRAILERS: Final = 3

LAST_CHUNK: Final = b"0\r\n\r\n"


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
