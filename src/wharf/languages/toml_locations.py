"""Line and column of every key and array element of a TOML document.

The parser of the standard library returns values without locations. This scanner returns locations without values. It
runs only on text that was parsed without error, so it needs to recognize only keys, texts and nesting.
"""

import json
import re
from collections.abc import Mapping
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


def find_locations(text: str) -> Mapping[KeyPath, SourceLocation]:
    """Return the line and column of each key and array element of a TOML document, by its path.

    The path of a key in an array of tables holds the index of the table: `("rule", 0, "name")`.
    """
    return _LocationScanner(text).scan()


class _LocationScanner:
    """Walks over a document once and records locations."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._lines = LineIndex(text)
        self._locations: dict[KeyPath, SourceLocation] = {}
        self._list_lengths: dict[KeyPath, int] = {}

    def scan(self) -> Mapping[KeyPath, SourceLocation]:
        """Return the locations of the whole document."""
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
        return self._locations

    def _read_header(self) -> KeyPath:
        """Read a `[table]` or `[[table]]` header and return the path of its keys."""
        start = self._offset
        is_element = self._text.startswith("[[", self._offset)
        self._offset += 2 if is_element else 1
        path: KeyPath = ()
        names = self._read_key()
        for depth, name in enumerate(names):
            path = (*path, name)
            if is_element and depth == len(names) - 1:
                self._list_lengths[path] = self._list_lengths.get(path, 0) + 1
            self._record_location(path, start)
            if path in self._list_lengths:
                path = (*path, self._list_lengths[path] - 1)
                self._record_location(path, start)
        self._skip(_SPACE)
        self._offset += 2 if is_element else 1
        return path

    def _read_pair(self, table: KeyPath) -> None:
        """Read a key with its value, and record the locations of both.

        `table` is the path of the table that contains the key.
        """
        start = self._offset
        path = table
        for name in self._read_key():
            path = (*path, name)
            self._record_location(path, start)
        self._skip(_SPACE)
        if self._text[self._offset : self._offset + 1] == "=":
            self._offset += 1
        self._skip(_SPACE)
        self._read_value(path)

    def _read_key(self) -> list[str]:
        """Return the parts of a dotted key."""
        names: list[str] = []
        while True:
            self._skip(_SPACE)
            match = _KEY_PART.match(self._text, self._offset)
            if match is None:
                return names
            names.append(_unquote_key(match[0]))
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
                self._record_location((*path, index), self._offset)
                self._read_value((*path, index))
                index += 1
        elif opening == "{":
            self._offset += 1
            while not self._skip_closing("}"):
                self._read_pair(path)
        elif not self._skip(TOML_TEXT):
            self._skip(_BARE_VALUE)

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

    def _record_location(self, path: KeyPath, offset: int) -> None:
        """Record the line and column of an offset, unless the path already has one."""
        self._locations.setdefault(path, self._lines.get_location(offset))


def _unquote_key(part: str) -> str:
    """Return a part of a key without quotation marks and escapes."""
    if part.startswith("'"):
        return part[1:-1]
    return str(json.loads(part, strict=False)) if part.startswith('"') and "\\U" not in part else part.strip('"')
