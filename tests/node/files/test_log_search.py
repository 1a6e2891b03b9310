"""Searching a log for lines that contain a text."""

import asyncio
from pathlib import Path

import pytest

from tests.node.files.test_log_tail import write_log
from tests.waiting import wait_on_loop_until, wait_until
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.allocations.log_search import (
    MAX_FOUND_BYTES,
    MAX_SEARCH_LINES,
    LineSearch,
    LogSearch,
    check_search,
)
from wharf.node.channel.log_search import search_on_thread
from wharf.node.files.log_search import BLOCK_BYTES, search_log


def search(folder: Path, text: str, *files: str, max_lines: int = 100, max_bytes: int = 1 << 30) -> LogSearch:
    """Search a log with these files. A search of a part of the log is marked as stopped."""
    found = LineSearch(text.encode(), max_lines=max_lines)
    is_whole = search_log(
        write_log(folder, *files), "web", "stdout", found, max_bytes=max_bytes, should_stop=lambda: False
    )
    return found.build_reply("" if is_whole else "a part")


def test_all_lines_of_all_files_are_counted_and_the_last_ones_are_returned(tmp_path: Path) -> None:
    found = search(tmp_path, "error", "Error 1\nfine\nERROR 2 error\n", "fine\nerror 3", max_lines=2)

    assert (found.count, found.searched_bytes, found.stopped) == (3, 39, "")
    assert [(line.file, line.offset, line.text) for line in found.lines] == [
        ("alloc/logs/web.stdout.0", 13, b"ERROR 2 error"),
        ("alloc/logs/web.stdout.1", 5, b"error 3"),
    ]


def test_lines_that_cross_the_blocks_of_a_search_are_found_once(tmp_path: Path) -> None:
    lines = [f"{'match' if number % 7 == 0 else 'other'} {number} {'x' * (number % 211)}" for number in range(9_000)]
    text = "\n".join(lines) + "\n"
    assert len(text) > 3 * BLOCK_BYTES

    found = search(tmp_path, "match", text, max_lines=10_000)

    expected = [line for line in lines if "match" in line]
    assert [line.text.decode() for line in found.lines] == expected
    assert all(text[line.offset :].startswith(line.text.decode()) for line in found.lines)


def test_colors_of_terminals_are_ignored(tmp_path: Path) -> None:
    text = "fine\n\x1b[31mErr\x1b[0mor\x1b[m 1\nError \x1b[1m2\n\nlast"

    found = search(tmp_path, "error ", text)

    assert found.count == 2
    assert [(line.offset, line.text) for line in found.lines] == [
        (5, b"\x1b[31mErr\x1b[0mor\x1b[m 1"),
        (text.index("Error"), b"Error \x1b[1m2"),
    ]


def test_a_line_without_an_end_is_searched_in_pieces(tmp_path: Path) -> None:
    found = search(tmp_path, "match", "x" * (2 * BLOCK_BYTES) + "match" + "x" * BLOCK_BYTES)

    assert (found.count, found.searched_bytes) == (1, 3 * BLOCK_BYTES + 5)


def test_of_a_large_log_only_the_end_is_searched(tmp_path: Path) -> None:
    found = search(tmp_path, "line", "line 1\n", "line 2\nline 3\n", max_bytes=7)

    assert (found.count, found.stopped) == (1, "a part")


def test_the_memory_for_found_lines_is_limited() -> None:
    found = LineSearch(b"x", max_lines=MAX_SEARCH_LINES)
    line = b"x" * 60_000 + b"\n"
    for number in range(200):
        found.search_block(line, "file", number * len(line), is_last=False)

    reply = found.build_reply()
    assert reply.count == 200
    assert sum(len(line.text) for line in reply.lines) <= MAX_FOUND_BYTES


@pytest.mark.parametrize(("text", "limit"), [("", 1), ("two\nlines", 1), ("x" * 5_000, 1), ("x", -1), ("x", 10_001)])
def test_a_search_with_a_wrong_text_or_limit_is_refused(text: str, limit: int) -> None:
    with pytest.raises(Refusal):
        check_search(text, limit)


def test_a_search_stops_between_two_blocks(tmp_path: Path) -> None:
    found, answers = LineSearch(b"x", max_lines=1), iter((False, False, True, True))
    folder = write_log(tmp_path, "x\n" * 2 * BLOCK_BYTES)

    is_whole = search_log(folder, "web", "stdout", found, max_bytes=1 << 30, should_stop=lambda: next(answers))

    assert (is_whole, found.build_reply().searched_bytes) == (False, 2 * BLOCK_BYTES)


def test_a_canceled_search_stops(tmp_path: Path) -> None:
    found = LineSearch(b"x", max_lines=1)
    folder = write_log(tmp_path, "x\n" * 16_000_000)

    async def cancel_after_the_first_block() -> None:
        searching = asyncio.ensure_future(search_on_thread(folder, "web", "stdout", found))
        await wait_on_loop_until(lambda: found.build_reply().searched_bytes, what="the search has begun")
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching

    asyncio.run(cancel_after_the_first_block())

    reads = [-1, found.build_reply().searched_bytes]

    def has_stopped() -> bool:
        reads.append(found.build_reply().searched_bytes)
        return reads[-1] == reads[-2]

    wait_until(has_stopped, what="the thread has ended its search")
    assert reads[-1] < 32_000_000
