r"""The way of all output to a terminal: characters that control it are shown as escapes, except our own colours.

Names, descriptions and error texts come from servers and other users. `main` puts a `TerminalStream` in front of standard
output and standard error if they are terminals; output to files and pipes is not changed. Our own colours are marked with a
number that is drawn for each process, so that text from others cannot contain one. Decision record 0148 has the reasons.
"""

import io
import re
import sys
from functools import cache
from typing import Any, Final, TextIO, cast

from wharf.world.terminal_text import escape_controls

COLOUR_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}
_MARK_BOUNDS: Final = (10**9, 10**10)


def style(text: str, *, fg: str | int = "", bold: bool = False, dim: bool = False) -> str:
    """Return the text with a colour or weight. `click.echo` removes them if the output is not a terminal.

    `fg` is a name of `COLOUR_CODES` or a number of the palette with 256 colours.
    """
    colour = f"38;5;{fg}" if isinstance(fg, int) else COLOUR_CODES.get(fg, "")
    codes = [code for code, is_set in (("1", bold), ("2", dim), (colour, colour)) if is_set]
    mark = _draw_mark()
    return f"\x1b[{mark};{';'.join(codes)}m{text}\x1b[{mark};0m"


def begin_line_again() -> str:
    """Return what moves the cursor to the beginning of the line."""
    return f"\x1b[{_draw_mark()};1G"


def render_for_terminal(text: str) -> str:
    """Return the text with our own colours as the terminal expects them, and with escapes for other control characters."""
    parts = _compile_marked().split(text)
    # The parts at even places are text, those between them our own sequences without their mark.
    return "".join(f"\x1b[{part}" if place % 2 else escape_controls(part) for place, part in enumerate(parts))


@cache
def _draw_mark() -> int:
    """Return the number that marks our own control sequences. Nobody else knows it."""
    from wharf.world import RealWorld

    return RealWorld().random.randrange(*_MARK_BOUNDS)


@cache
def _compile_marked() -> re.Pattern[str]:
    return re.compile(rf"\x1b\[{_draw_mark()};([0-9;]*[mG])")


class TerminalStream:
    """A text stream to a terminal. Attributes other than those below are those of the stream behind it.

    Its `buffer` passes bytes on unchanged, for commands in tasks.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def __getattr__(self, name: str) -> Any:  # Any attribute of a stream.
        return getattr(self.unfiltered, name)

    @property
    def encoding(self) -> str:
        """The encoding. click would write to `buffer` itself if it were ASCII."""
        encoding = self.unfiltered.encoding or "utf-8"
        return "utf-8" if encoding.lower().replace("-", "").replace("_", "") in ("ascii", "usascii") else encoding

    def write(self, text: str) -> int:
        """Write the text as `render_for_terminal` returns it."""
        self.unfiltered.write(render_for_terminal(text))
        return len(text)

    def writelines(self, lines: Any) -> None:  # Any iterable of text, as for all streams.
        """Write each text."""
        for line in lines:
            self.write(line)


def protect_terminals() -> None:
    """Filter standard output and standard error if they are terminals. Repeated calls have no effect."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, TerminalStream) and stream.isatty():
            setattr(sys, name, TerminalStream(stream))


def get_unfiltered_stream(stream: TextIO) -> TextIO:
    """Return the stream behind the filter, for output that moves the cursor and escapes the text of others itself."""
    return cast("TextIO", getattr(stream, "unfiltered", stream))


def write_bytes(chunk: bytes) -> None:
    """Write bytes that a server sent to standard output: escaped on a terminal, else unchanged."""
    if sys.stdout.isatty():
        sys.stdout.write(render_for_terminal(chunk.decode("utf-8", "replace")))
        sys.stdout.flush()
        return
    cast("io.TextIOWrapper", sys.stdout).buffer.write(chunk)
    sys.stdout.buffer.flush()
