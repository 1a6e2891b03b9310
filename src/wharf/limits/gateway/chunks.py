"""Strict decoder and encoder for chunked bodies. Chunk extensions and trailers are discarded. Does no input or output."""

import re
from typing import Final

MAX_SIZE_LINE_BYTES: Final = 256
MAX_TRAILER_BYTES: Final = 8_192
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;[\t\x20-\x7e]*)?")
_TRAILER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\0]*")


class BadChunk(Exception):
    """A chunked body is malformed. The text is the error message for the sender."""


class ChunkReader:
    """Decodes one chunked body. After the last chunk `is_done` is true, and `rest` holds the bytes after the body."""

    __slots__ = ("_buffer", "_left", "_state", "_trailer_bytes", "is_done", "rest")

    def __init__(self) -> None:
        self.is_done = False
        self.rest = b""
        self._buffer = b""
        self._left = 0
        self._state = _AT_SIZE
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes that `data` completes. Raises BadChunk."""
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        position, parts = 0, []
        while not self.is_done:
            if self._state == _IN_DATA:
                part = data[position : position + self._left]
                if not part:
                    break
                parts.append(part)
                position += len(part)
                self._left -= len(part)
                if not self._left:
                    self._state = _AFTER_DATA
                continue
            if self._state == _AFTER_DATA:
                if len(data) - position < 2:
                    if data[position:] not in (b"", b"\r"):
                        raise BadChunk("A chunk is longer than its size says.")
                    break
                if data[position : position + 2] != b"\r\n":
                    raise BadChunk("A chunk is longer than its size says.")
                position += 2
                self._state = _AT_SIZE
                continue
            end = data.find(b"\n", position)
            max_bytes = MAX_SIZE_LINE_BYTES if self._state == _AT_SIZE else MAX_TRAILER_BYTES
            if (end if end >= 0 else len(data)) - position > max_bytes:
                raise BadChunk("A line between the chunks is too long.")
            if end < 0:
                break
            if data[end - 1 : end] != b"\r" or end == position:
                raise BadChunk("A line between the chunks does not end with CR LF.")
            self._read_line(data[position : end - 1])
            position = end + 1
        if self.is_done:
            self.rest = data[position:]
        else:
            self._buffer = data[position:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_line(self, line: bytes) -> None:
        """Read a line with the size of a chunk, or a trailer line."""
        if self._state == _IN_TRAILERS:
            self._trailer_bytes += len(line) + 2
            if not line:
                self.is_done = True
            elif self._trailer_bytes > MAX_TRAILER_BYTES or _TRAILER.fullmatch(line) is None:
                raise BadChunk("What follows the last chunk are no headers.")
            return
        size = _SIZE.fullmatch(line)
        if size is None:
            raise BadChunk("The size of a chunk is no hexadecimal number.")
        self._left = int(size[1], 16)
        self._state = _IN_DATA if self._left else _IN_TRAILERS


_AT_SIZE: Final = 0
_IN_DATA: Final = 1
_AFTER_DATA: Final = 2
_IN_TRAILERS: Final = 3

LAST_CHUNK: Final = b"0\r\n\r\n"


def encode_chunk(data: bytes) -> bytes:
    """Return the data as one chunk. Empty data would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
