"""Streamed replies: decoding chunks into values, and resuming a stream after a broken connection."""

import json
from base64 import b64decode
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from wharf.contract.client.calls import RequestSpec, is_repeatable
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
from wharf.contract.client.transport import ClientReply, ClientRequest, Unreachable
from wharf.contract.wire.agents import MonitorFrame
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.contract.wire.events import EventLine
from wharf.world.failover import Attempt

MAX_SILENCE_S: Final = 75.0
"""After this silence a finite reply counts as broken. Protects callers from servers that freeze during a download."""
MAX_SILENCE_S_BY_ENDPOINT: Final = MappingProxyType(
    {"event.stream": 25.0, "agent.monitor": 25.0, "client.fs_logs": 15.0, "client.fs_stream": 15.0}
)
"""After this silence an open stream counts as broken.

Servers send a heartbeat every 10 s, and nodes send one every second. The event stream of an older server has a heartbeat
every 30 s only: it is reopened meanwhile, and loses no event.
"""

_decode_first_object = json.JSONDecoder().raw_decode
"""Returns the first JSON value of a text, and the position after it."""


def read_stream(state: ClientState, endpoint: Endpoint, spec: RequestSpec) -> Flow[None]:
    """Yield the values of a streamed reply. An endless stream is reopened whenever it ends or breaks.

    Raises `RequestRefused` if the servers refuse it, and `Unreachable` if a finite stream breaks. This is a flow: a
    generator that yields steps, such as `SendRequest`, which a runner performs.
    """
    decoder = _build_decoder(endpoint)
    failure_count = 0
    while True:
        cause: Exception | None = None
        try:
            has_value = yield from _read_until_end(state, endpoint, spec, decoder)
            if not decoder.is_endless:
                return
            failure_count = 0 if has_value else failure_count + 1
        except (Unreachable, *TRANSIENT_ERRORS) as error:
            if isinstance(error, UnexpectedReply) or not decoder.is_endless:
                raise
            failure_count += 1
            cause = error
        decoder.resume(spec)
        yield PauseFlow(state.draw_pause_s(max(1, failure_count), cause))


def _read_until_end(state: ClientState, endpoint: Endpoint, spec: RequestSpec, decoder: "StreamDecoder") -> Flow[bool]:
    """Open a streamed reply, yield its values until it ends, and return whether it had any.

    Raises `RequestRefused` for an error reply, and `Unreachable` if the connection breaks. Switches server in both
    cases if another one may help. This is a flow: a generator that yields steps, such as `SendRequest`, which a runner
    performs.
    """
    request = msgspec.structs.replace(
        build_request(state, endpoint, spec),
        chunk_timeout_s=MAX_SILENCE_S_BY_ENDPOINT.get(endpoint.name, MAX_SILENCE_S),
    )
    streamed_reply, attempt = yield from _open_stream(state, request, is_repeatable=is_repeatable(endpoint))
    try:
        if streamed_reply.status >= 300:
            if streamed_reply.status in FAILOVER_STATUSES:
                state.servers.on_failure(attempt.position)
            raise build_error(
                ClientReply(streamed_reply.status, streamed_reply.headers, (yield from _read_body(streamed_reply)))
            )
        has_value = False
        while chunk := (yield ReadChunk(streamed_reply)):
            assert isinstance(chunk, bytes)
            for value in decoder.feed(chunk):
                has_value = True
                yield YieldValue(value)
        yield CloseStream(streamed_reply)
        return has_value
    except Unreachable:
        state.servers.on_silence(attempt)
        raise


def _open_stream(state: ClientState, request: ClientRequest, *, is_repeatable: bool) -> Flow[tuple[Any, Attempt]]:
    """Open a streamed reply at the first server that sends its head in its part of the time.

    Returns the streamed reply of the runner's transport, and the attempt. Raises `Unreachable`. This is a flow: a
    generator that yields steps, such as `OpenStream`, which a runner performs.
    """
    budget = state.servers.start_call(request.timeout_s)
    while True:
        attempt = budget.next_attempt()
        limited = msgspec.structs.replace(
            request,
            timeout_s=attempt.timeout_s if is_repeatable else budget.remaining_s,
            connect_timeout_s=attempt.timeout_s,
        )
        try:
            streamed_reply: Any = yield OpenStream(limited, attempt.position)
        except Unreachable as error:
            state.servers.on_silence(attempt)
            if not budget.has_untried or (error.is_sent and not is_repeatable):
                raise
        else:
            state.servers.on_reply(attempt.position)
            return streamed_reply, attempt


def _read_body(streamed_reply: Any) -> Flow[bytes]:
    """Read the remaining body of a streamed reply, close it, and return the body.

    This is a flow: a generator that yields steps, such as `SendRequest`, which a runner performs.
    """
    body = b""
    while chunk := (yield ReadChunk(streamed_reply)):
        assert isinstance(chunk, bytes)
        body += chunk
    yield CloseStream(streamed_reply)
    return body


class StreamDecoder(Protocol):
    """Decodes the chunks of a streamed reply into values. Stores its position, so that a broken stream can be resumed."""

    is_endless: bool
    """Whether the stream is reopened after its end."""

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the values that this chunk completes."""
        ...

    def resume(self, spec: RequestSpec) -> None:
        """Prepare for the chunks of a reopened stream.

        Changes `spec` so that the reopened stream continues where the last one broke, if the endpoint supports it.
        """
        ...


class EventLineDecoder:
    """Decodes the lines of the event stream, each a JSON object with events of one log index.

    A broken stream is reopened at its last index. The server then repeats all events of that index, so the decoder
    skips those that it has yielded. Example: two of three events of index 7 were yielded; the reopened stream sends all
    three, and the decoder yields only the third.
    """

    is_endless = True

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._buffer = b""
        self._index = 0
        self._yielded_count = 0
        """Number of events of `_index` that were yielded."""
        self._skip_count = 0
        """Number of next events of `_index` that are repeated, so that they must be skipped."""

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the complete lines, without heartbeats and without events that were yielded before the stream broke.

        An incomplete last line is kept until the next chunk.
        """
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for text in lines:
            if not text or text == b"{}":
                continue
            line: EventLine = decode_json(self._endpoint, text)
            if line.index != self._index:
                self._index, self._yielded_count, self._skip_count = line.index, 0, 0
            new_events = line.events[self._skip_count :]
            self._skip_count = max(0, self._skip_count - len(line.events))
            if new_events:
                self._yielded_count += len(new_events)
                yield line if len(new_events) == len(line.events) else msgspec.structs.replace(line, events=new_events)

    def resume(self, spec: RequestSpec) -> None:
        """Change `spec` to continue at the last index, and skip the events of that index that were already yielded."""
        self._buffer = b""
        self._skip_count = self._yielded_count
        if self._index:
            spec.query["index"] = str(self._index)


class JsonObjectDecoder:
    """Decodes consecutive JSON objects, each with a part of a log or file as base64.

    Data that a server sent while the stream was broken is lost.
    """

    def __init__(self, *, is_endless: bool) -> None:
        self.is_endless = is_endless
        self._buffer = ""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decoded data of each JSON object that this chunk completes."""
        self._buffer += chunk.decode("latin-1")  # One character for each byte: a chunk may end inside a character.
        while self._buffer.startswith("{"):
            try:
                _, end = _decode_first_object(self._buffer)
            except ValueError:
                return  # The object is not complete yet.
            frame, self._buffer = self._buffer[:end].encode("latin-1"), self._buffer[end:].lstrip()
            data = msgspec.json.decode(frame, type=MonitorFrame).data
            if data:
                yield b64decode(data)

    def resume(self, _: RequestSpec) -> None:
        """Prepare for a reopened stream: drop the incomplete object at the end of the broken one."""
        self._buffer = ""


class ChunkDecoder:
    """Yields the chunks of a finite streamed reply unchanged."""

    is_endless = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk

    def resume(self, _: RequestSpec) -> None:
        return


def _build_decoder(endpoint: Endpoint) -> StreamDecoder:
    """Return the decoder for the streamed replies of an endpoint."""
    match endpoint.name:
        case "event.stream":
            return EventLineDecoder(endpoint)
        case "agent.monitor":
            return JsonObjectDecoder(is_endless=True)
        case "agent.monitor_export" | "client.fs_stream" | "client.fs_logs":
            return JsonObjectDecoder(is_endless=False)
        case _:
            return ChunkDecoder()
