"""Replies without an end: cut into values, and taken up again where they broke off."""

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec

from wharf.client.calls import Ask
from wharf.client.errors import PASSING, NotUnderstood, refused
from wharf.client.exchange import Reply, Unreachable
from wharf.client.flow import UNABLE, Close, Flow, Give, Next, Open, Pause, Standing, decoded, request_of
from wharf.wire.agent_shapes import MonitorFrame
from wharf.wire.endpoints import Endpoint
from wharf.wire.event_shapes import EventLine

SILENT_S: Final = 75.0
"""Servers say every 30 s at least that a stream lives; one that was silent for this long does not."""

_object_in = json.JSONDecoder().raw_decode


def listen(standing: Standing, row: Endpoint, ask: Ask) -> Flow[None]:
    """Gives what a stream says. One that goes on for ever is asked for again whenever it breaks off.

    Raises `Refused` where the servers will not have it, and `Unreachable` where a stream that has an end broke off.
    """
    cutter = _cutter_of(row)
    troubles = 0
    while True:
        cause: Exception | None = None
        try:
            heard = yield from _one(standing, row, ask, cutter)
            if not cutter.goes_on:
                return
            troubles = 0 if heard else troubles + 1
        except (Unreachable, *PASSING) as error:
            if isinstance(error, NotUnderstood) or not cutter.goes_on:
                raise
            troubles += 1
            cause = error
        cutter.resume(ask)
        yield Pause(standing.pause_s(max(1, troubles), cause))


def _one(standing: Standing, row: Endpoint, ask: Ask, cutter: "Cutter") -> Flow[bool]:
    """One stream to its end. Whether anything came."""
    request = msgspec.structs.replace(request_of(standing, row, ask), timeout_s=SILENT_S)
    used = standing.server
    try:
        opened: Any = yield Open(request, used)  # What the driver opened: its head, and what it is known by.
        if opened.status >= 300:
            if opened.status in UNABLE:
                standing.turn_from(used)
            raise refused(Reply(opened.status, opened.headers, (yield from _rest(opened))))
        is_heard = False
        while piece := (yield Next(opened)):
            assert isinstance(piece, bytes)
            for value in cutter.take(piece):
                is_heard = True
                yield Give(value)
        yield Close(opened)
        return is_heard
    except Unreachable:
        standing.turn_from(used)
        raise


def _rest(opened: Any) -> Flow[bytes]:
    body = b""
    while piece := (yield Next(opened)):
        assert isinstance(piece, bytes)
        body += piece
    yield Close(opened)
    return body


class Cutter(Protocol):
    """Makes values of pieces. What it knows of what was given tells where to begin after a break."""

    goes_on: bool
    """Whether an end is no end."""

    def take(self, piece: bytes) -> Iterator[Any]: ...

    def resume(self, ask: Ask) -> None:
        """The pieces that come next are those of a new stream, asked for by `ask`."""
        ...


class EventLines:
    """Lines of JSON. A stream that broke off is asked for again from its last index, and what was given of that index
    is not given twice.
    """

    goes_on = True

    def __init__(self, row: Endpoint) -> None:
        self._row = row
        self._rest = b""
        self._index = 0
        self._given = 0
        """Events of that index."""
        self._known = 0
        """Events of that index that the new stream repeats."""

    def take(self, piece: bytes) -> Iterator[Any]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for text in lines:
            if not text or text == b"{}":
                continue
            line: EventLine = decoded(self._row, text)
            if line.index != self._index:
                self._index, self._given, self._known = line.index, 0, 0
            fresh = line.events[self._known :]
            self._known = max(0, self._known - len(line.events))
            if fresh:
                self._given += len(fresh)
                yield line if len(fresh) == len(line.events) else msgspec.structs.replace(line, events=fresh)

    def resume(self, ask: Ask) -> None:
        self._rest = b""
        self._known = self._given
        if self._index:
            ask.own["index"] = str(self._index)


class Frames:
    """Objects of JSON, one after the other. What was missed in a break is not there any more."""

    def __init__(self, *, goes_on: bool) -> None:
        self.goes_on = goes_on
        self._rest = ""

    def take(self, piece: bytes) -> Iterator[bytes]:
        self._rest += piece.decode("latin-1")  # Which keeps each byte, also of a letter that is here in part only.
        while self._rest.startswith("{"):
            try:
                _, end = _object_in(self._rest)
            except ValueError:
                return  # It is not whole yet.
            frame, self._rest = self._rest[:end].encode("latin-1"), self._rest[end:].lstrip()
            data = msgspec.json.decode(frame, type=MonitorFrame).data
            if data:
                yield b64decode(data)

    def resume(self, _: Ask) -> None:
        self._rest = ""


class Pieces:
    """As they come."""

    goes_on = False

    def take(self, piece: bytes) -> Iterator[bytes]:
        yield piece

    def resume(self, _: Ask) -> None:
        return


def _cutter_of(row: Endpoint) -> Cutter:
    match row.name:
        case "event.stream":
            return EventLines(row)
        case "agent.monitor":
            return Frames(goes_on=True)
        case "agent.monitor_export" | "client.fs_stream" | "client.fs_logs":
            return Frames(goes_on=False)
        case _:
            return Pieces()
