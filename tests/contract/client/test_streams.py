"""Streams, cut into what they say, and taken up again where they broke off."""

from typing import Any

import msgspec
import pytest

from wharf.contract.client.calls import RequestSpec, StreamSpec
from wharf.contract.client.errors import Forbidden
from wharf.contract.client.flow import ClientState, CloseStream, FlowRun, OpenStream, PauseFlow, ReadChunk, YieldValue
from wharf.contract.client.streams import read_stream
from wharf.contract.client.transport import Unreachable
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME
from wharf.contract.wire.events import EventLine, EventView
from wharf.world import SimulatedWorld

BREAKS = Unreachable("the reply broke off", is_sent=True)


class Opened:
    def __init__(self, *pieces: bytes | Unreachable, status: int = 200) -> None:
        self.status = status
        self.headers: dict[str, str] = {}
        self.pieces = list(pieces)
        self.is_closed = False


def hear(row: str, ask: RequestSpec, *streams: Opened, values: int) -> tuple[list[Any], list[dict[str, str]]]:
    """So many values that the streams give one after the other, and the queries that opened them."""
    standing = ClientState(SimulatedWorld(7), server_count=1, defaults=None, retry_policy=None)
    course = FlowRun(read_stream(standing, ENDPOINT_BY_NAME[row], ask))
    given: list[Any] = []
    queries: list[dict[str, str]] = []
    waiting = list(streams)
    while len(given) < values and (step := course.step) is not None:
        match step:
            case OpenStream(request, _):
                queries.append(dict(request.query))
                course.resume(waiting.pop(0))
            case ReadChunk(opened):
                piece = opened.pieces.pop(0) if opened.pieces else b""
                if isinstance(piece, Unreachable):
                    course.fail(piece)
                else:
                    course.resume(piece)
            case CloseStream(opened):
                opened.is_closed = True
                course.resume(None)
            case PauseFlow():
                course.resume(None)
            case YieldValue(value):
                given.append(value)
                course.resume(None)
    return given, queries


def an_event(key: str, index: int) -> EventView:
    return EventView(topic="Job", type="JobRegistered", key=key, namespace="default", index=index, payload={})


def a_line(index: int, *keys: str) -> bytes:
    return msgspec.json.encode(EventLine(index=index, events=tuple(an_event(key, index) for key in keys))) + b"\n"


def events() -> StreamSpec[EventLine]:
    return StreamSpec({}, index="1")


def told(lines: list[EventLine]) -> list[tuple[int, list[str]]]:
    return [(line.index, [event.key for event in line.events]) for line in lines]


def test_lines_come_one_by_one_however_they_are_cut_and_signs_of_life_are_none() -> None:
    whole = b"{}\n" + a_line(4, "a") + b"{}\n" + a_line(5, "b")
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]

    given, _ = hear("event.stream", events(), Opened(*pieces), values=2)

    assert told(given) == [(4, ["a"]), (5, ["b"])]


def test_a_stream_that_broke_off_goes_on_from_its_last_index_and_repeats_nothing() -> None:
    first = Opened(a_line(4, "a"), a_line(5, "b", "c"), a_line(5, "d")[:20], BREAKS)
    second = Opened(a_line(5, "b", "c"), a_line(5, "d"), a_line(6, "e"))

    given, queries = hear("event.stream", events(), first, second, values=4)

    assert told(given) == [(4, ["a"]), (5, ["b", "c"]), (5, ["d"]), (6, ["e"])]
    assert [query["index"] for query in queries] == ["1", "5"]


def test_lines_that_are_cut_elsewhere_the_second_time_repeat_nothing_either() -> None:
    first = Opened(a_line(5, "a", "b"), BREAKS)
    second = Opened(a_line(5, "a"), a_line(5, "b", "c"))

    given, _ = hear("event.stream", events(), first, second, values=2)

    assert told(given) == [(5, ["a", "b"]), (5, ["c"])]


def test_a_stream_that_the_server_ends_is_opened_again() -> None:
    given, queries = hear("event.stream", events(), Opened(a_line(4, "a")), Opened(a_line(7, "b")), values=2)

    assert told(given) == [(4, ["a"]), (7, ["b"])]
    assert len(queries) == 2


def test_a_stream_that_is_refused_is_told() -> None:
    with pytest.raises(Forbidden, match="Permission denied"):
        hear("event.stream", events(), Opened(b"Permission ", b"denied", status=403), values=1)


def test_frames_of_a_log_become_its_lines() -> None:
    frames = b'{"Data":"b25lCg=="}{}{"Data":"dHdvCg=="}'

    given, _ = hear("agent.monitor", StreamSpec({}), Opened(frames[:9], frames[9:]), values=2)

    assert given == [b"one\n", b"two\n"]


def test_what_has_an_end_ends_there() -> None:
    given, queries = hear("operator.save_snapshot", StreamSpec({}), Opened(b"a", b"b"), values=3)

    assert (given, len(queries)) == ([b"a", b"b"], 1)


def test_what_has_an_end_and_breaks_off_before_is_told() -> None:
    with pytest.raises(Unreachable, match="broke off"):
        hear("operator.save_snapshot", StreamSpec({}), Opened(b"a", BREAKS), values=3)
