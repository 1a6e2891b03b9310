"""The lexer of HCL: reads names, numbers, strings and heredocs at an offset of the text.

The text is not split into tokens first: the parser requests what may occur at an offset. Nothing is read twice, so the
time is linear in the length of the text.
"""

import re
from typing import Final, NamedTuple

from wharf.languages.escapes import InvalidEscape, replace_escapes
from wharf.languages.hcl.source import SourceText

_SPACE: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*|//[^\n]*|/\*(?s:.*?)\*/)*")
# Names may contain dots, because older documents have such names.
_NAME: Final = re.compile(r"[^\W\d][\w\-.]*")
NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_QUOTED: Final = re.compile(r'"([^"\\\n]*(?:\\[^\n][^"\\\n]*)*)"')
_HEREDOC: Final = re.compile(r"<<(-?)([^\W\d][\w\-]*)\r?\n")
_INDENT: Final = re.compile(r"[ \t]*")

MAX_NUMBER_CHARS: Final = 100
"""The length of a number. A number of a million digits would take seconds to convert."""


class DecodedText(NamedTuple):
    """The value of a name or string, with escapes replaced, and the offset after it."""

    value: str
    end: int


class NumberSpan(NamedTuple):
    """A number, and the offset after it."""

    value: int | float
    end: int


class HclLexer:
    """Reads names, numbers and strings of one document at an offset.

    The methods that start with `read_` return `None` if the text at the offset is something else.
    """

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._text = source.text

    def skip_space(self, offset: int) -> int:
        """Return the offset after white space and comments."""
        space = _SPACE.match(self._text, offset)
        end = space.end() if space else offset
        if self.starts_with(end, "/*"):
            raise self._source.make_error(end, "this comment has no end; write */")
        return end

    def starts_with(self, offset: int, text: str) -> bool:
        return self._text.startswith(text, offset)

    def is_end(self, offset: int) -> bool:
        return offset >= len(self._text)

    def read_name(self, offset: int) -> DecodedText | None:
        name = _NAME.match(self._text, offset)
        return DecodedText(name[0], name.end()) if name else None

    def read_number(self, offset: int) -> NumberSpan | None:
        """Read a number. Raises `HclSyntaxError` if the text starts like a number but is not one."""
        if not self._text[offset : offset + 1].isdecimal() and not self.starts_with(offset, "-"):
            return None
        number = NUMBER.match(self._text, offset)
        if number is None:
            raise self._source.make_error(
                offset, "invalid number; numbers are decimal, without leading zeros; put other text in quotes"
            )
        return NumberSpan(convert_number(self._source, offset, number[0]), number.end())

    def read_string(self, offset: int) -> DecodedText | None:
        """Read a string in quotes or a heredoc. Raises `HclSyntaxError` if it has no end or an invalid escape."""
        if self.starts_with(offset, "<<"):
            return self._read_heredoc(offset)
        if not self.starts_with(offset, '"'):
            return None
        quoted = _QUOTED.match(self._text, offset)
        if quoted is None:
            raise self._source.make_error(
                offset, "this string has no closing quote on its line; write several lines between <<EOF and EOF"
            )
        return DecodedText(self._unescape(quoted[1], offset + 1), quoted.end())

    def _unescape(self, inner: str, offset: int) -> str:
        """Replace the escapes in the inside of a string that starts at `offset`. Escaped bytes must form UTF-8."""
        try:
            return replace_escapes(inner)
        except InvalidEscape as error:
            raise self._source.make_error(offset + error.offset, "no such escape; write \\\\ for a backslash") from None
        except UnicodeDecodeError:
            raise self._source.make_error(offset, "the bytes of this text are not UTF-8") from None

    def _read_heredoc(self, offset: int) -> DecodedText:
        """Read the lines between `<<WORD` and `WORD`. After `<<-WORD` their common indentation is removed."""
        opening = _HEREDOC.match(self._text, offset)
        if opening is None:
            raise self._source.make_error(offset, "expected a word after << and the lines of text below it")
        is_indented, end_word = bool(opening[1]), opening[2]
        lines: list[str] = []
        start = opening.end()
        while start < len(self._text):
            newline = self._text.find("\n", start)
            end = newline if newline >= 0 else len(self._text)
            line = self._text[start:end]
            if line.strip() == end_word:
                # Only white space can follow the word on its line, so parsing may continue at the end of the line.
                return DecodedText(_join_heredoc_lines(lines, is_indented=is_indented), end)
            lines.append(line.removesuffix("\r"))
            start = end + 1
        raise self._source.make_error(offset, f"this heredoc has no end; write {end_word} on a line of its own")


def convert_number(source: SourceText, offset: int, text: str) -> int | float:
    """Convert the text of a valid number. Raises `HclSyntaxError` if it is too long, or too large for a float."""
    if len(text) > MAX_NUMBER_CHARS:
        raise source.make_error(offset, f"a number has at most {MAX_NUMBER_CHARS} characters")
    if text.lstrip("-").isdecimal():
        return int(text)
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise source.make_error(offset, "the number is too large")
    return number


def _join_heredoc_lines(lines: list[str], *, is_indented: bool) -> str:
    """Return the text of a heredoc. If it is indented, the indentation that all lines share is removed."""
    if is_indented:
        indents = [_count_indent(line) for line in lines if line.strip()]
        depth = min(indents, default=0)
        lines = [line[min(depth, _count_indent(line)) :] for line in lines]
    return "".join(f"{line}\n" for line in lines)


def _count_indent(line: str) -> int:
    indent = _INDENT.match(line)
    return indent.end() if indent else 0
