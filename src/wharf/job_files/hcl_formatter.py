"""Formats job files in HCL as the style guide of the language says.

Each level has two blanks. The `=` of neighbouring arguments with values of one line are below each other, and so are comments at
the ends of neighbouring lines. Signs inside of expressions have one blank around them or none. Blocks of several lines have an empty
line between them, and there is never more than one. Heredocs, strings and the lines of comments stay as they are.

The result is parsed and compared with the original, so that formatting never changes the document.
"""

import itertools
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wharf.languages.hcl.bodies import SyntaxBody
from wharf.languages.hcl.body_parser import BodyParser
from wharf.languages.hcl.diagnostics import DiagnosticList, SourceFile
from wharf.languages.hcl.documents import parse_document
from wharf.languages.hcl.reader import NAME_PATTERN
from wharf.languages.hcl.references import ReferenceNode

INDENTATION: Final = "  "
_OFFSETS: Final = frozenset(
    ("start", "end", "name_start", "name_end", "root_end", "type_end", "header_end", "left", "right")
)
"""Attributes of syntax trees that are offsets. `left` and `right` are those of the operands of an operator."""
_QUOTED: Final = r'"(?:[^"\\\n]|\\.)*"'
_ASSIGNMENT: Final = re.compile(rf"({NAME_PATTERN}|{_QUOTED})[ \t]*=(?![=>])[ \t]*(?=\S)")
_HEADER: Final = re.compile(rf"{NAME_PATTERN}(?:[ \t]*(?:{_QUOTED}|[ \t]{NAME_PATTERN}))*[ \t]*\{{")
_HEADER_PART: Final = re.compile(rf"{_QUOTED}|{NAME_PATTERN}|\{{")
_HEREDOC: Final = re.compile(rf"<<-?({NAME_PATTERN})(?=\r?\n)")
_MARKER: Final = re.compile(r"(\$++|%++)(\{?+)")
_CODE: Final = re.compile(r'[^"#/<()\[\]{}\n]+')
_STRING: Final = re.compile(r'[^"\\$%\n]+')
_HEREDOC_TEXT: Final = re.compile(r"[^$%\n]+")
_CLOSINGS: Final = re.compile(r"[\])}]*")
_TOKEN: Final = re.compile(
    r"(?P<comment>#.*|//.*|/\*(?:.*?\*/|.*))"
    rf"|(?P<string><<-?{NAME_PATTERN})"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    rf"|(?P<name>{NAME_PATTERN})"
    r"|(?P<operator>\.\.\.|=>|==|!=|<=|>=|&&|\|\||[-+*/%<>=!?:])"
    r"|(?P<dot>\.)|(?P<comma>,)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<other>.)",
    re.DOTALL,
)
_BLANKS: Final = re.compile(r"\s+")
_WORDS_BEFORE_VALUES: Final = frozenset(("in", "if", "for"))
"""Words after which a bracket begins a value, not a call or an index."""
_PLAIN, _STRING_MODE, _HEREDOC_MODE, _TEMPLATE = "code", "string", "heredoc", "template"
_TEXT_MODES: Final = frozenset((_STRING_MODE, _HEREDOC_MODE))
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))


class UnstableFormat(Exception):
    """The formatted text would be another document. The formatter has a fault; the text must not be used."""


@dataclass(slots=True)
class _Line:
    """A line of a file. A fixed line begins inside a heredoc, a string or a comment, and stays as it is.

    `change` is how many more brackets are opened than closed. `is_whole` says that no bracket and no text stays open.
    """

    text: str
    is_fixed: bool
    change: int = 0
    is_whole: bool = True


def format_hcl(text: str, name: str = "job.hcl") -> str:
    """Return a job file in HCL with its format normalized. A file in the JSON form of HCL stays as it is.

    `name` is the name of the file in messages. Raises `DocumentErrors` if the file has errors of syntax, and
    `UnstableFormat`.
    """
    document = parse_document(text, name)
    if document.is_json:
        return text
    for sets_blanks in (True, False):
        # A sign that is a part of a name has a meaning that only the parser knows.
        formatted = _format(text, sets_blanks=sets_blanks)
        if formatted == text or _is_equal(document.tree, _parse(formatted)):
            return formatted
    raise UnstableFormat(text)


def _format(text: str, *, sets_blanks: bool) -> str:
    scanner = _Scanner(text)
    lines = scanner.scan()
    results = _align(lines, _indent(lines), sets_blanks=sets_blanks)
    formatted = "\n".join(_separate(lines, results, _list_separated_lines(text)))
    return formatted if formatted.endswith("\n") or not text else f"{formatted}\n"


def _list_separated_lines(text: str) -> set[int]:
    """Return the numbers of the lines before which an empty line is missing: beside a block of several lines."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    lines = text.split("\n")

    def get_line(offset: int) -> int:
        return bisect_right(starts, offset) - 1

    separated: set[int] = set()
    waiting = [_parse(text)]
    while waiting:
        body = waiting.pop()
        items = [
            (get_line(each.name_start), get_line(max(each.value.end - 1, 0)), False) for each in body.arguments.values()
        ]
        for block in body.blocks:
            first, last = get_line(block.start), get_line(max(block.end - 1, 0))
            items.append((first, last, first != last))
            waiting.append(block.body)
        items.sort()
        separated |= {
            end + 1
            for (_, end, is_long), (start, _, is_next_long) in itertools.pairwise(items)
            if (is_long or is_next_long) and start > end and all(line.strip() for line in lines[end + 1 : start])
        }
    return separated


def _separate(lines: Sequence["_Line"], results: Sequence[str], separated: set[int]) -> list[str]:
    """Return the lines with an empty line where one is needed, and without all other empty lines but one between items."""
    next_codes = [""]  # The next line that is not empty, of each line.
    for result in reversed(results):
        next_codes.append(result.strip() or next_codes[-1])
    next_codes.reverse()
    written: list[str] = []
    for at, (line, result) in enumerate(zip(lines, results, strict=True)):
        if line.is_fixed:
            written.append(result)
            continue
        is_last = at + 1 == len(lines)
        is_empty = not result.strip()
        before = written[-1].strip() if written else ""
        if is_empty and not is_last:
            following = next_codes[at + 1]
            if (
                not before
                or not following
                or following[0] in "}])"
                or (before[-1] in "{[(" and not lines[at - 1].is_fixed)
            ):
                continue
        if at in separated and not is_empty and before:
            written.append("\r" if result.endswith("\r") else "")
        written.append(result)
    while len(written) > 1 and not written[-1].strip() and not written[-2].strip():
        written.pop()
    return written


def find_hcl_comments(text: str) -> list[tuple[int, int]]:
    """Return the offsets of the comments of a file in HCL that are outside of texts."""
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.comments


def is_same_document(text: str, body: SyntaxBody) -> bool:
    """Return whether a file in HCL differs from one with this body only in its format and comments."""
    return _is_equal(_parse(text), body)


def _parse(text: str) -> Any:
    return BodyParser(SourceFile("", text), DiagnosticList()).parse_document_body()


class _Scanner:
    """Splits a file into lines, and finds those that begin inside of a text or a comment."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._modes: list[tuple[str, str]] = [(_PLAIN, "")]
        self._text_depth = 0
        self._lines: list[_Line] = []
        self._line_start = 0
        self._change = 0
        self._is_fixed = False
        self._is_in_comment = False
        self.comments: list[tuple[int, int]] = []

    def scan(self) -> list[_Line]:
        """Return all lines."""
        text = self._text
        while self._pos < len(text):
            if text[self._pos] == "\n":
                self._end_line()
                continue
            mode, _ = self._modes[-1]
            if mode == _STRING_MODE:
                self._scan_string()
            elif mode == _HEREDOC_MODE:
                self._scan_heredoc()
            else:
                self._scan_code()
        self._end_line()
        return self._lines

    @property
    def _is_in_text(self) -> bool:
        """Whether the position is inside of a string or heredoc, also in a template there."""
        return self._text_depth > 0

    def _enter(self, mode: str, name: str = "") -> None:
        self._modes.append((mode, name))
        self._text_depth += mode in _TEXT_MODES

    def _leave(self) -> None:
        mode, _ = self._modes.pop()
        self._text_depth -= mode in _TEXT_MODES

    def _end_line(self) -> None:
        line = self._text[self._line_start : self._pos]
        is_open = self._is_in_text or self._is_in_comment
        self._lines.append(_Line(line, self._is_fixed, self._change, not is_open and self._change == 0))
        self._pos += 1
        self._line_start = self._pos
        self._change = 0
        self._is_fixed = is_open
        mode, name = self._modes[-1]
        if mode == _HEREDOC_MODE:
            self._close_heredoc(name)

    def _close_heredoc(self, name: str) -> None:
        """Leave the heredoc if the line holds only its name."""
        end = self._text.find("\n", self._pos)
        line = self._text[self._pos : end if end >= 0 else len(self._text)]
        if line.strip(" \t\r") == name:
            self._leave()
            self._pos += len(line)

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self._text, self._pos)
        if match is None:
            return False
        self._pos = match.end()
        return True

    def _scan_string(self) -> None:
        if self._skip(_STRING) or self._scan_marker():
            return
        character = self._text[self._pos]
        if character == "\\":
            self._pos += 1
        elif character == '"':
            self._leave()
        self._pos += 1

    def _scan_heredoc(self) -> None:
        if not self._skip(_HEREDOC_TEXT) and not self._scan_marker():
            self._pos += 1

    def _scan_marker(self) -> bool:
        """Skip signs, and the brace after them. A single sign before a brace starts a template."""
        marker = _MARKER.match(self._text, self._pos)
        if marker is None:
            return False
        self._pos = marker.end()
        if _starts_template(marker):
            self._enter(_TEMPLATE, "}")
        return True

    def _scan_code(self) -> None:
        text = self._text
        if self._skip(_CODE):
            return
        character = text[self._pos]
        if text.startswith(("#", "//"), self._pos):
            end = text.find("\n", self._pos)
            end = end if end >= 0 else len(text)
            self._add_comment(end)
            self._pos = end
        elif text.startswith("/*", self._pos):
            self._skip_comment()
        elif character == '"':
            self._enter(_STRING_MODE)
            self._pos += 1
        elif character == "<" and (heredoc := _HEREDOC.match(text, self._pos)) is not None:
            self._enter(_HEREDOC_MODE, heredoc[1])
            self._pos = text.index("\n", self._pos)
        else:
            self._scan_bracket(character)

    def _scan_bracket(self, character: str) -> None:
        self._pos += 1
        is_in_text = self._is_in_text
        if character in "([{":
            self._enter(_PLAIN, character)
            self._change += not is_in_text
        elif character in ")]}" and len(self._modes) > 1:
            self._leave()
            self._change -= not is_in_text

    def _add_comment(self, end: int) -> None:
        if not self._is_in_text:
            self.comments.append((self._pos, end))

    def _skip_comment(self) -> None:
        """Skip a comment that may span lines."""
        end = self._text.find("*/", self._pos + 2)
        end = end + 2 if end >= 0 else len(self._text)
        self._add_comment(end)
        self._is_in_comment = True
        while (newline := self._text.find("\n", self._pos, end)) >= 0:
            self._pos = newline
            self._end_line()
        self._is_in_comment = False
        self._pos = end


def _indent(lines: Sequence[_Line]) -> list[int]:
    """Return the level of each line. A line with several opening brackets is one level."""
    levels: list[int] = []
    opened: list[int] = []
    for line in lines:
        code = line.text.lstrip(" \t")
        closings = len(_CLOSINGS.match(code)[0]) if not line.is_fixed else 0  # type: ignore[index]  # it always matches
        level = len(opened)
        remaining = closings
        while remaining > 0 and level > 0:
            remaining -= opened[level - 1]
            level -= 1
        levels.append(level)
        if line.change > 0:
            if closings:
                _close(opened, closings)
                opened.append(line.change + closings)
            else:
                opened.append(line.change)
        else:
            _close(opened, -line.change)
    return levels


def _close(opened: list[int], count: int) -> None:
    """Remove brackets from the innermost levels."""
    while count > 0 and opened:
        if opened[-1] > count:
            opened[-1] -= count
            return
        count -= opened.pop()


def _align(lines: Sequence[_Line], levels: Sequence[int], *, sets_blanks: bool) -> list[str]:
    """Return the lines with indentation, and with the `=` and the comments of neighbours below each other."""
    results: list[str] = []
    run: list[tuple[int, str, str]] = []  # Index of the line, name, and the text after the `=`.
    comments: dict[int, str] = {}

    def end_run() -> None:
        if not run:
            return
        width = max((len(name) for _, name, _ in run), default=0)
        for at, name, value in run:
            results[at] = f"{INDENTATION * levels[at]}{name:<{width}} = {value}"
        run.clear()

    for at, line in enumerate(lines):
        if line.is_fixed:
            end_run()
            results.append(line.text)
            continue
        ending = "\r" if line.text.endswith("\r") else ""
        code = line.text.strip(" \t\r")
        if at + 1 < len(lines) and lines[at + 1].is_fixed:
            code = line.text.lstrip(" \t").removesuffix("\r")  # The blanks at its end belong to a text or a comment.
        elif sets_blanks:
            code, comments[at] = _set_blanks(code)
        if run and levels[at] != levels[run[-1][0]]:
            end_run()
        assignment = _ASSIGNMENT.match(code)
        results.append("")
        if assignment is not None and line.is_whole:
            run.append((at, assignment[1], code[assignment.end() :] + ending))
            continue
        end_run()
        if assignment is not None:
            code = f"{assignment[1]} = {code[assignment.end() :]}"
        elif _HEADER.fullmatch(code) is not None:
            code = " ".join(_HEADER_PART.findall(code))
        results[at] = f"{INDENTATION * levels[at]}{code}{ending}" if code else ending
    end_run()
    _align_comments(results, levels, comments)
    return results


def _align_comments(results: list[str], levels: Sequence[int], comments: Mapping[int, str]) -> None:
    """Add the comments at the ends of lines. Those of neighbours of one level are below each other."""
    at = 0
    while at < len(results):
        end = at
        while comments.get(end) and levels[end] == levels[at]:
            end += 1
        width = max((len(result.rstrip("\r")) for result in results[at:end]), default=0)
        for line in range(at, end):
            code = results[line].rstrip("\r")
            results[line] = f"{code:<{width}} {comments[line]}{results[line][len(code) :]}"
        at = max(end, at + 1)


class _Token(NamedTuple):
    """A part of a line of code."""

    kind: str
    text: str
    has_blank: bool
    """Whether blanks precede it."""


def _set_blanks(code: str) -> tuple[str, str]:
    """Return a line with the usual blanks between its parts, and the comment at its end."""
    tokens = _list_tokens(code)
    comment = ""
    if len(tokens) > 1 and tokens[-1].kind == "comment":
        comment = tokens.pop().text
    pieces: list[str] = []
    previous: _Token | None = None
    is_unary = has_choice = False
    for token in tokens:
        has_choice = has_choice or token.text in ("?", "for")
        if token.text == ":" and has_choice:
            token = token._replace(has_blank=True)
        if previous is not None and _needs_blank(previous, token, is_unary=is_unary):
            pieces.append(" ")
        is_unary = token.text in ("-", "!") and (
            previous is None or previous.kind in ("operator", "open", "comma") or previous.text in _WORDS_BEFORE_VALUES
        )
        pieces.append(token.text)
        previous = token
    return "".join(pieces), comment


def _needs_blank(previous: _Token, token: _Token, *, is_unary: bool) -> bool:
    """Return whether a blank is between two parts. `is_unary`: the previous part is a sign of the value after it."""
    is_word = previous.kind == "name" and previous.text not in _WORDS_BEFORE_VALUES
    if "other" in (previous.kind, token.kind):
        return token.has_blank
    if token.kind in ("comma", "dot") or previous.kind == "dot" or token.text == "..." or is_unary:
        return False
    if previous.kind == "open":
        return previous.text == "{" and token.text != "}"
    if token.kind == "close":
        return token.text == "}"
    if token.text == "(":
        return not is_word
    if token.text == "[":
        return not is_word and previous.kind not in ("close", "string")
    return token.has_blank if token.text == ":" else True


def _list_tokens(code: str) -> list[_Token]:
    tokens: list[_Token] = []
    pos = 0
    has_blank = False
    while pos < len(code):
        if code[pos] in " \t":
            has_blank = True
            pos += 1
            continue
        match = _TOKEN.match(code, pos)
        if code[pos] == '"':
            kind, end = "string", _find_string_end(code, pos)
        else:
            assert match is not None, "the pattern matches any character"
            kind, end = str(match.lastgroup), match.end()
        tokens.append(_Token(kind, code[pos:end], has_blank))
        has_blank = False
        pos = end
    return tokens


def _starts_template(marker: re.Match[str]) -> bool:
    """Return whether signs start a template: a single sign before a brace."""
    return len(marker[1]) == 1 and bool(marker[2])


def _find_string_end(code: str, start: int) -> int:
    """Return the offset after a string. An interpolation inside of it may hold strings too."""
    modes = [_STRING_MODE]
    pos = start + 1
    while pos < len(code) and modes:
        character = code[pos]
        if modes[-1] == _STRING_MODE:
            marker = _MARKER.match(code, pos)
            if marker is not None:
                pos = marker.end()
                modes += [_TEMPLATE] if _starts_template(marker) else []
                continue
            if character == '"':
                modes.pop()
            pos += 2 if character == "\\" else 1
            continue
        if character == '"':
            modes.append(_STRING_MODE)
        elif character == "{":
            modes.append(_TEMPLATE)
        elif character == "}":
            modes.pop()
        pos += 1
    return min(pos, len(code))


def _is_equal(formatted: Any, original: Any) -> bool:
    """Return whether two syntax trees are equal but for their offsets."""
    stack = [(formatted, original)]
    attributes: dict[type, list[str]] = {}
    while stack:
        one, other = stack.pop()
        if type(one) is not type(other):
            return False
        if type(one) in _SCALARS:
            if one != other:
                return False
        elif isinstance(one, list | tuple):
            if len(one) != len(other):
                return False
            stack += zip(one, other, strict=True)
        elif isinstance(one, Mapping):
            if list(one) != list(other):
                return False
            stack += zip(one.values(), other.values(), strict=True)
        else:
            if isinstance(one, ReferenceNode) and _BLANKS.sub("", one.text) != _BLANKS.sub("", other.text):
                return False
            kind = type(one)
            names = attributes[kind] = attributes.get(kind) or _list_attributes(kind)
            if not names and one != other:
                return False
            for name in names:
                left, right = getattr(one, name, None), getattr(other, name, None)
                if left is not right:
                    stack.append((left, right))
    return True


def _list_attributes(node_type: type) -> list[str]:
    """Return the names of the attributes of a type of nodes, without its offsets."""
    names = {name for each in node_type.__mro__ for name in getattr(each, "__slots__", ())}
    return sorted(names - _OFFSETS - ({"text"} if issubclass(node_type, ReferenceNode) else set()))
