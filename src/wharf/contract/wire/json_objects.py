"""Splits streamed bytes into JSON objects that follow one another, such as the frames of a log.

The sender may be hostile: each byte is scanned once, and an object has limits of its size and of its parts. What the objects
mean does not belong here.
"""

import re
from collections.abc import Iterator
from typing import Final

MAX_OBJECT_BYTES: Final = 1 << 20
"""Limit of an incomplete object; protects the memory of the reader. Servers and nodes send 64 KiB of data in an object."""
MAX_OBJECT_TOKENS: Final = 1_000
"""Braces and strings of one object. Each takes a step of the scan, so this limits its CPU time. A log frame has ten."""

_OPEN, _QUOTE = b'{"'
_find_token = re.compile(rb'[{}"]').search
_skip_space = re.compile(rb"[ \t\r\n]*+").match
_skip_text = re.compile(rb'(?:[^"\\]++|\\[\s\S])*+').match
"""Skips the rest of a string up to its closing quote, to a backslash whose next byte is missing, or to the end."""


class JsonObjectSplitter:
    """Splits chunks into the encoded JSON objects that they contain. A chunk may contain several, or a part of one."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begin = 0
        """Where the first object that was not returned begins in the buffer."""
        self._scanned = 0
        """The position up to which the buffer was scanned. What the scan found is in the next three fields."""
        self._depth = 0
        self._is_in_text = False
        self._token_count = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the objects that this chunk completes. Raises `ValueError` if the stream does not consist of objects.

        Only the braces and strings of an object are checked, so it may be invalid.
        """
        self._buffer += chunk
        while self._scan_object():
            encoded = bytes(self._buffer[self._begin : self._scanned])
            self._begin, self._token_count = self._scanned, 0
            yield encoded
        del self._buffer[: self._begin]
        self._scanned -= self._begin
        self._begin = 0
        if len(self._buffer) > MAX_OBJECT_BYTES:
            raise ValueError(f"a JSON object has more than {MAX_OBJECT_BYTES:,} bytes: {self._quote_begin()}")

    def reset(self) -> None:
        """Drop the incomplete object at the end of a broken stream."""
        self._buffer.clear()
        self._begin = self._scanned = self._depth = self._token_count = 0
        self._is_in_text = False

    def _scan_object(self) -> bool:
        """Scan up to the end of an object, and return true; or up to the end of the buffer, and return false."""
        buffer, size = self._buffer, len(self._buffer)
        while self._scanned < size:
            if self._is_in_text:
                self._skip_text_part()
                if self._is_in_text:
                    return False
            elif self._depth:
                token = _find_token(buffer, self._scanned)
                self._scanned = token.end() if token else size
                if token and self._apply_token(buffer[token.start()]):
                    return True
            else:
                self._begin = self._scanned = self._find_begin()
                if self._scanned < size:
                    self._depth = 1
                    self._scanned += 1
        return False

    def _skip_text_part(self) -> None:
        """Scan the received part of a string."""
        match = _skip_text(self._buffer, self._scanned)
        self._scanned = match.end() if match else self._scanned
        if self._scanned < len(self._buffer) and self._buffer[self._scanned] == _QUOTE:
            self._scanned += 1
            self._is_in_text = False

    def _apply_token(self, token: int) -> bool:
        """Record a brace or a quote outside strings. Return whether it ends the object."""
        self._token_count += 1
        if self._token_count > MAX_OBJECT_TOKENS:
            raise ValueError(
                f"a JSON object has more than {MAX_OBJECT_TOKENS:,} braces and strings: {self._quote_begin()}"
            )
        if token == _QUOTE:
            self._is_in_text = True
        else:
            self._depth += 1 if token == _OPEN else -1
        return self._depth == 0

    def _find_begin(self) -> int:
        """Return where the next object begins, or the end of the buffer. Raises `ValueError` if something else begins."""
        space = _skip_space(self._buffer, self._scanned)
        position = space.end() if space else self._scanned
        if position < len(self._buffer) and self._buffer[position] != _OPEN:
            self._begin = position
            raise ValueError(f"not a JSON object: {self._quote_begin()}")
        return position

    def _quote_begin(self) -> str:
        """Return the first bytes of the current object for an error text."""
        return repr(bytes(self._buffer[self._begin : self._begin + 40]))
