"""Replies without an end: cut into values, and taken up again where they broke off."""

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec

from wharf.contract.client.calls import RequestSpec
from wharf.contract.client.errors import TRANSIENT_ERRORS, UnexpectedReply, build_error
from wharf.contract.client.flow import (
    FAILOVER_STATUSES,
    ClientState,
    CloseStream,
    Flow,
    OpenStream,
    PauseFlow,
    ReadChunk,
    YieldValue,
    build_request,
    decode_json,
)
from wharf.contract.client.transport import ClientReply, Unreachable
from wharf.contract.wire.agents import MonitorFrame
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.contract.wire.events import EventLine

MAX_SILENCE_S: Final = 75.0
"""Servers say every 30 s at least that a stream lives; one that was silent for this long does not."""

_object_in = json.JSONDecoder().raw_decode


def read_stream(state: ClientState, row: Endpoint, spec: RequestSpec) -> Flow[None]:
    """Gives what a stream says. One that goes on for ever is asked for again whenever it breaks off.

    Raises `Refused` where the servers will not have it, and `Unreachable` where a stream that has an end broke off.
    """
    cutter = _cutter_of(row)
    troubles = 0
    while True:
        cause: Exception | None = None
        try:
            heard = yield from _one(state, row, spec, cutter)
            if not cutter.is_endless:
                return
            troubles = 0 if heard else troubles + 1
        except (Unreachable, *TRANSIENT_ERRORS) as error:
            if isinstance(error, UnexpectedReply) or not cutter.is_endless:
                raise
            troubles += 1
            cause = error
        cutter.resume(spec)
        yield PauseFlow(state.draw_pause_s(max(1, troubles), cause))


def _one(standing: ClientState, row: Endpoint, ask: RequestSpec, cutter: "StreamDecoder") -> Flow[bool]:
    """One stream to its end. Whether anything came."""
    request = msgspec.structs.replace(build_request(standing, row, ask), timeout_s=MAX_SILENCE_S)
    used = standing.current_server
    try:
        opened: Any = yield OpenStream(request, used)  # What the driver opened: its head, and what it is known by.
        if opened.status >= 300:
            if opened.status in FAILOVER_STATUSES:
                standing.switch_server(used)
            raise build_error(ClientReply(opened.status, opened.headers, (yield from _rest(opened))))
        is_heard = False
        while piece := (yield ReadChunk(opened)):
            assert isinstance(piece, bytes)
            for value in cutter.feed(piece):
                is_heard = True
                yield YieldValue(value)
        yield CloseStream(opened)
        return is_heard
    except Unreachable:
        standing.switch_server(used)
        raise


def _rest(opened: Any) -> Flow[bytes]:
    body = b""
    while piece := (yield ReadChunk(opened)):
        assert isinstance(piece, bytes)
        body += piece
    yield CloseStream(opened)
    return body


class StreamDecoder(Protocol):
    """Makes values of pieces. What it knows of what was given tells where to begin after a break."""

    is_endless: bool
    """Whether an end is no end."""

    def feed(self, piece: bytes) -> Iterator[Any]: ...

    def resume(self, ask: RequestSpec) -> None:
        """The pieces that come next are those of a new stream, asked for by `ask`."""
        ...


class EventLineDecoder:
    """Lines of JSON. A stream that broke off is asked for again from its last index, and what was given of that index
    is not given twice.
    """

    is_endless = True

    def __init__(self, row: Endpoint) -> None:
        self._row = row
        self._rest = b""
        self._index = 0
        self._given = 0
        """Events of that index."""
        self._known = 0
        """Events of that index that the new stream repeats."""

    def feed(self, piece: bytes) -> Iterator[Any]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for text in lines:
            if not text or text == b"{}":
                continue
            line: EventLine = decode_json(self._row, text)
            if line.index != self._index:
                self._index, self._given, self._known = line.index, 0, 0
            fresh = line.events[self._known :]
            self._known = max(0, self._known - len(line.events))
            if fresh:
                self._given += len(fresh)
                yield line if len(fresh) == len(line.events) else msgspec.structs.replace(line, events=fresh)

    def resume(self, ask: RequestSpec) -> None:
        self._rest = b""
        self._known = self._given
        if self._index:
            ask.query["index"] = str(self._index)


class FrameDecoder:
    """Objects of JSON, one after the other. What was missed in a break is not there any more."""

    def __init__(self, *, is_endless: bool) -> None:
        self.is_endless = is_endless
        self._rest = ""

    def feed(self, piece: bytes) -> Iterator[bytes]:
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

    def resume(self, _: RequestSpec) -> None:
        self._rest = ""


class ChunkDecoder:
    """As they come."""

    is_endless = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        yield piece

    def resume(self, _: RequestSpec) -> None:
        return


def _cutter_of(row: Endpoint) -> StreamDecoder:
    match row.name:
        case "event.stream":
            return EventLineDecoder(row)
        case "agent.monitor":
            return FrameDecoder(is_endless=True)
        case "agent.monitor_export" | "client.fs_stream" | "client.fs_logs":
            return FrameDecoder(is_endless=False)
        case _:
            return ChunkDecoder()
