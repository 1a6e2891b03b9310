"""Following files and logs while they grow, in virtual time."""

import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec
import pytest

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.contract.model.refusal import Refusal
from wharf.node.files import (
    FileFrame,
    ReadOnlyFolder,
    ReadOrigin,
    TaskLogPosition,
    encode_frames,
    extract_data,
    follow_file,
    follow_logs,
    parse_log_position,
)
from wharf.world import SimulatedWorld


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "alloc/logs").mkdir(parents=True)
    return tmp_path


def write(root: Path, number: int, text: str, *, task: str = "web", stream: str = "stdout") -> None:
    with (root / f"alloc/logs/{task}.{stream}.{number}").open("a") as file:
        file.write(text)


async def read_frames(frames: AsyncGenerator[FileFrame, None]) -> list[FileFrame]:
    return [frame async for frame in frames]


def open_file_stream(
    root: Path, *, origin: ReadOrigin = ReadOrigin.START, offset: int = 0, should_follow: bool = False
) -> AsyncGenerator[FileFrame, None]:
    return follow_file(ReadOnlyFolder(root), "f", origin=origin, offset=offset, should_follow=should_follow)


def open_log_stream(
    root: Path,
    *,
    origin: ReadOrigin = ReadOrigin.START,
    offset: int = 0,
    should_follow: bool = False,
    is_over: bool = False,
    start: TaskLogPosition | None = None,
) -> AsyncGenerator[FileFrame, None]:
    return follow_logs(
        ReadOnlyFolder(root),
        "web",
        "stdout",
        origin=origin,
        offset=offset,
        should_follow=should_follow,
        is_over=lambda: is_over,
        start=start,
    )


class Follower:
    """Collects frames until it is cancelled."""

    def __init__(self, frames: AsyncGenerator[FileFrame, None]) -> None:
        self.frames: list[FileFrame] = []
        self.is_done = False
        self._source = frames
        self.task = SimulatedWorld(1, now_s).start_task(self._collect(), name="follower")

    async def _collect(self) -> None:
        async for frame in self._source:
            self.frames.append(frame)
        self.is_done = True

    @property
    def text(self) -> str:
        return b"".join(frame.data for frame in self.frames).decode()


@pytest.mark.parametrize(
    ("origin", "offset", "data"),
    [
        (ReadOrigin.START, 0, b"0123456789"),
        (ReadOrigin.START, 7, b"789"),
        (ReadOrigin.START, 99, b""),
        (ReadOrigin.END, 0, b""),
        (ReadOrigin.END, 3, b"789"),
        (ReadOrigin.END, 99, b"0123456789"),
    ],
)
def test_a_file_is_read_from_an_offset_counted_from_start_or_end(
    root: Path, origin: ReadOrigin, offset: int, data: bytes
) -> None:
    (root / "f").write_text("0123456789")

    @in_virtual_time
    async def test() -> None:
        frames = await read_frames(open_file_stream(root, origin=origin, offset=offset))

        assert data == b"".join(frame.data for frame in frames)
        assert all(frame.offset == 10 and frame.file == "f" for frame in frames)

    test()


def test_a_large_file_is_sent_in_pieces_with_their_end_offsets(root: Path) -> None:
    (root / "f").write_bytes(b"x" * 150_000)

    @in_virtual_time
    async def test() -> None:
        assert [65_536, 131_072, 150_000] == [frame.offset for frame in await read_frames(open_file_stream(root))]

    test()


@in_virtual_time
async def follow_changing_file(root: Path) -> None:
    (root / "f").write_text("a")
    follower = Follower(open_file_stream(root, should_follow=True))
    await until(lambda: follower.text == "a", what="the beginning")
    written_at_s = now_s()
    with (root / "f").open("a") as file:
        file.write("b")
    await until(lambda: follower.text == "ab", what="the appended data")
    assert now_s() - written_at_s <= 0.05

    (root / "f").write_text("c")
    await until(lambda: follower.text == "abc", what="the data after truncation")
    assert "file truncated" in [frame.event for frame in follower.frames]

    (root / "f").unlink()
    await until(lambda: follower.is_done, what="the end")
    assert "file deleted" == follower.frames[-1].event


def test_appended_data_arrive_within_50_ms_and_truncation_and_deletion_are_reported(root: Path) -> None:
    follow_changing_file(root)


def test_an_empty_frame_is_sent_each_second_without_data(root: Path) -> None:
    (root / "f").write_text("")

    @in_virtual_time
    async def test() -> None:
        follower = Follower(open_file_stream(root, should_follow=True))
        await pass_time(5.5)
        follower.task.cancel()
        await pass_time(0.1)

        assert [FileFrame()] * 5 == follower.frames

    test()


def test_a_missing_file_is_refused_before_the_first_frame(root: Path) -> None:
    @in_virtual_time
    async def test() -> None:
        with pytest.raises(Refusal, match='file "f" does not exist'):
            await read_frames(open_file_stream(root, should_follow=True))

    test()


@pytest.mark.parametrize(
    ("origin", "offset", "text"),
    [
        (ReadOrigin.START, 0, "aaabbbccc"),
        (ReadOrigin.START, 4, "bbccc"),
        (ReadOrigin.END, 4, "bccc"),
        (ReadOrigin.END, 0, ""),
        (ReadOrigin.END, 99, "aaabbbccc"),
        (ReadOrigin.START, 99, ""),
    ],
)
def test_a_log_is_read_as_one_text_over_all_its_files(root: Path, origin: ReadOrigin, offset: int, text: str) -> None:
    for number, part in ((9, "aaa"), (10, "bbb"), (11, "ccc")):
        write(root, number, part)
    write(root, 10, "other", stream="stderr")
    write(root, 10, "other", task="web2")

    @in_virtual_time
    async def test() -> None:
        frames = await read_frames(open_log_stream(root, origin=origin, offset=offset))

        assert text == b"".join(frame.data for frame in frames).decode()

    test()


def test_following_a_log_continues_in_the_next_file(root: Path) -> None:
    @in_virtual_time
    async def test() -> None:
        follower = Follower(open_log_stream(root, should_follow=True))
        await pass_time(0.1)
        for number, text in ((0, "one "), (0, "two "), (1, "three "), (2, "four")):
            write(root, number, text)
            await pass_time(0.1)

        assert "one two three four" == follower.text
        assert ["alloc/logs/web.stdout.0", "alloc/logs/web.stdout.2"] == [
            follower.frames[0].file,
            follower.frames[-1].file,
        ]
        follower.task.cancel()
        await pass_time(0.1)

    test()


def test_a_slow_follower_continues_with_the_oldest_remaining_file(root: Path) -> None:
    write(root, 0, "old")

    @in_virtual_time
    async def test() -> None:
        follower = Follower(open_log_stream(root, should_follow=True))
        await until(lambda: follower.text == "old", what="the first file")
        (root / "alloc/logs/web.stdout.0").unlink()
        write(root, 5, "new")

        await until(lambda: follower.text == "oldnew", what="the oldest remaining file")
        follower.task.cancel()
        await pass_time(0.1)

    test()


def test_following_ends_when_the_task_is_over_and_everything_was_sent(root: Path) -> None:
    write(root, 0, "all")

    @in_virtual_time
    async def test() -> None:
        assert b"all" == b"".join(
            frame.data for frame in await read_frames(open_log_stream(root, should_follow=True, is_over=True))
        )

    test()


def test_a_missing_log_is_refused_and_a_follower_waits_for_it(root: Path) -> None:
    @in_virtual_time
    async def test() -> None:
        with pytest.raises(Refusal, match='no stdout log of task "web" yet'):
            await read_frames(open_log_stream(root))
        follower = Follower(open_log_stream(root, should_follow=True))
        await pass_time(1)
        write(root, 0, "late")
        await until(lambda: follower.text == "late", what="the log")
        follower.task.cancel()
        await pass_time(0.1)

    test()


def test_frames_omit_empty_fields() -> None:
    async def frames() -> AsyncGenerator[FileFrame, None]:
        yield FileFrame(3, b"abc", "f")
        yield FileFrame()
        yield FileFrame(3, b"", "f", "file deleted")

    @in_virtual_time
    async def test() -> None:
        decoded = [msgspec.json.decode(part) async for part in encode_frames(frames())]
        assert {"Offset": 3, "Data": "YWJj", "File": "f"} == decoded[0]
        assert {} == decoded[1]
        assert {"Offset": 3, "File": "f", "FileEvent": "file deleted"} == decoded[2]
        assert [b"abc", b"", b""] == [part async for part in extract_data(frames())]

    test()


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (TaskLogPosition(9, 2), "abbbccc"),
        (TaskLogPosition(10, 3), "ccc"),
        (TaskLogPosition(11, 1), "cc"),
        (TaskLogPosition(11, 3), ""),
        (TaskLogPosition(4, 2), "aaabbbccc"),  # Its file was deleted.
        (TaskLogPosition(12, 2), ""),  # Its file does not exist yet.
    ],
)
def test_a_log_continues_at_the_position_of_a_frame(root: Path, start: TaskLogPosition, text: str) -> None:
    for number, part in ((9, "aaa"), (10, "bbb"), (11, "ccc")):
        write(root, number, part)

    @in_virtual_time
    async def test() -> None:
        frames = await read_frames(open_log_stream(root, should_follow=True, is_over=True, start=start))

        assert text == b"".join(frame.data for frame in frames).decode()

    test()


def test_a_resumed_follower_gets_what_was_written_while_it_was_away(root: Path) -> None:
    write(root, 3, "one ")

    @in_virtual_time
    async def test() -> None:
        broken = Follower(open_log_stream(root, should_follow=True, origin=ReadOrigin.END))
        await until(lambda: broken.frames, what="the position of the end")
        last = broken.frames[-1]
        broken.task.cancel()
        write(root, 3, "two ")
        write(root, 4, "three")
        start = parse_log_position("web", "stdout", last.file, last.offset)

        resumed = await read_frames(open_log_stream(root, should_follow=True, is_over=True, start=start))

        assert "" == broken.text
        assert b"two three" == b"".join(frame.data for frame in resumed)

    test()


@pytest.mark.parametrize("path", ["alloc/logs/web2.stdout.1", "alloc/logs/web.stderr.1", "../web.stdout.1", "x", ""])
def test_only_a_log_file_of_the_task_is_a_position(path: str) -> None:
    assert parse_log_position("web", "stdout", path, 1) is None
    assert parse_log_position("web", "stdout", "alloc/logs/web.stdout.1", 1) == TaskLogPosition(1, 1)


@pytest.mark.parametrize("make_obstacle", [os.mkdir, os.mkfifo])
def test_a_follower_skips_names_that_belong_to_no_file(root: Path, make_obstacle: Callable[[Path], None]) -> None:
    make_obstacle(root / "alloc/logs/web.stdout.0")
    write(root, 1, "one")
    make_obstacle(root / "alloc/logs/web.stdout.5")

    @in_virtual_time
    async def test() -> None:
        follower = Follower(open_log_stream(root, should_follow=True))
        await until(lambda: follower.text == "one", what="one arrives")
        await pass_time(1)
        write(root, 6, "two")
        await until(lambda: follower.text == "onetwo", what="onetwo arrives")
        assert not follower.is_done
        follower.task.cancel()
        await pass_time(0.1)

    test()


@pytest.mark.parametrize("make_obstacle", [os.mkdir, os.mkfifo])
def test_a_log_ends_at_names_that_belong_to_no_file(root: Path, make_obstacle: Callable[[Path], None]) -> None:
    write(root, 0, "one")
    make_obstacle(root / "alloc/logs/web.stdout.5")

    @in_virtual_time
    async def test() -> None:
        assert b"one" == b"".join(frame.data for frame in await read_frames(open_log_stream(root)))

    test()


def test_a_follower_stays_with_the_folder_that_it_has_opened(root: Path) -> None:
    write(root, 0, "own")

    @in_virtual_time
    async def test() -> None:
        follower = Follower(open_log_stream(root, should_follow=True))
        await until(lambda: follower.text == "own", what="own arrives")
        (root / "alloc/logs").rename(root / "alloc/moved")
        (root / "alloc/forged").mkdir()
        (root / "alloc/forged/web.stdout.1").write_text("forged")
        (root / "alloc/logs").symlink_to("forged")
        await pass_time(1)
        assert follower.text == "own"
        follower.task.cancel()
        await pass_time(0.1)

    test()


def test_a_link_in_the_place_of_the_log_folder_is_refused(root: Path) -> None:
    write(root, 0, "one")
    (root / "alloc/logs").rename(root / "alloc/moved")
    (root / "alloc/logs").symlink_to("moved")

    @in_virtual_time
    async def test() -> None:
        with pytest.raises(Refusal, match="alloc/logs of the allocation is not a folder"):
            await read_frames(open_log_stream(root))

    test()


def test_a_full_log_folder_is_listed_rarely(root: Path) -> None:
    write(root, 0, "one")
    for number in range(5_000):
        (root / f"alloc/logs/other.stdout.{number}").touch()

    @in_virtual_time
    async def test() -> None:
        follower = Follower(open_log_stream(root, should_follow=True))
        await until(lambda: follower.text == "one", what="one arrives")
        write(root, 1, "two")
        await pass_time(0.3)
        assert follower.text == "one"
        await pass_time(0.3)
        assert follower.text == "onetwo"
        follower.task.cancel()
        await pass_time(0.1)

    test()
