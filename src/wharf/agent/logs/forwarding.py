"""Carries lines of a process's log to whoever follows it, without ever holding up the work that logs.

Lines wait in a bounded row for a thread of their own. Where they come faster than they go, the newest are left out and
counted.
"""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

MAX_QUEUED_LINES: Final = 2_000
MAX_LINES_PER_SEND: Final = 200


class ForwardedLine(msgspec.Struct, frozen=True, array_like=True):
    """One line, as a JSON object, with the number of its level."""

    level: int
    line: str


class LogForwarder:
    def __init__(self, send: Callable[[Sequence[ForwardedLine], int], None]) -> None:
        """`send` takes lines, and how many were left out before them; it may wait. Called on the teller's thread."""
        self._send = send
        self._waiting: collections.deque[ForwardedLine] = collections.deque()
        self._missed = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, level: int, line: str) -> None:
        """From any thread; never waits for anybody but those who put."""
        with self._changed:
            if len(self._waiting) >= MAX_QUEUED_LINES:
                self._missed += 1
                return
            self._waiting.append(ForwardedLine(level, line))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log teller", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                lines = [self._waiting.popleft() for _ in range(min(MAX_LINES_PER_SEND, len(self._waiting)))]
                missed, self._missed = self._missed, 0
            self._send(lines, missed)
