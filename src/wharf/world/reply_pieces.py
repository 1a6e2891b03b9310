"""Splits what an HTTP server sends into pieces that a client library parses in a few milliseconds, and limits heads.

A library parses all that it received before it returns: 64 KiB hold 2,600 interim replies or 10,000 chunks of one byte,
which take 0.15 s. Each event of HTTP/1.1 needs at least one line, except for the bytes of a body. Pieces with a limited
number of lines therefore take a limited time.
"""

import re
from typing import Final

MAX_HEAD_BYTES: Final = 65_536
"""Limits the memory and the parsing of the head of a reply."""
MAX_HEAD_LINES: Final = 500
"""Limits the headers of a reply, each of which a library parses on its own."""
MAX_INTERIM_REPLIES: Final = 10
"""Replies with a status from 100 to 199 before the final one. A server could send them forever, and a timeout for each
read would not end that."""
MAX_PIECE_LINES: Final = 100
"""Limits the events that a library parses before it gives the event loop back: chunks of a body and trailers."""

HEAD_END: Final = re.compile(rb"\n\r?\n")
INTERIM_STATUS: Final = re.compile(rb"HTTP/\d\.\d +1(?!01)\d\d")
"""101 is a final status: it ends HTTP on the connection."""
FIRST_TEXT_BYTE: Final = 0x21


class ReplyTooLarge(Exception):
    """The error for a reply whose head exceeds a limit, or that has too many interim replies."""


class ReplySplitter:
    """The received bytes of one connection that are not parsed yet.

    A piece is either a whole head, or bytes of a body with at most `MAX_PIECE_LINES` lines.
    """

    def __init__(self) -> None:
        self._data = b""
        self._start = 0
        self._is_head = True
        self._interim_count = 0

    @property
    def is_in_head(self) -> bool:
        """Whether the head of the final reply is not complete yet."""
        return self._is_head

    @property
    def has_data(self) -> bool:
        return self._start < len(self._data)

    def start_reply(self) -> None:
        """Expect the head of a reply next, because a request is sent."""
        self._is_head, self._interim_count = True, 0

    def add(self, data: bytes) -> None:
        """Add bytes that were received."""
        self._data = self._data[self._start :] + data
        self._start = 0

    def take(self, max_bytes: int) -> bytes:
        """Remove and return the next piece; empty if more bytes are needed first. Raises `ReplyTooLarge`."""
        if not self.has_data:
            return b""
        return self._take_head() if self._is_head else self._take_body(max_bytes)

    def take_rest(self) -> bytes:
        """Remove and return all bytes, because the server sends no more."""
        rest, self._data, self._start = self._data[self._start :], b"", 0
        return rest

    def _take_head(self) -> bytes:
        """Remove and return a head; empty if it is not complete."""
        if self._data[self._start] < FIRST_TEXT_BYTE and self._data[self._start] not in b"\r\n":
            self._is_head = False  # This is no HTTP: the library reports that.
            return self._take_body(MAX_HEAD_BYTES)
        found = HEAD_END.search(self._data, self._start)
        end = found.end() if found else len(self._data)
        if end - self._start > MAX_HEAD_BYTES:
            raise ReplyTooLarge(f"the head of the reply has more than {MAX_HEAD_BYTES} bytes")
        if self._data.count(b"\n", self._start, end) > MAX_HEAD_LINES:
            raise ReplyTooLarge(f"the head of the reply has more than {MAX_HEAD_LINES} lines")
        if found is None:
            return b""
        if INTERIM_STATUS.match(self._data, self._start):
            self._interim_count += 1
            if self._interim_count > MAX_INTERIM_REPLIES:
                raise ReplyTooLarge(f"the server sent more than {MAX_INTERIM_REPLIES} interim replies")
        else:
            self._is_head = False
        return self._remove(end)

    def _take_body(self, max_bytes: int) -> bytes:
        """Remove and return bytes up to the last line of a piece."""
        limit = min(self._start + max_bytes, len(self._data))
        if self._data.count(b"\n", self._start, limit) <= MAX_PIECE_LINES:
            return self._remove(limit)
        end = self._start
        for _ in range(MAX_PIECE_LINES):
            end = self._data.index(b"\n", end) + 1
        return self._remove(end)

    def _remove(self, end: int) -> bytes:
        """Remove and return the bytes up to `end`."""
        piece = self._data[self._start : end]
        self._start = end
        return piece
