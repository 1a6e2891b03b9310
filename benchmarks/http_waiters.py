"""Thousands of callers that wait in one process of their own: each asks once and tells when its answer came.

python -m benchmarks.http_waiters PORT COUNT TARGET: where `TARGET` holds `{}`, it is the caller's number. Prints `asked`
when all have asked, and once all are answered a line of JSON: the moments of the answers on the monotonic clock.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

import uvloop

MAX_PARALLEL_CONNECTS = 200
"""Callers that connect together, so that nobody's backlog runs over."""


class WaitingCaller(asyncio.Protocol):
    def __init__(self, target: str, answered: list[float], all_answered: asyncio.Event, count: int) -> None:
        self._request = f"GET {target} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
        self._answered = answered
        self._all_answered = all_answered
        self._count = count
        self._has_begun = False

    def connection_made(self, transport: Any) -> None:  # Whatever the loop has for it.
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        assert data.startswith(b"HTTP/1.1 200"), data[:200]
        self._answered.append(time.monotonic())
        if len(self._answered) == self._count:
            self._all_answered.set()


def _end(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """One mistake is told once, not ten thousand times."""
    print(f"{context.get('message')}: {context.get('exception')}", file=sys.stderr, flush=True)
    os._exit(1)


async def run_waiters(port: int, count: int, target: str) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_end)
    answered: list[float] = []
    all_answered = asyncio.Event()

    async def call(number: int) -> None:
        asked = target.format(number)
        await loop.create_connection(lambda: WaitingCaller(asked, answered, all_answered, count), "127.0.0.1", port)

    for start in range(0, count, MAX_PARALLEL_CONNECTS):
        await asyncio.gather(*(call(number) for number in range(start, min(count, start + MAX_PARALLEL_CONNECTS))))
    print("asked", flush=True)
    await all_answered.wait()
    print(json.dumps(answered), flush=True)


if __name__ == "__main__":
    uvloop.run(run_waiters(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
