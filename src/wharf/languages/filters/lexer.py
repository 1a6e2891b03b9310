"""The words of an expression: what stands at a place of the text, and where it ends.

The grammar has no reserved words, so there are no tokens: the parser asks at each place for what may stand there.
Nothing here looks back or ahead by more than one word.
"""

import re
from dataclasses import dataclass
from typing import Final

from wharf.languages.filters.errors import make_syntax_error

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/]*")
_INDEX: Final = re.compile(r"[0-9]+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_POINTER: Final = re.compile(r'"((?:/[\w\-.~:|]+)+)"')
_AFTER_NUMBER: Final = " \t\r\n)"

_ESCAPE: Final = re.compile(
    r"\\(?:(?P<letter>[abfnrtv\\])|x(?P<byte>[0-9a-fA-F]{2})|(?P<octal>[0-7]{3})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))"
)
_LETTERS: Final = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v", "\\": b"\\",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A piece of text and the place after it."""

    text: str
    end: int


@dataclass(frozen=True, slots=True)
class Pointer:
    """The parts of a pointer, where each of them begins, and the place after the pointer."""

    parts: tuple[str, ...]
    part_offsets: tuple[int, ...]
    end: int


class Lexer:
    def __init__(self, source: str) -> None:
        self.source = source

    def skip_space(self, at: int) -> int:
        space = _SPACE.match(self.source, at)
        return space.end() if space else at

    def starts_with(self, at: int, text: str) -> bool:
        return self.source.startswith(text, at)

    def read_name(self, at: int) -> TextSpan | None:
        return _found(_NAME.match(self.source, at))

    def read_index(self, at: int) -> TextSpan | None:
        return _found(_INDEX.match(self.source, at))

    def read_pointer(self, at: int) -> Pointer | None:
        """A JSON pointer in double quotes."""
        pointer = _POINTER.match(self.source, at)
        if pointer is None:
            return None
        parts, places = [], []
        place = at + 2
        for segment in pointer[1].split("/")[1:]:
            parts.append(segment.replace("~1", "/").replace("~0", "~"))
            places.append(place)
            place += len(segment) + 1
        return Pointer(tuple(parts), tuple(places), pointer.end())

    def read_number(self, at: int) -> TextSpan | None:
        """Raises where a number begins and does not end as one."""
        if not (self.source[at : at + 1].isdecimal() and self.source[at].isascii()) and not self.starts_with(at, "-"):
            return None
        number = _NUMBER.match(self.source, at)
        if number is None or (number.end() < len(self.source) and self.source[number.end()] not in _AFTER_NUMBER):
            end = number.end() if number else at
            mend = "leave a space before }" if self.starts_with(end, "}") else "put what is no plain number in quotes"
            raise make_syntax_error(self.source, end, f'rule "number": Invalid number literal; {mend}')
        return TextSpan(number[0], number.end())

    def read_string(self, at: int) -> TextSpan | None:
        """A string of either form, without its quotes and escapes. Raises where one begins and is wrong."""
        quote = self.source[at : at + 1]
        if quote not in ('"', "`") or not quote:
            return None
        end = self.source.find(quote, at + 1)
        if end < 0:
            raise make_syntax_error(self.source, len(self.source), 'rule "string": Unterminated string literal')
        inner = self.source[at + 1 : end]
        return TextSpan(inner if quote == "`" else self._unescaped(inner, at + 1), end + 1)

    def _unescaped(self, inner: str, at: int) -> str:
        newline = inner.find("\n")
        if newline >= 0:
            reason = 'rule "string": invalid syntax: a string in double quotes ends on its line; use backticks'
            raise make_syntax_error(self.source, at + newline, reason)
        if "\\" not in inner:
            return inner
        pieces = []
        done = 0
        while (slash := inner.find("\\", done)) >= 0:
            pieces.append(inner[done:slash].encode())
            escape = _ESCAPE.match(inner, slash)
            meant = _meant_by(escape) if escape else None
            if escape is None or meant is None:
                reason = 'rule "string": invalid syntax: no such escape; write \\\\ for a backslash, or use backticks'
                raise make_syntax_error(self.source, at + slash, reason)
            pieces.append(meant)
            done = escape.end()
        pieces.append(inner[done:].encode())
        try:
            return b"".join(pieces).decode()
        except UnicodeDecodeError:
            reason = 'rule "string": invalid syntax: the bytes of the string are not UTF-8'
            raise make_syntax_error(self.source, at, reason) from None


def _found(match: re.Match[str] | None) -> TextSpan | None:
    return TextSpan(match[0], match.end()) if match else None


def _meant_by(escape: re.Match[str]) -> bytes | None:
    """The bytes that an escape stands for; None for what is no character."""
    if escape["letter"]:
        return _LETTERS[escape["letter"]]
    if escape["byte"]:
        return bytes([int(escape["byte"], 16)])
    if escape["octal"]:
        number = int(escape["octal"], 8)
        return bytes([number]) if number < 256 else None
    number = int(escape["short"] or escape["long"], 16)
    is_character = number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF
    return chr(number).encode() if is_character else None
