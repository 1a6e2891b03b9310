"""Line and column of every key and array element of a TOML document.

The reader of the standard library gives values without places. This scanner gives places without values; it runs over
text that was read without error, so it needs to know no more than keys, texts and nesting.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from wharf.limits.toml.problems import SourceLocation

KeyPath = tuple[str | int, ...]

_KEY_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)+")
_SPACE: Final = re.compile(r"[ \t]*")
_TEXT: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'", re.DOTALL
)
_PLAIN: Final = re.compile(r"[^,\]}#\n]*")


def find_locations(text: str) -> Mapping[KeyPath, SourceLocation]:
    """The place of each key and element. A table of an array has a number in its path: `("rule", 0, "name")`."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._places: dict[KeyPath, SourceLocation] = {}
        self._lengths: dict[KeyPath, int] = {}

    def scan(self) -> Mapping[KeyPath, SourceLocation]:
        table: KeyPath = ()
        while self._skip(_BLANK) or self._at < len(self._text):
            if self._at >= len(self._text):
                break
            before = self._at
            if self._text[self._at] == "[":
                table = self._read_header()
            else:
                self._read_pair(table)
            if self._at == before:
                self._at += 1  # Not in a valid document; going on beats going round.
        return self._places

    def _read_header(self) -> KeyPath:
        begin = self._at
        is_element = self._text.startswith("[[", self._at)
        self._at += 2 if is_element else 1
        path: KeyPath = ()
        names = self._read_key()
        for depth, name in enumerate(names):
            path = (*path, name)
            if is_element and depth == len(names) - 1:
                self._lengths[path] = self._lengths.get(path, 0) + 1
            self._mark(path, begin)
            if path in self._lengths:
                path = (*path, self._lengths[path] - 1)
                self._mark(path, begin)
        self._skip(_SPACE)
        self._at += 2 if is_element else 1
        return path

    def _read_pair(self, table: KeyPath) -> None:
        begin = self._at
        path = table
        for name in self._read_key():
            path = (*path, name)
            self._mark(path, begin)
        self._skip(_SPACE)
        if self._text[self._at : self._at + 1] == "=":
            self._at += 1
        self._skip(_SPACE)
        self._read_value(path)

    def _read_key(self) -> list[str]:
        names: list[str] = []
        while True:
            self._skip(_SPACE)
            found = _KEY_PART.match(self._text, self._at)
            if found is None:
                return names
            names.append(_plain(found[0]))
            self._at = found.end()
            self._skip(_SPACE)
            if self._text[self._at : self._at + 1] != ".":
                return names
            self._at += 1

    def _read_value(self, path: KeyPath) -> None:
        opening = self._text[self._at : self._at + 1]
        if opening == "[":
            self._at += 1
            index = 0
            while not self._at_closing("]"):
                self._mark((*path, index), self._at)
                self._read_value((*path, index))
                index += 1
        elif opening == "{":
            self._at += 1
            while not self._at_closing("}"):
                self._read_pair(path)
        elif not self._skip(_TEXT):
            self._skip(_PLAIN)

    def _at_closing(self, closing: str) -> bool:
        self._skip(_BLANK)
        if self._text[self._at : self._at + 1] == ",":
            self._at += 1
            self._skip(_BLANK)
        if self._at >= len(self._text):
            return True
        if self._text[self._at] != closing:
            return False
        self._at += 1
        return True

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self._text, self._at)
        if found is None:
            return False
        self._at = found.end()
        return bool(found[0])

    def _mark(self, path: KeyPath, at: int) -> None:
        line = bisect_right(self._starts, at)
        self._places.setdefault(path, SourceLocation(line, at - self._starts[line - 1] + 1))


def _plain(part: str) -> str:
    if part.startswith("'"):
        return part[1:-1]
    return str(json.loads(part, strict=False)) if part.startswith('"') and "\\U" not in part else part.strip('"')
