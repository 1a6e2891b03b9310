"""Slots of the connections of a port to parse what they have received: a piece at a time, for a limited time in each iteration.

What the pieces contain, and limits of single requests, are in `wharf.agent.http.protocol`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

MAX_PIECE_BYTES: Final = 8 * 1024
"""What a connection parses in one slot. The worst piece is a body in chunks of one byte, each with a callback: 3 ms."""
MAX_CPU_S_PER_ITERATION: Final = 0.004
"""The CPU time of an iteration of the event loop after which no further piece is parsed in it. Short requests are parsed nevertheless."""
MAX_SHORT_REQUEST_BYTES: Final = 2_048
"""Data that needs no slot if it does not continue a body. Heartbeats and most other requests have less: they wait for nobody."""


class ReadControl(FlowControl):
    """uvicorn's control of reading, which also reads nothing while received data waits for its slot."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._has_unparsed = False

    def set_has_unparsed(self, has_unparsed: bool) -> None:
        """Stop reading while the connection has data that is not parsed."""
        was_reading, self._has_unparsed = self._is_reading, has_unparsed
        self._apply(was_reading)

    def pause_reading(self) -> None:
        was_reading, self.read_paused = self._is_reading, True
        self._apply(was_reading)

    def resume_reading(self) -> None:
        was_reading, self.read_paused = self._is_reading, False
        self._apply(was_reading)

    @property
    def _is_reading(self) -> bool:
        return not (self.read_paused or self._has_unparsed)

    def _apply(self, was_reading: bool) -> None:
        if self._transport.is_closing():
            return
        if self._is_reading and not was_reading:
            self._transport.resume_reading()
        elif was_reading and not self._is_reading:
            self._transport.pause_reading()


class ReceivedData:
    """The data of one connection that is not parsed yet: at most what one read of the socket returned."""

    __slots__ = ("_data", "_parse", "_position", "_slots", "control")

    def __init__(self, slots: "ParsingSlots", control: ReadControl, parse: Callable[[bytes], None]) -> None:
        """`parse` parses a piece. It calls `clear` if nothing more of the connection is to be parsed."""
        self.control = control
        self._slots = slots
        self._parse = parse
        self._data = b""
        self._position = 0

    def receive(self, data: bytes, *, is_in_body: bool) -> None:
        """Parse received data, now or in the next slots of the connection."""
        if not self._data and not is_in_body and len(data) <= MAX_SHORT_REQUEST_BYTES:
            self._parse(data)
            return
        was_waiting = bool(self._data)
        self._data = self._data[self._position :] + data
        self._position = 0
        if not was_waiting:
            self._slots.run_or_wait(self)

    def parse_piece(self) -> bool:
        """Parse the next piece. Return whether there are more."""
        piece = self._data[self._position : self._position + MAX_PIECE_BYTES]
        self._position += len(piece)
        if piece:
            self._parse(piece)
        if self._position >= len(self._data):
            self.clear()
        return bool(self._data)

    def clear(self) -> None:
        """Drop what is not parsed."""
        self._data, self._position = b"", 0


class ParsingSlots:
    """Lets connections parse a piece one after the other, until an iteration of the event loop has used `MAX_CPU_S_PER_ITERATION` for it.

    A client may send a body in chunks of one byte. One read of the socket then has 40,000 of them, and would hold the event
    loop for a tenth of a second; the reads of many connections together would hold it for many seconds.
    """

    __slots__ = ("_is_scheduled", "_read_cpu_s", "_used_s", "_waiting")

    def __init__(self, read_cpu_s: Callable[[], float]) -> None:
        """`read_cpu_s` returns the CPU time of this thread."""
        self._read_cpu_s = read_cpu_s
        self._waiting: deque[ReceivedData] = deque()
        self._used_s = 0.0
        """The CPU time that this iteration has used for pieces."""
        self._is_scheduled = False
        """Whether `_begin_iteration` runs in the next iteration."""

    def run_or_wait(self, received: ReceivedData) -> None:
        """Parse what was received as far as this iteration has time, and the rest in later iterations."""
        has_more = True
        while has_more and not self._waiting and self._used_s < MAX_CPU_S_PER_ITERATION:
            has_more = self._parse_piece(received)
        if has_more:
            received.control.set_has_unparsed(True)
            self._waiting.append(received)
        self._ensure_scheduled()

    def _parse_piece(self, received: ReceivedData) -> bool:
        began_s = self._read_cpu_s()
        try:
            return received.parse_piece()
        finally:
            self._used_s += self._read_cpu_s() - began_s

    def _ensure_scheduled(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_iteration)

    def _begin_iteration(self) -> None:
        self._is_scheduled = False
        self._used_s = 0.0
        while self._waiting and self._used_s < MAX_CPU_S_PER_ITERATION:
            received = self._waiting.popleft()
            if self._parse_piece(received):
                self._waiting.append(received)
            else:
                received.control.set_has_unparsed(False)
        if self._waiting:
            self._ensure_scheduled()
