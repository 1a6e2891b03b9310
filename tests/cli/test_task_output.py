"""Output of tasks on a terminal: colours stay, and nothing else controls the terminal. Pipes get the bytes unchanged."""

import io
import os
import select
import sys
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from wharf.cli.alloc.files import write_output
from wharf.cli.common.task_output import MAX_SEQUENCE_CHARS, TerminalFilter, clean_lines

HOSTILE = b"one\x1b]0;owned\x07\x1b[2J\x07 \x1b[31mred\x1b[0m\n"
CLEANED = b"one \x1b[31mred\x1b[0m\n"


def clean(*chunks: bytes) -> str:
    terminal = TerminalFilter()
    return "".join([*(terminal.clean_chunk(chunk) for chunk in chunks), terminal.clean_chunk(b"", is_last=True)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"plain \xc3\xa4\ttext\n", "plain \u00e4\ttext\n"),
        (b"\x1b[1;38;5;196mred\x1b[mplain", "\x1b[1;38;5;196mred\x1b[mplain"),
        (b"\x1b[31mred", "\x1b[31mred\x1b[0m"),
        (b"a\x1b[2J\x1b[10;3Hb\x1b[?1049h\x1b[6n", "ab"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        (b"\x1bP1$r0m\x1b\\a\x1b_x\x1b\\b\x1b^x\x1b\\c\x1bXx\x1b\\d", "abcd"),
        (b"\x1bca\x1b(0b\x1b7c\x1bMd", "abcd"),
        (b"a\x07b\x08c\x0bd\x0ce\x7ff\x00g", "abcdefg"),
        (b"a\xc2\x9b2Jb", "a2Jb"),
        (b"a\x9b2Jb", "a\ufffd2Jb"),
        (b"10%\r20%\r\nend", "10%\n20%\nend"),
        (b"a\x1b]0;never ends\nb", "a\nb"),
        (b"a\x1b", "a"),
        (b"a\x1b[31", "a[31"),
    ],
)
def test_a_terminal_gets_text_and_colours_only(text: bytes, expected: str) -> None:
    assert clean(text) == expected


@pytest.mark.parametrize("text", [HOSTILE, b"\x1bP1$r0m\x1b\\a\xe2\x82\xac\r\nb\rc\x1b]8;;x\x1b\\d"])
def test_sequences_are_removed_wherever_chunks_end(text: bytes) -> None:
    whole = clean(text)

    assert {clean(text[:at], text[at:]) for at in range(len(text))} == {whole}
    assert clean(*(bytes([byte]) for byte in text)) == whole


def test_a_sequence_that_never_ends_hides_no_more_than_its_limit() -> None:
    chunks = [b"\x1b]0;", *[b"x" * 1_000] * 10, b"visible"]

    assert len(clean(*chunks)) > 10_000 - MAX_SEQUENCE_CHARS
    assert clean(*chunks).endswith("visible")


def test_a_line_with_carriage_returns_becomes_several_lines() -> None:
    assert clean_lines(b"10%\r\x1b[2K\x1b[32m20%\r") == ["10%", "\x1b[32m20%\x1b[0m"]


@contextmanager
def printing_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let standard output be a real terminal; yield the file descriptor that reads what the terminal receives."""
    master, slave = os.openpty()
    tty.setraw(slave)  # Line ends are not translated.
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        yield master
    os.close(master)


@pytest.mark.parametrize(("is_raw", "expected"), [(False, CLEANED), (True, HOSTILE)])
def test_output_on_a_terminal_is_cleaned_unless_raw_output_is_requested(
    monkeypatch: pytest.MonkeyPatch, is_raw: bool, expected: bytes
) -> None:
    with printing_to_a_terminal(monkeypatch) as reader:
        write_output([HOSTILE[:5], HOSTILE[5:]], is_raw=is_raw)
        received = b""
        while len(received) < len(expected) and select.select([reader], [], [], 10)[0]:
            received += os.read(reader, 1_000)  # A terminal can pass on half of a text.

    assert received == expected


def test_output_in_a_pipe_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))

    write_output([HOSTILE, b"\xff\x00"], is_raw=False)

    assert pipe.getvalue() == HOSTILE + b"\xff\x00"
