"""How the engine's stamped log is read, however it is cut on its way."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from tests.waiting import wait_on_loop_until
from wharf.node.docker.engine import Engine
from wharf.node.docker.following import LogFollower
from wharf.node.docker.frames import Chunk
from wharf.node.docker.stamped import Piece, Stamped, read_stamp

AT_NS = 1_700_000_000_123_456_789
STAMP = b"2023-11-14T22:13:20.123456789Z"


def test_a_stamp_is_read_to_the_nanosecond_in_any_zone() -> None:
    assert AT_NS == read_stamp(STAMP)
    assert AT_NS == read_stamp(b"2023-11-14T23:13:20.123456789+01:00")
    assert AT_NS - 456_789 == read_stamp(b"2023-11-14T22:13:20.123Z")
    assert read_stamp(b"line") is None


def test_a_frame_that_comes_in_pieces_is_one_entry() -> None:
    stamped = Stamped(is_tty=False)
    pieces = [*stamped.feed(Chunk("stderr", STAMP[:10])), *stamped.feed(Chunk("stderr", STAMP[10:] + b" ab", False))]
    pieces += stamped.feed(Chunk("stderr", b"c\n", False))
    assert [Piece("stderr", b"ab", AT_NS), Piece("stderr", b"c\n", None)] == pieces


def test_of_a_terminal_each_line_is_an_entry() -> None:
    stamped = Stamped(is_tty=True)
    data = STAMP + b" one\r\n" + STAMP + b" tw"
    pieces = [*stamped.feed(Chunk("stdout", data)), *stamped.feed(Chunk("stdout", b"o\r\n"))]
    assert [
        Piece("stdout", b"one\r\n", AT_NS),
        Piece("stdout", b"tw", AT_NS),
        Piece("stdout", b"o\r\n", None),
    ] == pieces


def test_what_has_no_stamp_is_kept_whole() -> None:
    line = b"no stamp at all\n"
    assert [Piece("stdout", line, 0)] == list(Stamped(is_tty=False).feed(Chunk("stdout", line)))


def test_an_engine_that_is_away_for_long_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        tries = []

        def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tries.append(writer)
            writer.close()

        with tempfile.TemporaryDirectory() as folder:  # The path of a socket must be short.
            path = Path(folder, "s")
            async with await asyncio.start_unix_server(hang_up, path), Engine(path) as engine:
                follower = LogFollower(engine, "c1", is_tty=False, files={}, kept=tmp_path / "kept")
                following = asyncio.ensure_future(follower.follow())
                await wait_on_loop_until(lambda: len(tries) > 2, what="it was tried some times")
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    asyncio.run(story())

    assert 1 == caplog.text.count("the output of a container waits")
