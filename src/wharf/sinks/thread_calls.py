"""Blocking calls on a thread, one at a time, for sinks whose files and sockets must not be used by two threads."""

import asyncio
from collections.abc import Callable

from wharf.sinks.port import SinkUnavailable


class SingleThreadCall:
    """Runs blocking functions on a thread, and refuses a call while one that its caller gave up still runs."""

    def __init__(self) -> None:
        self._running: asyncio.Future[None] | None = None

    async def run(self, work: Callable[[], None]) -> None:
        """Run a function on a thread. If the caller is cancelled, the function goes on.

        Raises the exception of the function, or `SinkUnavailable` while an earlier one runs.
        """
        if self._running is not None and not self._running.done():
            raise SinkUnavailable("an earlier write has not ended")
        self._running = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            await asyncio.shield(self._running)
        except asyncio.CancelledError:
            # Nobody reads its exception any more.
            self._running.add_done_callback(lambda call: call.cancelled() or call.exception())
            raise
