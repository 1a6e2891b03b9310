"""How the engine's stamped log is read, however it is cut on its way."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from tests.waiting import wait_on_loop_until
from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.logs import LogFollower
from wharf.node.drivers.docker.output_stream import LogEntryChunk, OutputChunk, TimestampDecoder, parse_timestamp

AT_NS = 1_700_000_000_123_456_789
STAMP = b"2023-11-14T22:13:20.123456789Z"


def test_a_stamp_is_read_to_the_nanosecond_in_any_zone() -> None:
    assert AT_NS == parse_timestamp(STAMP)
    assert AT_NS == parse_timestamp(b"2023-11-14T23:13:20.123456789+01:00")
    assert AT_NS - 456_789 == parse_timestamp(b"2023-11-14T22:13:20.123Z")
    assert parse_timestamp(b"line") is None


def test_a_frame_that_comes_in_pieces_is_one_entry() -> None:
    stamped = TimestampDecoder(is_tty=False)
    pieces = [
        *stamped.feed(OutputChunk("stderr", STAMP[:10])),
        *stamped.feed(OutputChunk("stderr", STAMP[10:] + b" ab", False)),
    ]
    pieces += stamped.feed(OutputChunk("stderr", b"c\n", False))
    assert [LogEntryChunk("stderr", b"ab", AT_NS), LogEntryChunk("stderr", b"c\n", None)] == pieces


def test_of_a_terminal_each_line_is_an_entry() -> None:
    stamped = TimestampDecoder(is_tty=True)
    data = STAMP + b" one\r\n" + STAMP + b" tw"
    pieces = [*stamped.feed(OutputChunk("stdout", data)), *stamped.feed(OutputChunk("stdout", b"o\r\n"))]
    assert [
        LogEntryChunk("stdout", b"one\r\n", AT_NS),
        LogEntryChunk("stdout", b"tw", AT_NS),
        LogEntryChunk("stdout", b"o\r\n", None),
    ] == pieces


def test_what_has_no_stamp_is_kept_whole() -> None:
    line = b"no stamp at all\n"
    assert [LogEntryChunk("stdout", line, 0)] == list(TimestampDecoder(is_tty=False).feed(OutputChunk("stdout", line)))


def test_an_engine_that_is_away_for_long_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        tries = []

        def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tries.append(writer)
            writer.close()

        with tempfile.TemporaryDirectory() as folder:  # The path of a socket must be short.
            path = Path(folder, "s")
            async with await asyncio.start_unix_server(hang_up, path), ContainerEngine(path) as engine:
                follower = LogFollower(engine, "c1", is_tty=False, files={}, progress_file=tmp_path / "kept")
                following = asyncio.ensure_future(follower.follow())
                await wait_on_loop_until(lambda: len(tries) > 2, what="it was tried some times")
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    asyncio.run(story())

    assert 1 == caplog.text.count("container output cannot be copied")
