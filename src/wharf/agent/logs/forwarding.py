"""Forwards log lines of a process to followers without ever blocking the code that logs.

Lines wait in a bounded queue for a separate thread. If the queue is full, new lines are skipped and counted.
"""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

MAX_QUEUED_LINES: Final = 2_000
"""Limits the memory of lines that wait to be sent."""
MAX_LINES_PER_SEND: Final = 200
"""Limits the size of one message."""


class ForwardedLine(msgspec.Struct, frozen=True, array_like=True):
    """One log line as a JSON object, and the number of its level."""

    level: int
    line: str


class LogForwarder:
    """Queues log lines and sends them on its own thread."""

    def __init__(self, send: Callable[[Sequence[ForwardedLine], int], None]) -> None:
        """`send` gets lines and the count of lines that were skipped before them. It may block: it runs on the own thread."""
        self._send = send
        self._queue: collections.deque[ForwardedLine] = collections.deque()
        self._missed = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, level: int, line: str) -> None:
        """Queue a line. May be called from any thread, and never waits for `send`."""
        with self._changed:
            if len(self._queue) >= MAX_QUEUED_LINES:
                self._missed += 1
                return
            self._queue.append(ForwardedLine(level, line))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log forwarder", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        """Send queued lines, in batches, forever."""
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                lines = [self._queue.popleft() for _ in range(min(MAX_LINES_PER_SEND, len(self._queue)))]
                missed, self._missed = self._missed, 0
            self._send(lines, missed)
