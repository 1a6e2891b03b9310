"""Timestamps in the engine's log, for any division of the data into chunks; and retries of the log follower."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kit.loop_holds import LoopHolds, measure_holds
from tests.waiting import wait_on_loop_until
from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.logs import LogFollower
from wharf.node.drivers.docker.output_stream import ContainerOutput, LogEntryChunk, TimestampDecoder, parse_timestamp
from wharf.node.log_folder import LogFolder
from wharf.node.rotated_files import RotatedFiles

AT_NS = 1_700_000_000_123_456_789
STAMP = b"2023-11-14T22:13:20.123456789Z"


def test_timestamps_are_parsed_in_any_time_zone_to_the_nanosecond() -> None:
    assert AT_NS == parse_timestamp(STAMP)
    assert AT_NS == parse_timestamp(b"2023-11-14T23:13:20.123456789+01:00")
    assert AT_NS - 456_789 == parse_timestamp(b"2023-11-14T22:13:20.123Z")
    assert parse_timestamp(b"line") is None


def test_a_frame_in_several_chunks_is_one_entry() -> None:
    decoder = TimestampDecoder(is_tty=False)
    chunks = [
        *decoder.feed(ContainerOutput("stderr", STAMP[:10])),
        *decoder.feed(ContainerOutput("stderr", STAMP[10:] + b" ab", False)),
    ]
    chunks += decoder.feed(ContainerOutput("stderr", b"c\n", False))
    assert [LogEntryChunk("stderr", b"ab", AT_NS), LogEntryChunk("stderr", b"c\n", None)] == chunks


def test_with_a_terminal_each_line_is_an_entry() -> None:
    decoder = TimestampDecoder(is_tty=True)
    data = STAMP + b" one\r\n" + STAMP + b" tw"
    chunks = [*decoder.feed(ContainerOutput("stdout", data)), *decoder.feed(ContainerOutput("stdout", b"o\r\n"))]
    assert [
        LogEntryChunk("stdout", b"one\r\n", AT_NS),
        LogEntryChunk("stdout", b"tw", AT_NS),
        LogEntryChunk("stdout", b"o\r\n", None),
    ] == chunks


def test_an_entry_without_a_timestamp_is_returned_complete() -> None:
    line = b"no stamp at all\n"
    assert [LogEntryChunk("stdout", line, 0)] == list(
        TimestampDecoder(is_tty=False).feed(ContainerOutput("stdout", line))
    )


@asynccontextmanager
async def engine_that(
    handle_connection: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None],
) -> AsyncIterator[ContainerEngine]:
    """Yield a client of a container engine that handles each connection so."""
    with tempfile.TemporaryDirectory() as folder:  # The path of a socket must be short.
        path = Path(folder, "s")
        async with await asyncio.start_unix_server(handle_connection, path), ContainerEngine(path) as engine:
            yield engine


def test_repeated_connection_errors_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def follow() -> None:
        connections = []

        def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            writer.close()

        async with engine_that(hang_up) as engine:
            follower = LogFollower(engine, "c1", is_tty=False, files={}, progress_file=tmp_path / "progress")
            follow_task = asyncio.ensure_future(follower.follow())
            await wait_on_loop_until(lambda: len(connections) > 2, what="the follower retries")
            follow_task.cancel()
            await asyncio.gather(follow_task, return_exceptions=True)

    asyncio.run(follow())

    assert 1 == caplog.text.count("container output cannot be copied")


def test_very_many_short_lines_hold_no_event_loop(tmp_path: Path) -> None:
    line_count = 5_000
    entry = STAMP + b" a\n"
    body = (b"\x01\0\0\0" + len(entry).to_bytes(4, "big") + entry) * line_count

    async def send_log(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    logs = LogFolder(tmp_path / "alloc" / "logs", should_create=True)

    async def follow() -> LoopHolds:
        async with engine_that(send_log) as engine:
            files = {
                name: RotatedFiles(logs, "t", name, max_files=1, max_file_bytes=1 << 20)
                for name in ("stdout", "stderr")
            }
            follower = LogFollower(engine, "c1", is_tty=False, files=files, progress_file=tmp_path / "progress")
            with measure_holds() as holds:
                await follower.follow()
            return holds

    holds = asyncio.run(follow())

    assert (tmp_path / "alloc" / "logs" / "t.stdout.0").read_bytes() == b"a\n" * line_count
    holds.require_short("the copy of many short lines")


def test_output_that_cannot_be_written_is_reported_to_the_users_of_the_task(tmp_path: Path) -> None:
    reports: list[str] = []

    async def follow() -> None:
        connections = []

        def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            writer.close()

        async with engine_that(hang_up) as engine:
            progress_file = tmp_path / "missing" / "progress"
            follower = LogFollower(
                engine, "c1", is_tty=False, files={}, progress_file=progress_file, report=reports.append
            )
            follow_task = asyncio.ensure_future(follower.follow())
            await wait_on_loop_until(lambda: bool(reports), what="the follower reports the error")
            progress_file.parent.mkdir()
            await wait_on_loop_until(lambda: len(connections) > 1, what="the follower retries")
            follow_task.cancel()
            await asyncio.gather(follow_task, return_exceptions=True)

    asyncio.run(follow())

    assert [
        "output cannot be written to the log files: No such file or directory. Free space on the disk of the node, or remove "
        "what blocks the names of the log files"
    ] == reports
