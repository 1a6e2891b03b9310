"""Browsers without a window: many open pages that follow the stream of changes and update themselves after each.

python -m benchmarks.page_viewers PORT COUNT PATH    prints "open" when all streams are open; ends, with its counts, at the end of
                                                     its standard input
"""

import asyncio
import json
import sys
import time
from typing import Any, Final

REFRESH_PAUSE_S: Final = 0.7
"""The shortest time between two updates of a page, as in the script of the pages."""
MAX_IDLE_S: Final = 2.0
"""A connection that was idle for longer is replaced, because the server may have closed it."""
OPENED_AT_ONCE: Final = 50


class Viewer:
    """A page that is open in a browser: a connection for the stream, and one for its updates."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._path = path
        self._index = 0
        self._news = asyncio.Event()
        self.lines = 0
        self.updates = 0
        self.bytes = 0
        self.waits_ms: list[float] = []

    async def open(self) -> list[asyncio.Task[None]]:
        """Open the stream, and return the tasks that follow it and update the page."""
        stream = await asyncio.open_connection("127.0.0.1", self._port)
        stream[1].write(b"GET /ui/changes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await stream[0].readuntil(b"retry:")
        return [asyncio.create_task(self._follow(*stream)), asyncio.create_task(self._update())]

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            line = await reader.readline()
            assert line, "the stream of changes has ended"
            assert not writer.is_closing(), "a stream that nobody refers to is closed"
            if line.startswith(b"data: "):
                self._index = json.loads(line[6:])["Index"]
                self.lines += 1
                self._news.set()

    async def _update(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        began_s = time.perf_counter()
        while True:
            await self._news.wait()
            self._news.clear()
            if time.perf_counter() - began_s > MAX_IDLE_S:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            began_s = time.perf_counter()
            head = f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\nWharf-Refresh: {self._index}\r\n\r\n"
            writer.write(head.encode())
            reply = await reader.readuntil(b"\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 200"), reply
            length = int(reply.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            self.updates += 1
            self.bytes += length
            self.waits_ms.append((time.perf_counter() - began_s) * 1_000)
            await asyncio.sleep(max(0.0, began_s + REFRESH_PAUSE_S - time.perf_counter()))


async def view(port: int, count: int, path: str) -> dict[str, Any]:
    """Open the pages, and return what they received until the end of the standard input."""
    viewers = [Viewer(port, path) for _ in range(count)]
    tasks: list[asyncio.Task[None]] = []
    for first in range(0, count, OPENED_AT_ONCE):
        for opened in await asyncio.gather(*(viewer.open() for viewer in viewers[first : first + OPENED_AT_ONCE])):
            tasks += opened
    print("open", flush=True)
    ending = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait([ending, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    waits_ms = sorted(wait for viewer in viewers for wait in viewer.waits_ms) or [0.0]
    return {
        "lines": sum(viewer.lines for viewer in viewers),
        "updates": sum(viewer.updates for viewer in viewers),
        "bytes": sum(viewer.bytes for viewer in viewers),
        "p95_ms": waits_ms[int(len(waits_ms) * 0.95)],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(view(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))), flush=True)
