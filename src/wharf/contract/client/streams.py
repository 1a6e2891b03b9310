"""Streamed replies: decoding chunks into values, and resuming a stream after a broken connection."""

from base64 import b64decode
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from wharf.contract.client.calls import RequestSpec, is_read_only, is_repeatable
from wharf.contract.client.errors import TRANSIENT_ERRORS, RequestRefused, UnexpectedReply, build_error
from wharf.contract.client.flow import (
    FAILOVER_STATUSES,
    CallFailures,
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
from wharf.contract.model.refusal import RefusalReason
from wharf.contract.wire.agents import MonitorFrame
from wharf.contract.wire.allocations.log_frames import LogFrame, LogFrameSplitter
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.contract.wire.events import ChangeLine, EventLine
from wharf.contract.wire.json_objects import JsonObjectSplitter
from wharf.world.failover import Attempt
from wharf.world.lines import LineSplitter

MAX_REFUSAL_BYTES: Final = 256 * 1024
"""How much is read of a refusal that is sent instead of a stream; protects memory from a server that never ends it."""
MAX_SILENCE_S: Final = 75.0
"""After this silence a finite reply counts as broken. Protects callers from servers that freeze during a download."""
MAX_SILENCE_S_BY_ENDPOINT: Final = MappingProxyType(
    {
        "event.stream": 25.0,
        "event.changes": 25.0,
        "agent.monitor": 25.0,
        "client.fs_logs": 15.0,
        "client.fs_stream": 15.0,
    }
)
"""After this silence an open stream counts as broken.

Servers send a heartbeat every 10 s, and nodes send one every second. The event stream of an older server has a heartbeat
every 30 s only: it is reopened meanwhile, and loses no event.
"""
MAX_EVENT_LINE_BYTES: Final = 256 << 20
"""Limit of the events of one log index; protects the memory of the caller. A write has up to 1,000 records."""
MAX_CHANGE_LINE_BYTES: Final = 4 << 20
"""Limit of a line of changes: a hundred keys of each topic, with the keys of what they belong to."""
LOG_RESUME_LIMIT_S: Final = 30.0
"""Seconds after the last part of a followed log in which a broken stream is opened again. The caller then gets the error."""


def read_stream(state: ClientState, endpoint: Endpoint, spec: RequestSpec) -> Flow[None]:
    """Yield the values of a streamed reply. An endless stream is reopened whenever it ends or breaks.

    A followed log is reopened if it breaks. Raises `RequestRefused` if the servers refuse the stream, and `Unreachable`
    if a finite stream breaks. This is a flow: a generator that yields steps, such as `SendRequest`, which a runner
    performs.
    """
    decoder = _build_decoder(state, endpoint, spec)
    failure_count = 0
    has_begun = False
    lost_at_s: float | None = None

    def on_open() -> None:
        nonlocal has_begun, lost_at_s
        has_begun, lost_at_s = True, None

    while True:
        cause: Exception | None = None
        try:
            has_value = yield from _read_until_end(state, endpoint, spec, decoder, on_open)
            if not decoder.is_endless:
                return
            failure_count = 0 if has_value else failure_count + 1
        except (Unreachable, RequestRefused) as error:
            error.is_read = is_read_only(endpoint)
            now_s = state.world.monotonic_s()
            lost_at_s = now_s if lost_at_s is None else lost_at_s
            may_reopen = has_begun or state.retry_policy.retries_first_open
            may_reopen = may_reopen and now_s - lost_at_s < state.retry_policy.max_outage_s
            if isinstance(error, UnexpectedReply) or not may_reopen or not decoder.should_reopen(error):
                raise
            failure_count += 1
            cause = error
        decoder.resume(spec)
        yield PauseFlow(state.draw_pause_s(max(1, failure_count), cause), cause)


def _read_until_end(
    state: ClientState,
    endpoint: Endpoint,
    spec: RequestSpec,
    decoder: "StreamDecoder",
    on_open: Callable[[], None],
) -> Flow[bool]:
    """Open a streamed reply, call `on_open`, yield its values until it ends, and return whether it had any.

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
        on_open()
        has_value = False
        while chunk := (yield ReadChunk(streamed_reply)):
            assert isinstance(chunk, bytes)
            for value in _decode_chunk(decoder, chunk):
                has_value = True
                yield YieldValue(value)
        yield CloseStream(streamed_reply)
        return has_value
    except Unreachable:
        state.servers.on_silence(attempt)
        raise


def _decode_chunk(decoder: "StreamDecoder", chunk: bytes) -> Iterator[object]:
    """Yield the values that this chunk completes. Raises `UnexpectedReply` if it cannot be decoded."""
    try:
        yield from decoder.feed(chunk)
    except ValueError as error:
        raise UnexpectedReply(f"unexpected reply: {error}", is_sent=True) from error


def _open_stream(state: ClientState, request: ClientRequest, *, is_repeatable: bool) -> Flow[tuple[Any, Attempt]]:
    """Open a streamed reply at the first server that sends its head in its part of the time.

    Returns the streamed reply of the runner's transport, and the attempt. Raises `Unreachable`. This is a flow: a
    generator that yields steps, such as `OpenStream`, which a runner performs.
    """
    budget = state.servers.start_call(request.timeout_s)
    failures = CallFailures(state.world.monotonic_s())
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
            failures.add(attempt.position, error)
            if budget.has_untried and (is_repeatable or not error.is_sent):
                continue
        else:
            state.servers.on_reply(attempt.position)
            return streamed_reply, attempt
        raise failures.explain()


def _read_body(streamed_reply: Any) -> Flow[bytes]:
    """Read the remaining body of a streamed reply, close it, and return the body, or its first `MAX_REFUSAL_BYTES`.

    This is a flow: a generator that yields steps, such as `SendRequest`, which a runner performs.
    """
    body = bytearray()
    while len(body) < MAX_REFUSAL_BYTES and (chunk := (yield ReadChunk(streamed_reply))):
        assert isinstance(chunk, bytes)
        body += chunk
    yield CloseStream(streamed_reply)
    return bytes(body[:MAX_REFUSAL_BYTES])


class StreamDecoder(Protocol):
    """Decodes the chunks of a streamed reply into values. Stores its position, so that a broken stream can be resumed."""

    is_endless: bool
    """Whether the stream is reopened after its end."""

    def should_reopen(self, error: Unreachable | RequestRefused) -> bool:
        """Return whether the stream is opened again after it broke, or could not be opened, because of `error`."""
        ...

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the values that this chunk completes. Raises `ValueError` if it cannot be decoded."""
        ...

    def resume(self, spec: RequestSpec) -> None:
        """Prepare for the chunks of a reopened stream.

        Changes `spec` so that the reopened stream continues where the last one broke, if the endpoint supports it.
        """
        ...


class _EndlessStream:
    """The part of a decoder that reopens its stream after its end and after each failure that may pass."""

    is_endless = True

    def should_reopen(self, error: Unreachable | RequestRefused) -> bool:
        """Return whether the failure may pass."""
        return isinstance(error, (Unreachable, *TRANSIENT_ERRORS))


class _FiniteStream:
    """The part of a decoder whose stream is not reopened."""

    is_endless = False

    def should_reopen(self, error: Unreachable | RequestRefused) -> bool:  # noqa: ARG002  # Part of the protocol.
        """Return `False`: the caller gets the error."""
        return False


class EventLineDecoder(_EndlessStream):
    """Decodes the lines of the event stream, each a JSON object with events of one log index.

    A broken stream is reopened at its last index. The server then repeats all events of that index, so the decoder
    skips those that it has yielded. Example: two of three events of index 7 were yielded; the reopened stream sends all
    three, and the decoder yields only the third.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lines = LineSplitter(MAX_EVENT_LINE_BYTES)
        self._index = 0
        self._yielded_count = 0
        """Number of events of `_index` that were yielded."""
        self._skip_count = 0
        """Number of next events of `_index` that are repeated, so that they must be skipped."""

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the complete lines, without heartbeats and without events that were yielded before the stream broke.

        An incomplete last line is kept until the next chunk.
        """
        for text in self._lines.feed(chunk):
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
        self._lines.take_rest()
        self._skip_count = self._yielded_count
        if self._index:
            spec.query["index"] = str(self._index)


class JsonObjectDecoder:
    """Decodes consecutive JSON objects, each with a part of a log or file as base64.

    Data that a server sent while the stream was broken is lost.
    """

    def __init__(self) -> None:
        self._objects = JsonObjectSplitter()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decoded data of each JSON object that this chunk completes."""
        for encoded in self._objects.feed(chunk):
            data = msgspec.json.decode(encoded, type=MonitorFrame).data
            if data:
                yield b64decode(data)

    def resume(self, _: RequestSpec) -> None:
        """Prepare for a reopened stream: drop the incomplete object at the end of the broken one."""
        self._objects.reset()


class EndlessJsonObjectDecoder(_EndlessStream, JsonObjectDecoder):
    """Decodes the JSON objects of a stream that is reopened after its end."""


class FiniteJsonObjectDecoder(_FiniteStream, JsonObjectDecoder):
    """Decodes the JSON objects of a stream that is not reopened."""


class LogChunk(bytes):
    """A part of a log, with the position after it: `file` and `offset` of a request that continues there."""

    file: str
    offset: int


class LogDecoder:
    """Decodes the frames of a log. A followed log is reopened at the position where it broke off."""

    is_endless = False

    def __init__(self, state: ClientState, spec: RequestSpec) -> None:
        self._world = state.world
        self._is_followed = bool(spec.query.get("follow"))
        self._splitter = LogFrameSplitter()
        self._position: LogFrame | None = None
        self._last_chunk_s: float | None = None
        """When the last chunk arrived, in seconds of the monotonic clock; `None`: none has arrived."""
        self._is_at_start = spec.query.get("origin") != "end"

    def should_reopen(self, error: Unreachable | RequestRefused) -> bool:
        """Return whether the failure may pass: the servers or the node's agent may be restarting."""
        if not self._is_followed or self._last_chunk_s is None or not (self._is_at_start or self._position):
            return False
        may_pass = isinstance(error, (Unreachable, *TRANSIENT_ERRORS)) or error.reason is RefusalReason.NO_NODE_PATH
        return may_pass and self._world.monotonic_s() - self._last_chunk_s < LOG_RESUME_LIMIT_S

    def feed(self, chunk: bytes) -> Iterator[LogChunk]:
        """Yield the data of each frame that this chunk completes."""
        self._last_chunk_s = self._world.monotonic_s()
        for _, frame in self._splitter.feed(chunk):
            if frame.file:
                self._position = frame
            if frame.data:
                part = LogChunk(b64decode(frame.data))
                part.file, part.offset = frame.file, frame.offset
                yield part

    def resume(self, spec: RequestSpec) -> None:
        """Change `spec` to continue at the position of the last frame."""
        self._splitter.reset()
        if self._position is not None:
            spec.query |= {"file": self._position.file, "offset": self._position.offset, "origin": "start"}


class ChunkDecoder(_FiniteStream):
    """Yields the chunks of a finite streamed reply unchanged."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk

    def resume(self, _: RequestSpec) -> None:
        return


class ChangeLineDecoder(_EndlessStream):
    """Decodes the lines of the stream of changes. Changes while a broken stream is reopened are missing."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lines = LineSplitter(MAX_CHANGE_LINE_BYTES)

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the complete lines, without heartbeats. An incomplete last line is kept until the next chunk."""
        for text in self._lines.feed(chunk):
            line: ChangeLine = decode_json(self._endpoint, text or b"{}")
            if line.changes:
                yield line

    def resume(self, _: RequestSpec) -> None:
        """Drop the rest of a line that broke off."""
        self._lines.take_rest()


def _build_decoder(state: ClientState, endpoint: Endpoint, spec: RequestSpec) -> StreamDecoder:
    """Return the decoder for the streamed reply to a request to an endpoint."""
    match endpoint.name:
        case "event.stream":
            return EventLineDecoder(endpoint)
        case "event.changes":
            return ChangeLineDecoder(endpoint)
        case "agent.monitor":
            return EndlessJsonObjectDecoder()
        case "agent.monitor_export" | "client.fs_stream":
            return FiniteJsonObjectDecoder()
        case "client.fs_logs":
            return LogDecoder(state, spec)
        case _:
            return ChunkDecoder()
