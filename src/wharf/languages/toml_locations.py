"""The place of every key, value and array element of a TOML document.

The parser of the standard library returns values without locations. This scanner returns locations without values. It
runs only on text that was parsed without error, so it needs to recognize only keys, texts and nesting.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from wharf.languages.source_locations import LineIndex, SourceLocation

KeyPath = tuple[str | int, ...]

_KEY_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)+")
_SPACE: Final = re.compile(r"[ \t]*")
TOML_TEXT: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'", re.DOTALL
)
"""A string of any form."""
_BARE_VALUE: Final = re.compile(r"[^,\]}#\n]*")


@dataclass(frozen=True, slots=True)
class TomlRange:
    """The offsets of a key or of an element of a list, and those of its value. A table has the place of its header."""

    start: int
    end: int
    value_start: int
    value_end: int


@dataclass(frozen=True, slots=True)
class TomlStatement:
    """A header of a table, or a key with its value: the path of its keys, and its place."""

    path: KeyPath
    start: int
    end: int
    """Where the key or header ends."""
    is_header: bool = False
    is_element: bool = False
    """Whether it is a header such as `[[table]]`."""


def find_locations(text: str) -> Mapping[KeyPath, SourceLocation]:
    """Return the line and column of each key and array element of a TOML document, by its path.

    The path of a key in an array of tables holds the index of the table: `("rule", 0, "name")`.
    """
    scanner = _RangeScanner(text)
    scanner.scan()
    lines = LineIndex(text)
    return {path: lines.get_location(start) for path, start in scanner.starts.items()}


def find_ranges(text: str) -> Mapping[KeyPath, TomlRange]:
    """Return the places of each key and array element, and of their values, by path."""
    scanner = _RangeScanner(text)
    scanner.scan()
    return scanner.ranges


def list_statements(text: str) -> list[TomlStatement]:
    """Return the headers and keys in the order of the text. The text may end with an error."""
    scanner = _RangeScanner(text)
    scanner.scan()
    return scanner.statements


class _RangeScanner:
    """Walks over a document once and records places. The place of a key is where the dotted key begins that names it first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self.starts: dict[KeyPath, int] = {}
        self.ranges: dict[KeyPath, TomlRange] = {}
        self.statements: list[TomlStatement] = []
        self._list_lengths: dict[KeyPath, int] = {}

    def scan(self) -> None:
        """Record the places of the whole document."""
        table: KeyPath = ()
        while self._skip(_BLANK) or self._offset < len(self._text):
            if self._offset >= len(self._text):
                break
            previous_offset = self._offset
            if self._text[self._offset] == "[":
                table = self._read_header()
            else:
                self._read_pair(table)
            if self._offset == previous_offset:
                self._offset += 1  # Only in an invalid document; avoid an endless loop.

    def _read_header(self) -> KeyPath:
        """Read a `[table]` or `[[table]]` header and return the path of its keys."""
        start = self._offset
        is_element = self._text.startswith("[[", self._offset)
        self._offset += 2 if is_element else 1
        path: KeyPath = ()
        names = self._read_key()
        self._skip(_SPACE)
        self._offset += 2 if is_element else 1
        end = min(self._offset, len(self._text))
        for depth, (name, _, _) in enumerate(names):
            path = (*path, name)
            if is_element and depth == len(names) - 1:
                self._list_lengths[path] = self._list_lengths.get(path, 0) + 1
            self._record(path, start, start, end, start, end)
            if path in self._list_lengths:
                path = (*path, self._list_lengths[path] - 1)
                self._record(path, start, start, end, start, end)
        keys = tuple(name for name, _, _ in names)
        self.statements.append(TomlStatement(keys, start, end, is_header=True, is_element=is_element))
        return path

    def _read_pair(self, table: KeyPath) -> None:
        """Read a key with its value, and record the locations of both.

        `table` is the path of the table that contains the key.
        """
        start = self._offset
        names = self._read_key()
        path = (*table, *(name for name, _, _ in names))
        if names:
            self.statements.append(TomlStatement(path, start, names[-1][2]))
        for depth in range(len(table) + 1, len(path) + 1):
            self.starts.setdefault(path[:depth], start)
        self._skip(_SPACE)
        if self._text[self._offset : self._offset + 1] == "=":
            self._offset += 1
        self._skip(_SPACE)
        value_start = self._offset
        self._read_value(path)
        for at, (_, name_start, name_end) in enumerate(names):
            inner = path[: len(table) + at + 1]
            self._record(inner, start, name_start, name_end, value_start, self._offset)

    def _read_key(self) -> list[tuple[str, int, int]]:
        """Return the parts of a dotted key, with their offsets."""
        names: list[tuple[str, int, int]] = []
        while True:
            self._skip(_SPACE)
            match = _KEY_PART.match(self._text, self._offset)
            if match is None:
                return names
            names.append((_unquote_key(match[0]), match.start(), match.end()))
            self._offset = match.end()
            self._skip(_SPACE)
            if self._text[self._offset : self._offset + 1] != ".":
                return names
            self._offset += 1

    def _read_value(self, path: KeyPath) -> None:
        """Skip a value and record the locations inside it."""
        opening = self._text[self._offset : self._offset + 1]
        if opening == "[":
            self._offset += 1
            index = 0
            while not self._skip_closing("]"):
                start = self._offset
                self.starts.setdefault((*path, index), start)
                self._read_value((*path, index))
                self._record((*path, index), start, start, self._offset, start, self._offset)
                if self._offset == start:
                    self._offset += 1  # Only in an invalid document; avoid an endless loop.
                index += 1
        elif opening == "{":
            self._offset += 1
            while not self._skip_closing("}"):
                start = self._offset
                self._read_pair(path)
                if self._offset == start:
                    self._offset += 1  # Only in an invalid document; avoid an endless loop.
        elif not self._skip(TOML_TEXT):
            match = _BARE_VALUE.match(self._text, self._offset)
            assert match is not None, "the pattern matches every text"
            self._offset += len(match[0].rstrip())

    def _skip_closing(self, closing: str) -> bool:
        """Skip blanks and a comma, and the closing character if it follows.

        Return whether the array or table ends here.
        """
        self._skip(_BLANK)
        if self._text[self._offset : self._offset + 1] == ",":
            self._offset += 1
            self._skip(_BLANK)
        if self._offset >= len(self._text):
            return True
        if self._text[self._offset] != closing:
            return False
        self._offset += 1
        return True

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Skip the text at the offset that the pattern matches. Return whether anything was skipped."""
        match = pattern.match(self._text, self._offset)
        if match is None:
            return False
        self._offset = match.end()
        return bool(match[0])

    def _record(self, path: KeyPath, first: int, start: int, end: int, value_start: int, value_end: int) -> None:
        """Record the places of a path, unless it already has some. `first` is where its statement begins."""
        self.starts.setdefault(path, first)
        if path not in self.ranges:
            self.ranges[path] = TomlRange(start, end, value_start, value_end)


def _unquote_key(part: str) -> str:
    """Return a part of a key without quotation marks and escapes."""
    if part.startswith("'"):
        return part[1:-1]
    return str(json.loads(part, strict=False)) if part.startswith('"') and "\\U" not in part else part.strip('"')
