"""Reads, searches and follows the logs of allocations for pages, through the API."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final

import msgspec

from wharf.contract.client.async_client import AsyncClient
from wharf.contract.client.errors import NotFound, RequestRefused
from wharf.contract.client.streams import LogChunk
from wharf.contract.client.transport import Unreachable
from wharf.contract.wire.allocations.log_search import LogSearch
from wharf.web.refusals import explain_refusal

MAX_LINE_BYTES: Final = 64 << 10
"""A longer line is cut into several: a task may never end its line."""
READ_TIMEOUT_S: Final = 8.0
"""How long a page waits for a log. A node that does not reply must not hold up the logs of the others."""
SEARCH_TIMEOUT_S: Final = 20.0
"""How long a search may take; a person waits for it. Nodes end a search earlier, and say so."""
CONCURRENT_SEARCHES: Final = 8
"""How many logs of a page are searched at once. Limits what one page asks of the nodes."""
MAX_FILE_BYTES: Final = 64 << 20
"""How much of one file of a log is read to find its end. Nodes rotate the files of logs at 10 MB unless the job says otherwise."""


class TaskLog(msgspec.Struct, frozen=True):
    """A log: one stream of one task in one allocation."""

    alloc_id: str
    task: str
    stream: str
    name: str
    """How the page names it, such as `web[0] server`."""
    color: str = ""
    is_running: bool = False
    """Whether the allocation can still write to it."""

    @property
    def is_error(self) -> bool:
        return self.stream == "stderr"


class LinePosition(msgspec.Struct, frozen=True):
    """A position in a log: the number of its file, and the byte in this file."""

    number: int | None
    """`None` for the lines that the servers store after the end: they are one file without a number."""
    offset: int


class LogLine(msgspec.Struct, frozen=True):
    """A line of a log."""

    source: TaskLog
    position: LinePosition
    text: bytes


class LogPart(msgspec.Struct, frozen=True):
    """What was read of a log: lines, or why there are none."""

    source: TaskLog
    lines: tuple[LogLine, ...] = ()
    end: LinePosition | None = None
    """Where the log continues; `None` if nothing was read."""
    is_retained: bool = False
    """Whether the lines are the last ones that the servers store."""
    problem: str = ""
    has_more: bool = False
    """Whether there are earlier lines."""


class LineCutter:
    """Cuts the chunks of a log into lines with their positions."""

    def __init__(self, source: TaskLog) -> None:
        self._source = source
        self._rest = b""
        self._rest_at = LinePosition(0, 0)
        self.end: LinePosition | None = None
        """The position after the last chunk."""
        self.is_retained = False

    def feed(self, chunk: LogChunk) -> Iterator[LogLine]:
        """Yield the lines that this chunk completes."""
        number = read_file_number(chunk.file)
        begin = LinePosition(number, chunk.offset - len(chunk))
        self.is_retained = number is None
        if self._rest and self._rest_at.number != number:
            yield self.take_rest()
        data, begin = (self._rest + chunk, self._rest_at) if self._rest else (bytes(chunk), begin)
        self.end = LinePosition(number, chunk.offset)
        place = 0
        while (found := data.find(b"\n", place)) >= 0:
            yield LogLine(self._source, LinePosition(number, begin.offset + place), data[place:found])
            place = found + 1
        self._rest, self._rest_at = data[place:], LinePosition(number, begin.offset + place)
        if len(self._rest) >= MAX_LINE_BYTES:
            yield self.take_rest()

    def has_rest(self) -> bool:
        return bool(self._rest)

    def take_rest(self) -> LogLine:
        """Return the unfinished last line, and begin a new one."""
        line = LogLine(self._source, self._rest_at, self._rest)
        self._rest = b""
        return line


def read_file_number(file: str) -> int | None:
    """Return the number of a file of a log, such as 3 of `alloc/logs/server.stdout.3`; `None` if it has none."""
    number = file.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


async def read_end(client: AsyncClient, source: TaskLog, *, max_lines: int, max_bytes: int) -> LogPart:
    """Return the last lines of a log."""
    cutter, lines, size = LineCutter(source), deque[LogLine](), 0
    try:
        async with (
            asyncio.timeout(READ_TIMEOUT_S),
            open_log(client, source, origin="end", offset=max_bytes) as chunks,
        ):
            async for chunk in chunks:
                size += len(chunk)
                lines.extend(cutter.feed(chunk))
    except (RequestRefused, Unreachable, TimeoutError) as problem:
        return LogPart(source, problem=describe_problem(problem))
    if cutter.has_rest():
        lines.append(cutter.take_rest())
    is_cut = size >= max_bytes
    if is_cut and len(lines) > 1:
        lines.popleft()  # It may have begun before.
    shown = tuple(lines)[-max_lines:]
    return LogPart(
        source, shown, cutter.end, is_retained=cutter.is_retained, has_more=is_cut or len(lines) > len(shown)
    )


async def read_window(
    client: AsyncClient,
    source: TaskLog,
    begin: LinePosition,
    *,
    end_offset: int | None,
    max_lines: int,
    max_bytes: int,
) -> LogPart:
    """Return lines from a position on: the first ones, or with `end_offset` the last ones before that byte of the file."""
    is_backward = end_offset is not None
    cutter, lines, size = LineCutter(source), deque[LogLine](maxlen=max_lines + 2 if is_backward else None), 0
    is_whole = True

    def is_before_end(line: LogLine) -> bool:
        return end_offset is None or line.position.offset < end_offset

    try:
        async with (
            asyncio.timeout(READ_TIMEOUT_S),
            open_log(client, source, origin="start", offset=begin.offset, number=begin.number) as chunks,
        ):
            async for chunk in chunks:
                if is_backward and read_file_number(chunk.file) != begin.number:
                    break
                size += len(chunk)
                lines.extend(line for line in cutter.feed(chunk) if is_before_end(line))
                if end_offset is not None and chunk.offset >= end_offset:
                    break
                if size >= max_bytes or (not is_backward and len(lines) > max_lines):
                    is_whole = False
                    break
    except (RequestRefused, Unreachable, TimeoutError) as problem:
        return LogPart(source, problem=describe_problem(problem))
    if is_whole and cutter.has_rest() and is_before_end(rest := cutter.take_rest()):
        lines.append(rest)
    if begin.offset > 0 and len(lines) > 1 and lines[0].position.offset == begin.offset:
        lines.popleft()  # The window may have begun inside of it.
    chosen = tuple(lines)[-max_lines:] if is_backward else tuple(lines)[:max_lines]
    return LogPart(
        source, chosen, cutter.end, is_retained=cutter.is_retained, has_more=not is_whole or len(lines) > len(chosen)
    )


class SearchResult(msgspec.Struct):
    """The lines of the logs that contain a text."""

    count: int = 0
    """How many lines contain the text, in all of what was searched."""
    searched_bytes: int = 0
    lines: deque[LogLine] = msgspec.field(default_factory=deque)
    """The last of these lines."""
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    """Why a log could not be searched, by the name of the log."""
    stopped: str = ""
    """Why the search ended before the beginning of the logs; empty if it is complete."""


async def search_logs(client: AsyncClient, sources: tuple[TaskLog, ...], text: str, *, max_lines: int) -> SearchResult:
    """Return how many lines contain a text, and the last ones. Letters of ASCII match in both cases.

    The nodes search. A log that a node has not searched after `SEARCH_TIMEOUT_S` is a problem, and the others count.
    """
    free = asyncio.Semaphore(CONCURRENT_SEARCHES)

    async def search(source: TaskLog) -> LogSearch | str:
        try:
            async with asyncio.timeout(SEARCH_TIMEOUT_S), free:
                return await client.files.search_logs(
                    source.alloc_id, source.task, text, type=source.stream, limit=max_lines, timeout_s=SEARCH_TIMEOUT_S
                )
        except TimeoutError:
            return f"the node did not reply within {SEARCH_TIMEOUT_S:g} s"
        except (RequestRefused, Unreachable) as problem:
            return describe_problem(problem)

    result = SearchResult(lines=deque(maxlen=max_lines))
    for source, found in zip(sources, await asyncio.gather(*map(search, sources)), strict=True):
        if isinstance(found, str):
            if found:
                result.problems[source.name] = found
            continue
        result.count += found.count
        result.searched_bytes += found.searched_bytes
        if found.stopped:
            result.stopped = f"{source.name}: {found.stopped}"
        result.lines.extend(
            LogLine(source, LinePosition(read_file_number(line.file), line.offset), line.text) for line in found.lines
        )
    return result


def open_log(
    client: AsyncClient,
    source: TaskLog,
    *,
    origin: str,
    offset: int,
    number: int | None = None,
    follow: bool = False,
) -> "aclosing[AsyncGenerator[LogChunk, None]]":
    """Return the chunks of a log from a position on, for `async with`, which ends the request.

    With a number, the offset counts from the start of that file.
    """
    file = "" if number is None else f"alloc/logs/{source.task}.{source.stream}.{number}"
    chunks = client.files.logs(
        source.alloc_id, source.task, type=source.stream, origin=origin, offset=offset, file=file, follow=follow
    )
    return aclosing(chunks)


def describe_problem(problem: Exception) -> str:
    """Return why a log could not be read; empty if the task has printed nothing."""
    if isinstance(problem, TimeoutError):
        return f"the node did not reply within {READ_TIMEOUT_S:g} s"
    if isinstance(problem, RequestRefused):
        return "" if isinstance(problem, NotFound) and " yet" in problem.text else explain_refusal(problem)
    return str(problem)
