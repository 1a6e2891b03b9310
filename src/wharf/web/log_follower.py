"""Follows several logs at once, and sends their new lines to the script of a page as server-sent events."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.client.async_client import AsyncClient
from wharf.contract.client.errors import RequestRefused
from wharf.contract.client.transport import Unreachable
from wharf.web.log_reader import LineCutter, LinePosition, LogLine, TaskLog, open_log
from wharf.world import World
from wharf.world.tasks import cancel_tasks

MAX_FOLLOWED_LOGS: Final = 20
"""The logs that one page follows. Each holds a stream to a node."""
MAX_WAITING_LINES: Final = 2_000
"""Lines that wait to be sent. Then the logs are read no further until the browser has lines_with_ends some."""
MAX_SENT_LINES: Final = 500
"""Lines of one event, so that the browser can draw in between."""
SEND_PAUSE_S: Final = 0.25
"""Pause between two events; lines that arrive meanwhile are sent together."""
HEARTBEAT_S: Final = 10.0
"""After this time without lines a comment is sent, so that proxies keep the connection."""
FIRST_READ_BYTES: Final = 64 << 10
"""How much of the end of a log is sent first if the page shows nothing of it yet."""

Positions = Mapping[str, LinePosition]
"""Where each log continues, by the key of its source."""


def make_source_key(source: TaskLog) -> str:
    """Return a short key of a log, for addresses and ids of elements."""
    return f"{zlib.crc32(f'{source.alloc_id}/{source.task}/{source.stream}'.encode()):08x}"


def format_positions(positions: Positions) -> str:
    """Return positions as text for an address, such as `1a2b3c4d.0.512`."""
    return " ".join(f"{key}.{each.number}.{each.offset}" for key, each in positions.items() if each.number is not None)


def parse_positions(text: str) -> dict[str, LinePosition]:
    """Return the positions of an address. What is not a position is left out."""
    positions: dict[str, LinePosition] = {}
    for part in text.split()[:MAX_FOLLOWED_LOGS]:
        key, _, rest = part.partition(".")
        number, _, offset = rest.partition(".")
        if all(each.isascii() and each.isdigit() and len(each) < 16 for each in (number, offset)):
            positions[key] = LinePosition(int(number), int(offset))
    return positions


class LogEventStream:
    """Follows logs. `render_lines` makes the HTML of lines."""

    def __init__(
        self,
        world: World,
        client: AsyncClient,
        sources: Sequence[TaskLog],
        positions: Positions,
        render_lines: Callable[[Sequence[LogLine]], str],
    ) -> None:
        self._world = world
        self._client = client
        self._sources = sources
        self._positions = dict(positions)
        self._render_lines = render_lines
        self._lines: list[tuple[LogLine, LinePosition]] = []
        """Lines that were not sent yet, each with the position after it."""
        self._changed = asyncio.Condition()
        self._have_ended = False  # Whether no log will have more lines.

    async def stream_events(self) -> AsyncGenerator[bytes, None]:
        """Yield events with new lines until all logs have ended."""
        tasks = [self._world.start_task(self._follow(source), name="followed log") for source in self._sources]
        finished = self._world.start_task(self._notice_end(tasks), name="end of logs")
        try:
            yield b": .\n\n"
            while self._lines or not self._have_ended:
                try:
                    async with asyncio.timeout(HEARTBEAT_S), self._changed:
                        await self._changed.wait_for(lambda: self._lines or self._have_ended)
                except TimeoutError:
                    yield b": .\n\n"
                    continue
                if self._lines:
                    yield await self._take_event()
                    await asyncio.sleep(SEND_PAUSE_S)
            yield b"event: end\ndata: {}\n\n"
        finally:
            await cancel_tasks(finished, *tasks)

    async def _take_event(self) -> bytes:
        """Return the event with the lines that wait."""
        async with self._changed:
            lines_with_ends, self._lines = self._lines[:MAX_SENT_LINES], self._lines[MAX_SENT_LINES:]
            self._changed.notify_all()
        for line, end in lines_with_ends:
            self._positions[make_source_key(line.source)] = end
        lines = [line for line, _ in lines_with_ends]
        event = {"count": len(lines), "after": format_positions(self._positions), "html": self._render_lines(lines)}
        return b"event: lines\ndata: " + msgspec.json.encode(event) + b"\n\n"

    async def _notice_end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        if tasks:
            await asyncio.wait(tasks)
        async with self._changed:
            self._have_ended = True
            self._changed.notify_all()

    async def _follow(self, source: TaskLog) -> None:
        """Add the lines of a log until its task ends, or the node cannot be reached for some time."""
        begin = self._positions.get(make_source_key(source))
        cutter = LineCutter(source)
        opened = open_log(
            self._client,
            source,
            origin="start" if begin is not None else "end",
            offset=begin.offset if begin is not None else FIRST_READ_BYTES,
            number=begin.number if begin is not None else None,
            follow=True,
        )
        try:
            async with opened as chunks:
                is_partial = begin is None  # The first line may have begun before; of a short log it is complete.
                async for chunk in chunks:
                    is_partial = is_partial and chunk.offset > len(chunk)
                    lines = list(cutter.feed(chunk))
                    await self._add_lines(lines[1:] if is_partial else lines)
                    is_partial = is_partial and not lines
            if cutter.has_rest():
                await self._add_lines([cutter.take_rest()])
        except (RequestRefused, Unreachable):
            return  # The page says that the log ended, and shows the reason when it is loaded again.

    async def _add_lines(self, lines: list[LogLine]) -> None:
        """Add lines. Waits while too many are unsent."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._lines) < MAX_WAITING_LINES)
            for line in lines:
                end = LinePosition(line.position.number, line.position.offset + len(line.text) + 1)
                self._lines.append((line, end))
            self._changed.notify_all()
