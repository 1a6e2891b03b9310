"""The words of HCL: what stands at a place of the text, and where it ends.

There are no tokens: the parser asks at each place for what may stand there. Nothing here goes back, so all of it
together is linear in the length of the text.
"""

import re
from typing import Final, NamedTuple

from wharf.languages.hcl.source import SourceText

_BETWEEN: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*|//[^\n]*|/\*(?s:.*?)\*/)*")
# Dots belong to names, as in older documents; so a reference will be a name that the parser takes apart.
_NAME: Final = re.compile(r"[^\W\d][\w\-.]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_QUOTED: Final = re.compile(r'"([^"\\\n]*(?:\\[^\n][^"\\\n]*)*)"')
_HEREDOC: Final = re.compile(r"<<(-?)([^\W\d][\w\-]*)\r?\n")
_INDENT: Final = re.compile(r"[ \t]*")

_ESCAPE: Final = re.compile(
    r'\\(?:(?P<letter>[abfnrtv\\"])|x(?P<byte>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})'
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))"
)
_LETTERS: Final = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v", "\\": b"\\", '"': b'"',
}  # fmt: skip
# More than 64 bits take, or a fraction needs; a number of a million digits would be slow to read.
MAX_NUMBER_CHARS: Final = 100


class TextSpan(NamedTuple):
    """A piece of text, as it is meant, and the place after it."""

    value: str
    end: int


class NumberSpan(NamedTuple):
    value: int | float
    end: int


class Lexer:
    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._text = source.text

    def skip_space(self, at: int) -> int:
        """The place after white space and comments."""
        between = _BETWEEN.match(self._text, at)
        end = between.end() if between else at
        if self.starts_with(end, "/*"):
            raise self._source.make_error(end, "this comment has no end; write */")
        return end

    def starts_with(self, at: int, text: str) -> bool:
        return self._text.startswith(text, at)

    def is_end(self, at: int) -> bool:
        return at >= len(self._text)

    def read_name(self, at: int) -> TextSpan | None:
        name = _NAME.match(self._text, at)
        return TextSpan(name[0], name.end()) if name else None

    def read_number(self, at: int) -> NumberSpan | None:
        """Raises where a number begins and does not end as one."""
        if not self._text[at : at + 1].isdecimal() and not self.starts_with(at, "-"):
            return None
        number = _NUMBER.match(self._text, at)
        if number is None:
            raise self._source.make_error(
                at, "this is no number; numbers are decimal, without leading zeros; quote other text"
            )
        if len(number[0]) > MAX_NUMBER_CHARS:
            raise self._source.make_error(at, f"a number has at most {MAX_NUMBER_CHARS} characters")
        return NumberSpan(convert_number(self._source, at, number[0]), number.end())

    def read_string(self, at: int) -> TextSpan | None:
        """A text in quotes, or a heredoc. Raises where one begins and is wrong."""
        if self.starts_with(at, "<<"):
            return self._heredoc(at)
        if not self.starts_with(at, '"'):
            return None
        quoted = _QUOTED.match(self._text, at)
        if quoted is None:
            raise self._source.make_error(
                at, "this text has no closing quote on its line; several lines stand between <<EOF and EOF"
            )
        return TextSpan(self._unescaped(quoted[1], at + 1), quoted.end())

    def _unescaped(self, inner: str, at: int) -> str:
        if "\\" not in inner:
            return inner
        pieces = []
        done = 0
        while (slash := inner.find("\\", done)) >= 0:
            pieces.append(inner[done:slash].encode())
            escape = _ESCAPE.match(inner, slash)
            meant = _meant_by(escape) if escape else None
            if escape is None or meant is None:
                raise self._source.make_error(at + slash, "no such escape; write \\\\ for a backslash")
            pieces.append(meant)
            done = escape.end()
        pieces.append(inner[done:].encode())
        try:
            return b"".join(pieces).decode()
        except UnicodeDecodeError:
            raise self._source.make_error(at, "the bytes of this text are not UTF-8") from None

    def _heredoc(self, at: int) -> TextSpan:
        opening = _HEREDOC.match(self._text, at)
        if opening is None:
            raise self._source.make_error(at, "expected a word after << and the text on the lines below it")
        is_indented, word = bool(opening[1]), opening[2]
        lines: list[str] = []
        start = opening.end()
        while start < len(self._text):
            newline = self._text.find("\n", start)
            end = newline if newline >= 0 else len(self._text)
            line = self._text[start:end]
            if line.strip() == word:
                # What follows the word on its line is white space, so reading goes on after it.
                return TextSpan(_joined(lines, is_indented=is_indented), end)
            lines.append(line.removesuffix("\r"))
            start = end + 1
        raise self._source.make_error(at, f"this text has no end; write {word} on a line of its own")


def convert_number(source: SourceText, at: int, text: str) -> int | float:
    """The number of a text that is one."""
    if text.lstrip("-").isdecimal():
        return int(text)
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise source.make_error(at, "the number is too large")
    return number


def _joined(lines: list[str], *, is_indented: bool) -> str:
    """The lines of a heredoc. Where it is indented, what all of them have in front is no part of it."""
    if is_indented:
        indents = [_indent(line) for line in lines if line.strip()]
        depth = min(indents, default=0)
        lines = [line[min(depth, _indent(line)) :] for line in lines]
    return "".join(f"{line}\n" for line in lines)


def _indent(line: str) -> int:
    indent = _INDENT.match(line)
    return indent.end() if indent else 0


def _meant_by(escape: re.Match[str]) -> bytes | None:
    """The bytes that an escape stands for; None for what is no character."""
    if escape["letter"]:
        return _LETTERS[escape["letter"]]
    if escape["byte"]:
        return bytes([int(escape["byte"], 16)])
    if escape["octal"]:
        return bytes([int(escape["octal"], 8)])
    number = int(escape["short"] or escape["long"], 16)
    is_character = number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF
    return chr(number).encode() if is_character else None
