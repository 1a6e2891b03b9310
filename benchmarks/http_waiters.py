"""A process with thousands of clients that each send one request and record the time of its reply.

`python -m benchmarks.http_waiters PORT COUNT TARGET`: `{}` in `TARGET` is replaced by the number of the client. It prints
`sent` when all requests are sent. After all replies, it prints a JSON list of their times on the monotonic clock.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

import uvloop

MAX_PARALLEL_CONNECTS = 200
"""The number of clients that connect at the same time, so that the backlog of the listener does not overflow."""


class WaitingCaller(asyncio.Protocol):
    """A client that sends one request and waits for the reply."""

    def __init__(self, target: str, reply_times_s: list[float], all_replied: asyncio.Event, count: int) -> None:
        self._request = f"GET {target} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
        self._reply_times_s = reply_times_s
        self._all_replied = all_replied
        self._count = count
        self._has_reply = False

    def connection_made(self, transport: Any) -> None:  # The type depends on the event loop.
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._has_reply:
            return
        self._has_reply = True
        assert data.startswith(b"HTTP/1.1 200"), data[:200]
        self._reply_times_s.append(time.monotonic())
        if len(self._reply_times_s) == self._count:
            self._all_replied.set()


def _exit_on_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exit at the first error, so that it is printed once and not for each client."""
    print(f"{context.get('message')}: {context.get('exception')}", file=sys.stderr, flush=True)
    os._exit(1)


async def run_waiters(port: int, count: int, target: str) -> None:
    """Send all requests, and print when they are sent and when they were answered."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_exit_on_error)
    reply_times_s: list[float] = []
    all_replied = asyncio.Event()

    async def call(number: int) -> None:
        request_target = target.format(number)
        await loop.create_connection(
            lambda: WaitingCaller(request_target, reply_times_s, all_replied, count), "127.0.0.1", port
        )

    for start in range(0, count, MAX_PARALLEL_CONNECTS):
        await asyncio.gather(*(call(number) for number in range(start, min(count, start + MAX_PARALLEL_CONNECTS))))
    print("sent", flush=True)
    await all_replied.wait()
    print(json.dumps(reply_times_s), flush=True)


if __name__ == "__main__":
    uvloop.run(run_waiters(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
