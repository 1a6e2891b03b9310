"""Reads and prints the logs of one task of an allocation for `wharf job logs`, each line with a prefix.

Which tasks are printed, and when, is decided in `logs`.
"""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from wharf.cli.alloc.logs import (
    ESTIMATED_LINE_BYTES,
    READ_GROWTH_FACTOR,
    create_log_outage,
    get_read_position,
    has_last_lines,
    is_finished,
    is_retained,
    take_last_lines,
)
from wharf.cli.common.allocation_selection import get_index
from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import Session
from wharf.cli.common.task_output import TaskOutput, clean_lines
from wharf.cli.common.terminal import render_for_terminal, style
from wharf.world.backoff import Backoff
from wharf.world.lines import LineSplitter

if TYPE_CHECKING:
    from wharf.contract.client import AsyncClient
    from wharf.contract.client.streams import LogChunk
    from wharf.contract.model.allocations.allocation import AllocationStub

STREAMS: Final = ("stdout", "stderr")
PREFIX_COLOURS: Final = (32, 130, 28, 163, 30, 99, 100, 168)
"""Colours of the palette with 256 colours, without red. On black and on white each has a contrast of at least 3.5."""
MAX_LINE_BYTES: Final = 1 << 20
"""A longer line is printed in parts: a task may never end its line."""
MAX_READ_AHEAD_BYTES: Final = 1 << 20
"""How much of the logs of one task waits in memory until earlier logs are printed. The rest is read when it is printed."""
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 5.0
"""The longest pause before a log is looked for again that does not exist yet. A user waits for the lines."""


class LineSettings(NamedTuple):
    """What is read of each log, and which of its lines are printed."""

    streams: tuple[str, ...]
    lines: int | None
    """The number of last lines of each log; None is the whole log."""
    pattern: "re.Pattern[str] | None"
    since_ns: int
    """A Unix time: logs that were last written before it are left out; 0 is no limit."""
    is_raw: bool


class PrefixColumns:
    """The widths of the columns of all prefixes, and the colour of each allocation, so that lines of several tasks align."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._widths = (0, 0)
        self._colours: dict[str, int] = {}
        context = click.get_current_context(silent=True)
        self.has_colours = sys.stdout.isatty() and (context is None or context.color is not False)

    def add(self, allocation: "AllocationStub", task: str) -> None:
        """Widen the columns for a task whose lines will be printed, and choose the colour of its allocation."""
        self._widths = max(self._widths[0], len(_format_instance(allocation))), max(self._widths[1], len(task))
        self._colours.setdefault(allocation.id, PREFIX_COLOURS[len(self._colours) % len(PREFIX_COLOURS)])

    def render(self, allocation: "AllocationStub", task: str, stream: str) -> str:
        """Return the prefix of a line; `!` marks standard error."""
        instance = _format_instance(allocation).ljust(self._widths[0])
        label = f"{self._session.shorten_id(allocation.id)} {instance} {task.ljust(self._widths[1])}"
        text = style(label, fg=self._colours[allocation.id])
        return render_for_terminal(text + (style("! ", fg="red") if stream == "stderr" else "  "))

    def render_plain(self, allocation: "AllocationStub", task: str, stream: str) -> str:
        """Return the prefix of a line for output without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.render(allocation, task, stream))


def _format_instance(allocation: "AllocationStub") -> str:
    """Return group and index of an allocation, such as `web[3]`."""
    index = get_index(allocation)
    return f"{allocation.task_group}[{index}]" if index >= 0 else allocation.task_group


class _StreamPart:
    """What was read of one output stream of a task, and has not been printed yet."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.position: LogChunk | None = None
        """The last part of the log that was read: the log continues after it."""
        self.is_complete = False
        """Whether the log was read to its end."""


class TaskLogs:
    """The logs of one task in an allocation, which are printed line by line.

    `read_ahead` may run while other logs are printed; `print_all` then prints what it has read, and the rest.
    """

    def __init__(
        self,
        session: Session,
        client: "AsyncClient",
        allocation: "AllocationStub",
        task: str,
        settings: LineSettings,
        columns: PrefixColumns,
    ) -> None:
        self.allocation = allocation
        self.is_retained = False
        """Whether lines were printed that servers have stored, because the node has no files or does not reply."""
        self.has_output = False
        """Whether anything was read, also if no line of it is printed."""
        self._session = session
        self._client = client
        self._task = task
        self._settings = settings
        self._columns = columns
        self._output = TaskOutput(is_raw=settings.is_raw)
        self._splitters = {stream: LineSplitter(sys.maxsize) for stream in settings.streams}
        """Without a limit, because `_print` prints a long line in parts."""
        self._parts = {stream: _StreamPart() for stream in settings.streams}

    # -- ended logs

    async def read_ahead(self) -> None:
        """Read the logs, up to `MAX_READ_AHEAD_BYTES`, without printing them. Raises CliError."""
        from wharf.contract.client.errors import InvalidRequest
        from wharf.contract.wire.allocations.log_frames import ALL_LOGS

        if not await self._was_written_since():
            for part in self._parts.values():
                part.is_complete = True
            return
        if len(self._settings.streams) == 1:
            await self._read_part(self._settings.streams[0])
            return
        try:
            await self._read_part(ALL_LOGS)
        except InvalidRequest:  # A node or a server of an older version, which reads one stream in each request.
            for stream in self._settings.streams:
                await self._read_part(stream)

    async def _read_part(self, log_type: str) -> None:
        """Read one or all streams of the task in one request, up to `MAX_READ_AHEAD_BYTES`."""
        from wharf.contract.client.errors import NotFound
        from wharf.contract.wire.allocations.log_frames import ALL_LOGS

        origin, offset = get_read_position(self._get_first_bytes())
        read_bytes = 0
        async with aclosing(self._open(log_type, origin, offset)) as chunks:
            try:
                async for chunk in chunks:
                    stream = self._find_stream(chunk, log_type)
                    part = self._parts[stream]
                    part.text += chunk
                    part.position = chunk
                    read_bytes += len(chunk)
                    if read_bytes >= MAX_READ_AHEAD_BYTES:
                        return
            except NotFound:  # Nothing was printed, the task has not started, or the files are gone.
                pass
        for stream in self._settings.streams if log_type == ALL_LOGS else (log_type,):
            self._parts[stream].is_complete = True

    def _find_stream(self, chunk: "LogChunk", log_type: str) -> str:
        """Return the stream of a part of a log, which the name of its file contains."""
        if log_type in self._settings.streams:
            return log_type
        name = chunk.file.rpartition("/")[2]
        return next(
            stream
            for stream in self._settings.streams
            if name == f"{self._task}.{stream}" or name.startswith(f"{self._task}.{stream}.")
        )

    def _get_first_bytes(self) -> int | None:
        """Return how many bytes of the end of a log are read at first; None: the whole log."""
        lines = self._settings.lines
        return None if lines is None else ESTIMATED_LINE_BYTES * max(lines, 1)

    async def print_all(self) -> None:
        """Print the logs to their ends: what `read_ahead` has read, and the rest."""
        for stream, part in self._parts.items():
            if self._settings.lines is not None:
                await self._complete_last_lines(stream, part, self._settings.lines)
            self.is_retained = self.is_retained or is_retained(part.position)
            self._print(stream, bytes(part.text))
            part.text.clear()
            if not part.is_complete:
                await self._print_from(stream, part.position)
            self._print_rest(stream)

    async def _complete_last_lines(self, stream: str, part: _StreamPart, lines: int) -> None:
        """Reduce what was read of a log to its last lines. If it has too few, read more and more of the log's end."""
        from wharf.contract.client.errors import NotFound

        requested_bytes = ESTIMATED_LINE_BYTES * max(lines, 1)
        while not part.is_complete or not has_last_lines(bytes(part.text), lines, requested_bytes):
            requested_bytes *= READ_GROWTH_FACTOR if part.is_complete else 1
            part.text.clear()
            try:
                async for chunk in self._open(stream, *get_read_position(requested_bytes)):
                    part.text += chunk
                    part.position = chunk
            except NotFound:
                pass
            part.is_complete = True
        part.text[:] = take_last_lines(bytes(part.text), lines)

    async def _print_from(self, stream: str, position: "LogChunk | None") -> None:
        """Print a log from a position on to its present end."""
        from wharf.contract.client.errors import NotFound

        origin, offset, file = ("", 0, "") if position is None else ("start", position.offset, position.file)
        try:
            async for chunk in self._open(stream, origin, offset, file=file):
                self.is_retained = self.is_retained or is_retained(chunk)
                self._print(stream, chunk)
        except NotFound:
            return

    def _open(
        self, log_type: str, origin: str, offset: int, *, file: str = "", is_following: bool = False
    ) -> "AsyncGenerator[LogChunk, None]":
        return self._client.files.logs(
            self.allocation.id,
            self._task,
            type=log_type,
            follow=is_following,
            origin=origin,
            offset=offset,
            file=file,
            namespace=self.allocation.namespace,
        )

    async def _was_written_since(self) -> bool:
        """Return whether one of the logs was written to after the time of `--since`."""
        if not self._settings.since_ns:
            return True
        from wharf.cli.common.times import parse_time, to_nanoseconds
        from wharf.contract.client.errors import NotFound

        state = (self.allocation.task_states or {}).get(self._task)
        if self.allocation.client_status.is_terminal and state is not None and state.finished_at is not None:
            return to_nanoseconds(state.finished_at) >= self._settings.since_ns
        try:
            entries = await self._client.files.list(
                self.allocation.id, "alloc/logs", namespace=self.allocation.namespace
            )
        except NotFound:
            return True
        prefixes = tuple(f"{self._task}.{stream}." for stream in self._settings.streams)
        times = [to_nanoseconds(parse_time(each.mod_time)) for each in entries if each.name.startswith(prefixes)]
        return not times or max(times) >= self._settings.since_ns

    # -- logs that grow

    async def follow(self, stream: str) -> None:
        """Print one log until the allocation ends, also over interruptions of the connection. Raises CliError."""
        from wharf.contract.client import Unreachable
        from wharf.contract.client.errors import NotFound, ServerUnavailable

        backoff = Backoff(self._session.world.random, min_s=MIN_PAUSE_S, max_s=MAX_PAUSE_S)
        outage = create_log_outage(self._session, self.allocation)
        part, was_finished, has_begun = self._parts[stream], False, False
        while True:
            try:
                if not has_begun:
                    if await self._was_written_since():
                        await self._print_last_lines(stream, part)
                        has_begun = True
                    else:  # Only what is written from now on.
                        part.position = await self._find_end(stream)
                        has_begun = True
                position = part.position
                origin, offset, file = ("", 0, "") if position is None else ("start", position.offset, position.file)
                async for chunk in self._open(stream, origin, offset, file=file, is_following=True):
                    backoff.reset()
                    outage.end()
                    part.position = chunk
                    self._print(stream, chunk)
                self._print_rest(stream)
                return
            except NotFound:
                # No log exists: nothing was printed, the task has not started, the files are gone or the node is away.
                if was_finished:
                    return
                was_finished = await is_finished(self._client, self.allocation)
                await asyncio.sleep(backoff.next_delay_s())
            except ServerUnavailable as error:
                raise CliError(describe_missing_log(self.allocation, error.text)) from error
            except Unreachable as error:
                await asyncio.sleep(outage.next_pause_s(error))

    async def _print_last_lines(self, stream: str, part: _StreamPart) -> None:
        """Print the last lines that the settings request before a log is followed, and remember where they end."""
        if self._settings.lines is None:
            return
        await self._complete_last_lines(stream, part, self._settings.lines)
        self._print(stream, bytes(part.text))
        part.text.clear()

    async def _find_end(self, stream: str) -> "LogChunk | None":
        """Return the last part of a log, after which it is followed; None if it is empty."""
        position = None
        async for chunk in self._open(stream, "end", 1):
            position = chunk
        return position

    # -- lines

    def _print(self, stream: str, chunk: bytes) -> None:
        """Print the lines that a part of a log completes."""
        self.has_output = self.has_output or bool(chunk)
        splitter = self._splitters[stream]
        lines = splitter.feed(chunk)
        if splitter.rest_bytes > MAX_LINE_BYTES:
            lines.append(splitter.take_rest())
        self._print_lines(stream, lines)

    def _print_rest(self, stream: str) -> None:
        """Print the last line of a log that has no line feed."""
        if rest := self._splitters[stream].take_rest():
            self._print_lines(stream, [rest])

    def _print_lines(self, stream: str, lines: list[bytes]) -> None:
        """Print the lines that match the pattern, each with its prefix."""
        pattern = self._settings.pattern
        chosen = [
            line for line in lines if pattern is None or pattern.search(line.decode(errors="replace").rstrip("\r"))
        ]
        if not chosen:
            return
        render = self._columns.render if self._columns.has_colours else self._columns.render_plain
        prefix = render(self.allocation, self._task, stream)
        if self._output.is_filtered:
            self._output.write_clean("".join(f"{prefix}{text}\n" for line in chosen for text in clean_lines(line)))
        else:
            self._output.write(b"".join(prefix.encode() + line + b"\n" for line in chosen))
        sys.stdout.flush()


def describe_missing_log(allocation: "AllocationStub", reason: str) -> str:
    return f"node {allocation.node_name} did not send the log of {allocation.name}: {reason}"
