"""The search in a log: the limits of the request, the reply, and the search itself, which nodes and servers share."""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from wharf.contract.model.record import Record
from wharf.contract.model.refusal import invalid_request

MAX_SEARCH_TEXT_BYTES: Final = 4_096
"""Limit of the text to search for: each step of a search compares it."""
MAX_SEARCH_LINES: Final = 10_000
DEFAULT_SEARCH_LINES: Final = 1_000
MAX_FOUND_LINE_BYTES: Final = 64 << 10
"""How much of a line is stored: a task may never end its line."""
MAX_FOUND_BYTES: Final = 4 << 20
"""How much all stored lines have together; the oldest ones are dropped. Protects the memory of the node and of the server."""

ESCAPE: Final = b"\x1b"
CONTROL_SEQUENCE: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colors of terminals in the output of a task."""


class LogSearchLine(Record):
    """A line of a log that contains the text."""

    file: str  # The file of the log, such as `alloc/logs/server.stdout.0`.
    offset: int  # The position of the line in this file, in bytes.
    text: bytes  # The line without its end, at most 64 kB of it.


class LogSearch(Record):
    """The lines of a log that contain a text."""

    count: int = 0  # How many lines contain the text, in all that was searched.
    searched_bytes: int = 0
    stopped: str = ""  # Why the search ended before all of the log was searched; empty if the count is complete.
    lines: tuple[LogSearchLine, ...] = ()  # The last of these lines, at most 4 MB of them.


def check_search(text: str, limit: int) -> int:
    """Return how many lines the reply has at most: `limit`, or the default for 0. Raises `Refusal` if a value is not valid."""
    if not text:
        raise invalid_request("missing text: give the text to search for as `text`")
    if "\n" in text:
        raise invalid_request("the text has several lines: logs are searched line by line")
    if len(text.encode()) > MAX_SEARCH_TEXT_BYTES:
        raise invalid_request(f"the text is longer than {MAX_SEARCH_TEXT_BYTES:,} bytes")
    if not 0 <= limit <= MAX_SEARCH_LINES:
        raise invalid_request(f"limit is {limit}; it must be a number from 0 to {MAX_SEARCH_LINES:,}")
    return limit or DEFAULT_SEARCH_LINES


class LineSearch:
    """Counts the lines that contain a text, and stores the last ones. Letters of ASCII match in both cases.

    Colors of terminals are ignored, because pages do not show them: a color may begin within the text.

    The newest file is searched first, so that the lines of older ones need only be counted. A file is searched in blocks from its
    beginning on. Nothing is decoded.
    """

    def __init__(self, text: bytes, *, max_lines: int) -> None:
        self._needle = text.lower()
        self._rest_of_line = re.compile(re.escape(self._needle) + rb"[^\n]*")
        self._max_lines = max_lines
        self._max_bytes = MAX_FOUND_BYTES
        """How many lines, and bytes of them, may be stored beside those of the files that were searched before."""
        self._newer_lines: list[LogSearchLine] = []
        self._lines: deque[LogSearchLine] = deque()
        """The last lines of the current file."""
        self._line_bytes = 0
        self._count = 0
        self._searched_bytes = 0

    def search_block(self, data: bytes, file: str, offset: int, *, is_last: bool) -> int:
        """Search the whole lines of a block that begins at `offset` of a file. Return the number of bytes that were searched.

        The next block begins after them. The last block of a file is searched to its end. So is a block without a line
        feed, because its line is longer than a block.
        """
        end = len(data) if is_last else data.rfind(b"\n") + 1 or len(data)
        # Most blocks have few matches and need three passes of C code. A loop over all lines takes ten times as long.
        folded = data[:end].lower()
        self._searched_bytes += end
        has_colors = ESCAPE in folded
        text = CONTROL_SEQUENCE.sub(b"", folded) if has_colors else folded
        if text.find(self._needle) >= 0:
            count = len(self._rest_of_line.findall(text))
            self._count += count
            places = self._iter_colored_lines(folded, text) if has_colors else self._iter_lines(folded)
            self._store_lines(data, islice(places, min(count, self._max_lines)), file, offset)
        if is_last:
            self._end_file()
        return end

    def build_reply(self, stopped: str = "") -> LogSearch:
        """Return what was found. `stopped`: why the search ended early."""
        lines = (*self._lines, *self._newer_lines)
        return LogSearch(count=self._count, searched_bytes=self._searched_bytes, stopped=stopped, lines=lines)

    def _iter_lines(self, folded: bytes) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each line of a block that matches, the last one first."""
        end = len(folded)
        while (position := folded.rfind(self._needle, 0, end)) >= 0:
            begin = folded.rfind(b"\n", 0, position) + 1
            line_end = folded.find(b"\n", position)
            yield begin, len(folded) if line_end < 0 else line_end
            end = begin

    def _iter_colored_lines(self, folded: bytes, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each line of a block that matches, the last one first. `text` is the block without colors."""
        end = len(folded)
        for line, shown in zip(reversed(folded.split(b"\n")), reversed(text.split(b"\n")), strict=True):
            begin = end - len(line)
            if self._needle in shown:
                yield begin, end
            end = begin - 1

    def _store_lines(self, data: bytes, places: Iterable[tuple[int, int]], file: str, offset: int) -> None:
        """Store the lines at these places of a block, the last of which is the first, and drop what is too much."""
        found = [
            LogSearchLine(file=file, offset=offset + begin, text=data[begin : min(end, begin + MAX_FOUND_LINE_BYTES)])
            for begin, end in places
        ]
        self._lines.extend(reversed(found))
        self._line_bytes += sum(len(line.text) for line in found)
        while len(self._lines) > self._max_lines or self._line_bytes > self._max_bytes:
            self._line_bytes -= len(self._lines.popleft().text)

    def _end_file(self) -> None:
        """Put the lines of the current file before those of newer files."""
        self._newer_lines[:0] = self._lines
        self._max_lines -= len(self._lines)
        self._max_bytes -= self._line_bytes
        self._lines.clear()
        self._line_bytes = 0
