"""Prints the output of tasks. On a terminal, colours stay, and everything else that controls the terminal is removed.

Output that goes to a file or a pipe is not changed (decision 148).
"""

import codecs
import re
import sys
from typing import Final

from wharf.world.terminal_text import COLOR_SEQUENCE, CONTROL_SEQUENCE

MAX_SEQUENCE_CHARS: Final = 4_096
"""Limit of one control sequence. The rest of a longer one is printed as text; a task cannot hide all later output."""
RESET: Final = "\x1b[0m"
"""Ends all colours."""
_UNFINISHED: Final = re.compile(r"(?:\r|\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n\x9c]*\x1b?|[ -/]+)?)\Z")
"""The beginning of a sequence at the end of a chunk. The next chunk decides what it is."""


class TerminalFilter:
    """Removes control sequences from the output of a task, chunk by chunk. Lines, tabs and colours stay."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        """The beginning of a sequence that is not complete yet."""
        self._is_coloured = False

    def clean_chunk(self, chunk: bytes, *, is_last: bool = False) -> str:
        """Return the text of a chunk that is safe to print. `is_last` also returns what was held back."""
        text = self._rest + self._decoder.decode(chunk, is_last)
        self._rest = ""
        if not is_last and (unfinished := _UNFINISHED.search(text)) and len(unfinished[0]) <= MAX_SEQUENCE_CHARS:
            self._rest, text = unfinished[0], text[: unfinished.start()]
        cleaned = CONTROL_SEQUENCE.sub(self._replace, text)
        if is_last and self._is_coloured:
            self._is_coloured = False
            return cleaned + RESET
        return cleaned

    def _replace(self, found: re.Match[str]) -> str:
        """Return what replaces a control sequence. A lone carriage return ends the line, as in progress bars."""
        sequence = found[0]
        if sequence in ("\r", "\r\n"):
            return "\n"
        if COLOR_SEQUENCE.fullmatch(sequence) is None:
            return ""
        self._is_coloured = sequence not in (RESET, "\x1b[m")
        return sequence


class TaskOutput:
    """Standard output for the bytes of a task: filtered on a terminal unless `is_raw`, else unchanged."""

    def __init__(self, *, is_raw: bool = False) -> None:
        self._filter = None if is_raw or not sys.stdout.isatty() else TerminalFilter()

    @property
    def is_filtered(self) -> bool:
        """Whether control sequences are removed."""
        return self._filter is not None

    def write(self, chunk: bytes) -> None:
        """Print a chunk at once."""
        sys.stdout.buffer.write(self._filter.clean_chunk(chunk).encode() if self._filter is not None else chunk)
        sys.stdout.buffer.flush()

    def write_clean(self, text: str) -> None:
        """Print text that a `TerminalFilter` or `render_for_terminal` returned."""
        sys.stdout.buffer.write(text.encode(errors="replace"))

    def finish(self) -> None:
        """Print what was held back, and end the colours."""
        if self._filter is not None:
            sys.stdout.buffer.write(self._filter.clean_chunk(b"", is_last=True).encode())
            sys.stdout.buffer.flush()


def clean_lines(line: bytes) -> list[str]:
    """Return one line of a task's output without control sequences; several lines if it has carriage returns."""
    return TerminalFilter().clean_chunk(line.rstrip(b"\r"), is_last=True).split("\n")
