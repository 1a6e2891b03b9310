"""Output of tasks for pages: colors of terminals become classes, and everything else that controls a terminal is removed."""

import re
from typing import Final

import msgspec

from wharf.world.terminal_text import COLOR_SEQUENCE, CONTROL_SEQUENCE, escape_controls

MAX_LINE_CHARS: Final = 4_000
"""Limit of the shown text of a line, so that one line cannot slow down the browser. A download has all of it."""
MAX_PIECES: Final = 200
"""Limit of the pieces of a line; the rest of the line is one piece. Limits the elements of a page."""
_BASE_COLORS: Final = ("dim", "red", "green", "yellow", "blue", "magenta", "cyan", "")
"""The classes of the eight colors of terminals. Black and white are unreadable in one of the themes, so they have none."""
_WEIGHTS: Final = {1: "bold", 2: "dim", 3: "italic", 4: "underline"}
_ENDED_WEIGHTS: Final = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",)}
_MIN_COLOR_RANGE: Final = 64
"""A color whose channels differ less is a gray."""


class StyledText(msgspec.Struct, frozen=True):
    """A piece of a line, with the classes of its color and weight."""

    text: str
    classes: str = ""


def style_line(line: bytes) -> tuple[StyledText, ...]:
    """Return a line of output as pieces. Each line begins without color, because a page can begin at any line."""
    text = line.decode("utf-8", "replace").removesuffix("\r")[:MAX_LINE_CHARS]
    pieces: list[StyledText] = []
    style = _Style()
    position = 0
    for found in CONTROL_SEQUENCE.finditer(text):
        _append(pieces, text[position : found.start()], style.classes)
        position = found.end()
        if found[0] == "\r":
            _append(pieces, "\n", style.classes)  # A progress bar: each of its steps gets a line.
        elif COLOR_SEQUENCE.fullmatch(found[0]) and len(pieces) < MAX_PIECES:
            style.apply(found[0][2:-1])
    _append(pieces, text[position:], style.classes)
    return tuple(pieces)


def _append(pieces: list[StyledText], text: str, classes: str) -> None:
    """Add a text to the pieces. It becomes part of the last one if that has the same classes."""
    if not text:
        return
    if pieces and pieces[-1].classes == classes:
        pieces[-1] = StyledText(pieces[-1].text + escape_controls(text), classes)
    else:
        pieces.append(StyledText(escape_controls(text), classes))


class _Style:
    """The color and the weights that the sequences so far have set. Colors of the background are ignored."""

    def __init__(self) -> None:
        self._color = ""
        self._weights: dict[str, None] = {}  # A set in the order of its items.

    @property
    def classes(self) -> str:
        names = (self._color, *self._weights)
        return " ".join(dict.fromkeys(f"t-{name}" for name in names if name))

    def apply(self, parameters: str) -> None:
        """Change the style by the parameters of a sequence, such as `1;31`."""
        codes = _read_codes(parameters)
        while codes:
            code = codes.pop(0)
            if code == 0:
                self._color = ""
                self._weights.clear()
            elif code in _WEIGHTS:
                self._weights[_WEIGHTS[code]] = None
            elif code in _ENDED_WEIGHTS:
                for name in _ENDED_WEIGHTS[code]:
                    self._weights.pop(name, None)
            elif 30 <= code <= 37 or 90 <= code <= 97:
                self._color = _BASE_COLORS[code % 10]
            elif code == 39:
                self._color = ""
            elif code in (38, 48):
                color = _take_color(codes)
                self._color = color if code == 38 else self._color


def _read_codes(parameters: str) -> list[int]:
    """Return the numbers of a sequence. An empty one is 0, also the unused one in `38:2::255:0:0`."""
    parameters = re.sub(r"([34]8:2):\d*(?=:\d+:\d+:\d+)", r"\1", parameters)
    return [int(code[:4]) if code else 0 for code in re.split("[;:]", parameters)]


def _take_color(codes: list[int]) -> str:
    """Remove the numbers of a color of 256, or of one with three channels, and return the nearest class."""
    if codes[:1] == [5] and len(codes) > 1:
        number = codes[1]
        del codes[:2]
        if number < 16:
            return _BASE_COLORS[number % 8]
        if number >= 232:
            return "dim" if number < 244 else ""
        return _find_nearest((number - 16) // 36 * 51, (number - 16) // 6 % 6 * 51, (number - 16) % 6 * 51)
    if codes[:1] == [2] and len(codes) > 3:
        color = _find_nearest(*codes[1:4])
        del codes[:4]
        return color
    codes.clear()
    return ""


def _find_nearest(red: int, green: int, blue: int) -> str:
    """Return the class of the nearest of the eight colors."""
    darkest, brightest = min(red, green, blue), max(red, green, blue)
    if brightest - darkest < _MIN_COLOR_RANGE:
        return "dim" if brightest < 128 else ""
    middle = (darkest + brightest) / 2
    return _BASE_COLORS[(red > middle) + 2 * (green > middle) + 4 * (blue > middle)]
