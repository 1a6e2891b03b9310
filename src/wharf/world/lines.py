"""Splits streamed bytes into lines. What the lines mean belongs to the protocols that use them."""


class LineTooLong(ValueError):
    """A line is longer than the limit of its reader."""


class LineSplitter:
    """Splits chunks into lines. Each byte is scanned once, however many chunks a line has.

    An incomplete line above `max_bytes` is rejected, which protects the memory of the reader.
    """

    __slots__ = ("_max_bytes", "_rest")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without their line feeds. Raises `LineTooLong`."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self._max_bytes:
            raise LineTooLong(f"a line has more than {self._max_bytes:,} bytes: {bytes(self._rest[:40])!r}")
        return lines

    @property
    def rest_bytes(self) -> int:
        """The size of the incomplete last line."""
        return len(self._rest)

    def take_rest(self) -> bytes:
        """Return the incomplete last line, and drop it."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest
