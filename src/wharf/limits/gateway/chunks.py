"""Strict decoder and encoder for chunked bodies. Chunk extensions and trailers are discarded. Does no input or output."""

import re
import sys
from typing import Final

MAX_SIZE_LINE_BYTES: Final = 256
"""A longer line with the size of a chunk is refused; limits memory."""
MAX_TRAILER_BYTES: Final = 8_192
"""Longer trailers are refused; limits memory."""
LAST_CHUNK: Final = b"0\r\n\r\n"
"""The chunk that ends a chunked body."""
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;[\t\x20-\x7e]*)?")
_TRAILER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\0]*")

# The states of a `ChunkReader`: what it expects next.
_AT_SIZE: Final = 0
_IN_DATA: Final = 1
_AFTER_DATA: Final = 2
_IN_TRAILERS: Final = 3


class BadChunk(Exception):
    """A chunked body is malformed. The text is the reason, such as "a chunk is longer than its size"."""


class ChunkReader:
    """Decodes one chunked body. After the last chunk `is_done` is true, and `rest` holds the bytes after the body."""

    __slots__ = ("_buffer", "_remaining", "_state", "_trailer_bytes", "has_more", "is_done", "rest")

    def __init__(self) -> None:
        self.is_done = False
        self.has_more = False
        """Whether `feed` stopped after `max_lines` lines: call it again, without data."""
        self.rest = b""
        self._buffer = b""
        """The beginning of a line that is incomplete, or the bytes after the last line that was processed."""
        self._remaining = 0
        """Bytes of the current chunk that have not arrived."""
        self._state = _AT_SIZE
        self._trailer_bytes = 0

    def feed(self, data: bytes, *, max_lines: int = sys.maxsize) -> bytes:
        """Return the body bytes in `data`, without sizes and line ends; an incomplete line is stored for the next call.

        After `max_lines` lines the rest of `data` is stored too, and `has_more` is true. Raises `BadChunk` if the body is malformed.
        """
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        self.has_more = False
        position, parts = 0, []
        while not self.is_done:
            if self._state == _IN_DATA:
                part = data[position : position + self._remaining]
                if not part:
                    break
                parts.append(part)
                position += len(part)
                self._remaining -= len(part)
                if not self._remaining:
                    self._state = _AFTER_DATA
            elif self._state == _AFTER_DATA:
                line_end = data[position : position + 2]
                if line_end != b"\r\n":
                    if line_end not in (b"", b"\r"):
                        raise BadChunk("a chunk is longer than its size")
                    break
                position += 2
                self._state = _AT_SIZE
            else:
                end = self._find_line_end(data, position)
                if end < 0:
                    break
                if not max_lines:
                    self.has_more = True
                    break
                max_lines -= 1
                self._read_line(data[position : end - 1])
                position = end + 1
        if self.is_done:
            self.rest = data[position:]
        else:
            self._buffer = data[position:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _find_line_end(self, data: bytes, start: int) -> int:
        """Return the position of the LF that ends the line at `start`; -1 if it has not arrived.

        Raises `BadChunk` if the line is too long or does not end with CR LF.
        """
        end = data.find(b"\n", start)
        max_bytes = MAX_SIZE_LINE_BYTES if self._state == _AT_SIZE else MAX_TRAILER_BYTES
        if (end if end >= 0 else len(data)) - start > max_bytes:
            raise BadChunk(f"the line of a chunk size or trailer is longer than {max_bytes} bytes")
        if end >= 0 and (end == start or data[end - 1 : end] != b"\r"):
            raise BadChunk("the line of a chunk size or trailer does not end with CR LF")
        return end

    def _read_line(self, line: bytes) -> None:
        """Process a line with the size of a chunk, or a trailer line after the last chunk. Raises `BadChunk`."""
        if self._state == _IN_TRAILERS:
            self._trailer_bytes += len(line) + 2
            if not line:
                self.is_done = True
            elif self._trailer_bytes > MAX_TRAILER_BYTES:
                raise BadChunk(f"the trailers are longer than {MAX_TRAILER_BYTES} bytes")
            elif _TRAILER.fullmatch(line) is None:
                raise BadChunk("a trailer after the last chunk is not a header")
            return
        size = _SIZE.fullmatch(line)
        if size is None:
            raise BadChunk("the size of a chunk is not a hexadecimal number")
        self._remaining = int(size[1], 16)
        self._state = _IN_DATA if self._remaining else _IN_TRAILERS


def encode_chunk(data: bytes) -> bytes:
    """Return the data as one chunk. Empty data would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
