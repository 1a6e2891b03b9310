"""Streamed replies: decoding, and resuming after a broken connection."""

import base64
from typing import Any

import msgspec
import pytest

from wharf.contract.client.calls import RequestSpec, StreamSpec
from wharf.contract.client.errors import Forbidden, UnexpectedReply
from wharf.contract.client.flow import (
    ClientState,
    CloseStream,
    FlowRun,
    OpenStream,
    PauseFlow,
    ReadChunk,
    RetryPolicy,
    YieldValue,
)
from wharf.contract.client.streams import MAX_REFUSAL_BYTES, read_stream
from wharf.contract.client.transport import Unreachable
from wharf.contract.wire.allocations.log_frames import LogFrame, is_continuation
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME
from wharf.contract.wire.events import EventLine, EventView
from wharf.world import SimulatedWorld

CONNECTION_LOST = Unreachable("the reply broke off", is_sent=True)


class ScriptedStream:
    """A streamed reply with these chunks; an `Unreachable` breaks the connection."""

    def __init__(self, *chunks: bytes | Unreachable, status: int = 200) -> None:
        self.status = status
        self.headers: dict[str, str] = {}
        self.chunks = list(chunks)
        self.is_closed = False


def read_values(
    endpoint_name: str, spec: RequestSpec, *streams: ScriptedStream, values: int
) -> tuple[list[Any], list[dict[str, str]]]:
    """Read this number of values from consecutive streams. Returns the values, and the queries that opened the streams."""
    state = ClientState(SimulatedWorld(7), server_count=1, defaults=None, retry_policy=None)
    run = FlowRun(read_stream(state, ENDPOINT_BY_NAME[endpoint_name], spec))
    received_values: list[Any] = []
    queries: list[dict[str, str]] = []
    remaining_streams = list(streams)
    while len(received_values) < values and (step := run.step) is not None:
        match step:
            case OpenStream(request, _):
                queries.append(dict(request.query))
                run.resume(remaining_streams.pop(0))
            case ReadChunk(reply):
                chunk = reply.chunks.pop(0) if reply.chunks else b""
                if isinstance(chunk, Unreachable):
                    run.fail(chunk)
                else:
                    run.resume(chunk)
            case CloseStream(reply):
                reply.is_closed = True
                run.resume(None)
            case PauseFlow():
                run.resume(None)
            case YieldValue(value):
                received_values.append(value)
                run.resume(None)
    return received_values, queries


def an_event(key: str, index: int) -> EventView:
    return EventView(topic="Job", type="JobRegistered", key=key, namespace="default", index=index, payload={})


def a_line(index: int, *keys: str) -> bytes:
    return msgspec.json.encode(EventLine(index=index, events=tuple(an_event(key, index) for key in keys))) + b"\n"


def event_spec() -> StreamSpec[EventLine]:
    return StreamSpec({}, index="1")


def list_indexes_and_keys(lines: list[EventLine]) -> list[tuple[int, list[str]]]:
    return [(line.index, [event.key for event in line.events]) for line in lines]


def test_lines_are_decoded_for_any_chunk_size_and_heartbeats_are_skipped() -> None:
    whole = b"{}\n" + a_line(4, "a") + b"{}\n" + a_line(5, "b")
    chunks = [whole[at : at + 7] for at in range(0, len(whole), 7)]

    received_values, _ = read_values("event.stream", event_spec(), ScriptedStream(*chunks), values=2)

    assert list_indexes_and_keys(received_values) == [(4, ["a"]), (5, ["b"])]


def test_a_broken_stream_resumes_at_its_last_index_without_repetition() -> None:
    first = ScriptedStream(a_line(4, "a"), a_line(5, "b", "c"), a_line(5, "d")[:20], CONNECTION_LOST)
    second = ScriptedStream(a_line(5, "b", "c"), a_line(5, "d"), a_line(6, "e"))

    received_values, queries = read_values("event.stream", event_spec(), first, second, values=4)

    assert list_indexes_and_keys(received_values) == [(4, ["a"]), (5, ["b", "c"]), (5, ["d"]), (6, ["e"])]
    assert [query["index"] for query in queries] == ["1", "5"]


def test_a_resumed_stream_with_other_line_boundaries_repeats_nothing() -> None:
    first = ScriptedStream(a_line(5, "a", "b"), CONNECTION_LOST)
    second = ScriptedStream(a_line(5, "a"), a_line(5, "b", "c"))

    received_values, _ = read_values("event.stream", event_spec(), first, second, values=2)

    assert list_indexes_and_keys(received_values) == [(5, ["a", "b"]), (5, ["c"])]


def test_a_stream_that_the_server_ends_is_reopened() -> None:
    received_values, queries = read_values(
        "event.stream", event_spec(), ScriptedStream(a_line(4, "a")), ScriptedStream(a_line(7, "b")), values=2
    )

    assert list_indexes_and_keys(received_values) == [(4, ["a"]), (7, ["b"])]
    assert len(queries) == 2


def test_a_refused_stream_raises_an_error() -> None:
    with pytest.raises(Forbidden, match="Permission denied"):
        read_values("event.stream", event_spec(), ScriptedStream(b"Permission ", b"denied", status=403), values=1)


def test_log_frames_are_decoded_to_lines() -> None:
    frames = b'{"Data":"b25lCg=="}{}{"Data":"dHdvCg=="}'

    received_values, _ = read_values("agent.monitor", StreamSpec({}), ScriptedStream(frames[:9], frames[9:]), values=2)

    assert received_values == [b"one\n", b"two\n"]


def test_a_finite_stream_ends() -> None:
    received_values, queries = read_values(
        "operator.save_snapshot", StreamSpec({}), ScriptedStream(b"a", b"b"), values=3
    )

    assert (received_values, len(queries)) == ([b"a", b"b"], 1)


def test_a_broken_finite_stream_raises_an_error() -> None:
    with pytest.raises(Unreachable, match="broke off"):
        read_values("operator.save_snapshot", StreamSpec({}), ScriptedStream(b"a", CONNECTION_LOST), values=3)


def a_log_frame(data: bytes, offset: int, *, file: str = "alloc/logs/t.stdout.2") -> bytes:
    return msgspec.json.encode(LogFrame(offset, base64.b64encode(data).decode(), file))


def log_spec(*, origin: str = "", follow: bool = True) -> StreamSpec[bytes]:
    return StreamSpec({}, "a1", task="t", type="stdout", offset=0, origin=origin, follow=follow)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 10_000])
def test_a_followed_log_continues_at_the_position_of_the_last_whole_frame(chunk_bytes: int) -> None:
    whole = b"{}" + a_log_frame(b"one ", 4) + a_log_frame(b"two ", 8, file="alloc/logs/{t}.stdout.2")
    broken = whole + a_log_frame(b"lost", 12)[:-3]
    chunks = [broken[at : at + chunk_bytes] for at in range(0, len(broken), chunk_bytes)]

    values, queries = read_values(
        "client.fs_logs",
        log_spec(),
        ScriptedStream(*chunks, CONNECTION_LOST),
        ScriptedStream(a_log_frame(b"lost ", 13)),
        values=9,
    )

    assert b"one two lost " == b"".join(values)
    assert [(8, "alloc/logs/{t}.stdout.2")] == [(each.offset, each.file) for each in values[1:2]]
    assert ("8", "alloc/logs/{t}.stdout.2", "start") == tuple(queries[1][key] for key in ("offset", "file", "origin"))


@pytest.mark.parametrize(
    ("spec", "chunks"),
    [
        (log_spec(follow=False), [a_log_frame(b"one", 3)]),
        (log_spec(), []),
        (log_spec(origin="end"), [b"{}"]),
    ],
    ids=["not followed", "nothing received", "unknown position"],
)
def test_a_log_that_cannot_be_resumed_fails(spec: StreamSpec[bytes], chunks: list[bytes]) -> None:
    with pytest.raises(Unreachable):
        read_values("client.fs_logs", spec, ScriptedStream(*chunks, CONNECTION_LOST), values=9)


def test_a_reply_that_is_no_log_is_refused() -> None:
    with pytest.raises(UnexpectedReply, match="not a JSON object"):
        read_values("client.fs_logs", log_spec(), ScriptedStream(b"<html>"), values=1)


def test_a_frame_continues_a_log_only_directly_after_the_position_or_in_another_file() -> None:
    position = LogFrame(4, "", "alloc/logs/t.stdout.2")

    def continues(offset: int, file: str = "alloc/logs/t.stdout.2") -> bool:
        return is_continuation(position, msgspec.json.decode(a_log_frame(b"two", offset, file=file), type=LogFrame))

    assert [False, True, False] == [continues(offset) for offset in (3, 7, 8)]
    assert continues(3, "alloc/logs/t.stdout.3")


def test_an_endless_stream_is_not_reopened_after_the_longest_outage() -> None:
    now_s = 0.0
    state = ClientState(
        SimulatedWorld(7, lambda: now_s),
        server_count=1,
        defaults=None,
        retry_policy=RetryPolicy(max_pause_s=10.0, max_outage_s=60.0),
    )
    run = FlowRun(read_stream(state, ENDPOINT_BY_NAME["event.stream"], StreamSpec({})))
    run.resume(ScriptedStream())

    def play() -> None:
        nonlocal now_s
        while (step := run.step) is not None:
            if isinstance(step, PauseFlow):
                now_s += step.seconds
                run.resume(None)
            else:
                run.fail(CONNECTION_LOST)

    with pytest.raises(Unreachable, match="the reply broke off"):
        play()

    assert 60.0 <= now_s < 75.0


def test_only_the_beginning_of_an_endless_refusal_is_read() -> None:
    stream = ScriptedStream(*[b"x" * 65_536] * 100, status=403)

    with pytest.raises(Forbidden):
        read_values("event.stream", event_spec(), stream, values=1)

    assert len(stream.chunks) == 100 - MAX_REFUSAL_BYTES // 65_536
