"""Distinguishes a frozen server from a slow one while a reply of that server is awaited.

A blocking query or a large job may take minutes, so its own silence proves nothing. A small request that needs no work
does: a server that answers neither is frozen or cut off.
"""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from wharf.contract.client.transport import Unreachable
from wharf.world import World
from wharf.world.failover import MAX_PART_S
from wharf.world.tasks import cancel_tasks, wait_for_event

PROBE_PATH: Final = "/v1/status/leader"
"""The endpoint of probes: every server answers it from memory, whether it leads or not."""
PROBE_DELAY_S: Final = 0.4
"""Seconds until the first probe. Spares ordinary requests the cost of a probe."""
PROBE_TIMEOUT_S: Final = MAX_PART_S
"""Seconds for the reply to a probe. Together with the delay it is less than 3 s."""
PROBE_INTERVAL_S: Final = 5.0
"""Seconds between a probe's reply and the next probe. Limits the load of requests that take minutes."""
MAX_WAITING_THREADS: Final = 64
"""Requests of a process that wait for a reply in a thread of their own. Limits the threads that frozen servers leave behind:
each ends at the timeout of its request. Further requests wait in the calling thread, without probes."""

T = TypeVar("T")
log = logging.getLogger(__name__)
_waiting_threads = threading.BoundedSemaphore(MAX_WAITING_THREADS)


async def wait_until_silent(send_probe: Callable[[], Awaitable[object]]) -> None:
    """Send probes to a server until it does not answer one.

    `send_probe` sends a small request to the server, and raises `Unreachable` if it gets no reply. Other errors of a probe
    are logged, and prove nothing about the server.
    """
    while True:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await send_probe()
        except (TimeoutError, Unreachable):
            return
        except Exception:
            log_failed_probe()
        await asyncio.sleep(PROBE_INTERVAL_S)


def log_failed_probe() -> None:
    """Log the current exception of a probe. Nobody else sees it, because probes run in tasks of their own."""
    log.exception("probing a server failed: unexpected error")


@asynccontextmanager
async def end_if_silent(world: World, send_probe: Callable[[], Awaitable[object]], server: str) -> AsyncIterator[None]:
    """Return a context manager that raises `Unreachable` when the server does not answer a probe.

    `send_probe` sends a small request to the server, and raises `Unreachable` if it gets no reply. `server` names the
    server in the error.
    """
    loop, is_silent = asyncio.get_running_loop(), False
    probing: asyncio.Task[None] | None = None
    limit = asyncio.timeout(None)

    async def probe() -> None:
        nonlocal is_silent
        await wait_until_silent(send_probe)
        is_silent = True
        limit.reschedule(loop.time())

    def start_probing() -> None:
        nonlocal probing
        probing = world.start_task(probe(), name=f"probes of {server}")

    timer = loop.call_later(PROBE_DELAY_S, start_probing)
    try:
        async with limit:
            try:
                yield
            finally:
                timer.cancel()
                if probing is not None:
                    await cancel_tasks(probing)
    except TimeoutError:
        if not is_silent:
            raise
        raise Unreachable(f"{server} does not reply, not even to a probe", is_sent=True) from None


def send_until_silent(send: Callable[[], T], send_probe: Callable[[], object], server: str) -> T:
    """Return the result of `send`, which waits for a reply in another thread while this thread probes the server.

    `send_probe` sends a small request to the server, and raises `Unreachable` if it gets no reply. Raises `Unreachable`
    when the server does not answer a probe. `server` names the server in the error.
    """
    if not _waiting_threads.acquire(blocking=False):
        return send()
    outcome: Future[T] = Future()

    def send_in_thread() -> None:
        try:
            outcome.set_result(send())
        except BaseException as error:  # The calling thread raises it.
            outcome.set_exception(error)
        finally:
            _waiting_threads.release()

    threading.Thread(target=send_in_thread, name=f"request to {server}", daemon=True).start()
    pause_s = PROBE_DELAY_S
    while not wait((outcome,), pause_s).done:
        try:
            send_probe()
        except Unreachable:
            if not outcome.done():
                raise Unreachable(f"{server} does not reply, not even to a probe", is_sent=True) from None
        pause_s = PROBE_INTERVAL_S
    return outcome.result()


class LivenessProbe:
    """Probes one server for all calls that wait for its replies: one probe at a time, whatever the number of calls.

    If each call sent its own probes, a slow server would receive twice as many requests just because it is slow.
    """

    def __init__(self, world: World, send_probe: Callable[[], Awaitable[object]], server: str) -> None:
        """`send_probe` and `server` are as for `end_if_silent`."""
        self._world = world
        self._send_probe = send_probe
        self._server = server
        self._alive_s = -math.inf
        """When the server replied last, to a call or a probe."""
        self._waiting: dict[object, tuple[float, Callable[[], None]]] = {}
        """Calls that wait for longer than `PROBE_DELAY_S`: when each began, and the function that ends it."""
        self._has_new_call = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None

    def on_reply(self) -> None:
        """Record that the server replied to a call, so it is not silent."""
        self._alive_s = self._world.monotonic_s()

    @asynccontextmanager
    async def end_if_silent(self) -> AsyncIterator[None]:
        """Return a context manager that raises `Unreachable` when the server answers neither a probe nor another call."""
        loop, is_silent, key = asyncio.get_running_loop(), False, object()
        limit = asyncio.timeout(None)

        def end() -> None:
            nonlocal is_silent
            is_silent = True
            limit.reschedule(loop.time())

        timer = loop.call_later(PROBE_DELAY_S, self._watch, key, self._world.monotonic_s(), end)
        try:
            async with limit:
                try:
                    yield
                finally:
                    timer.cancel()
                    self._waiting.pop(key, None)
                    if not self._waiting and self._probing is not None:
                        self._probing.cancel()
                        self._probing = None
        except TimeoutError:
            if not is_silent:
                raise
            raise Unreachable(f"{self._server} does not reply, not even to a probe", is_sent=True) from None

    def _watch(self, key: object, began_s: float, end: Callable[[], None]) -> None:
        """Probe the server for this call from now on."""
        self._waiting[key] = began_s, end
        self._has_new_call.set()
        if self._probing is None:
            self._probing = self._world.start_task(self._probe(), name=f"probes of {self._server}")

    async def _probe(self) -> None:
        """Probe the server until it is silent or no call waits. Then all calls that wait have ended."""
        while True:
            self._has_new_call.clear()
            now_s = self._world.monotonic_s()
            newest_s = max(began_s for began_s, _ in self._waiting.values())
            remaining_s = self._alive_s + PROBE_INTERVAL_S - now_s if self._alive_s >= newest_s else 0.0
            if remaining_s > 0:
                await wait_for_event(self._has_new_call, remaining_s)
                continue
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    await self._send_probe()
                self.on_reply()
            except (TimeoutError, Unreachable):
                if self._alive_s < now_s:  # It replied to no other call meanwhile either.
                    break
            except Exception:
                log_failed_probe()
                await asyncio.sleep(PROBE_INTERVAL_S)
        self._probing = None
        for _, end in self._waiting.values():
            end()
        self._waiting.clear()
