"""Finds the line number of each key in a TOML or JSON file.

The parsers of the standard library return values without line numbers. The two scanners here find line numbers only.
They run on text that has been parsed without error, so they only need to recognize keys, strings and nesting. For a key
that they miss, callers use the line of the table around it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from wharf.config.tree import KeyPath

_BARE_KEY: Final = r"[A-Za-z0-9_-]+"
_QUOTED: Final = r'"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'"
_KEY: Final = rf"(?:{_BARE_KEY}|{_QUOTED})"
_DOTTED_KEY: Final = re.compile(rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*")
_KEY_PART: Final = re.compile(_KEY)

_MULTI_LINE_TEXT: Final = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}' + r"|'''.*?'{3,5}", re.DOTALL)
_ONE_LINE_TEXT: Final = re.compile(_QUOTED)
_COMMENT: Final = re.compile(r"#[^\n]*")

LineNumbers = Mapping[KeyPath, int]
"""Line numbers by key, counted from 1."""


def find_toml_lines(text: str) -> LineNumbers:
    """Return the line number of every key of a valid TOML document."""
    return _TomlScanner(text).scan()


class _TomlScanner:
    """Scans one TOML document from start to end. `_offset` and `_line` are the current position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._line = 1
        self._lines: dict[KeyPath, int] = {}

    def scan(self) -> LineNumbers:
        """Return the line numbers of all keys."""
        table: KeyPath = ()
        while self._offset < len(self._text):
            if self._skip_blank():
                continue
            if self._text.startswith("[", self._offset):
                self._move(2 if self._text.startswith("[[", self._offset) else 1)
                self._skip_spaces()
                table = self._read_key(())
                self._skip_rest()
            else:
                self._read_pair(table)
                self._skip_rest()
        return self._lines

    def _read_pair(self, table: KeyPath) -> None:
        """Read a key and its value."""
        path = self._read_key(table)
        self._skip_spaces()
        self._move(1)  # The equals sign.
        self._skip_spaces()
        self._read_value(path)

    def _read_key(self, table: KeyPath) -> KeyPath:
        """Read a dotted key, record the line of each of its parts, and return its path."""
        key_match = _DOTTED_KEY.match(self._text, self._offset)
        if key_match is None:  # Impossible in a valid document. A missing line number is better than an exception.
            self._move(1)
            return table
        parts = tuple(_unquote_key(part) for part in _KEY_PART.findall(key_match[0]))
        for depth in range(1, len(parts) + 1):
            self._lines.setdefault((*table, *parts[:depth]), self._line)
        self._move(len(key_match[0]))
        return (*table, *parts)

    def _read_value(self, path: KeyPath) -> None:
        """Skip a value, and record the keys of inline tables in it."""
        if self._skip_text():
            return
        first_character = self._text[self._offset : self._offset + 1]
        if first_character == "{":
            self._read_members("}", path, has_keys=True)
        elif first_character == "[":
            self._read_members("]", path, has_keys=False)
        else:
            scalar = re.compile(r"[^,\]}#\n]+").match(self._text, self._offset)
            self._move(len(scalar[0]) if scalar else 1)

    def _read_members(self, closing: str, path: KeyPath, *, has_keys: bool) -> None:
        """Read the members of an inline table (`has_keys`) or an array, up to the closing character."""
        self._move(1)
        while self._offset < len(self._text) and not self._text.startswith(closing, self._offset):
            if self._skip_blank() or self._text.startswith(",", self._offset):
                self._move(1 if self._text.startswith(",", self._offset) else 0)
            elif has_keys:
                self._read_pair(path)
            else:
                self._read_value(path)
        self._move(1)

    def _skip_rest(self) -> None:
        """Move to the end of the line. After a key or value, only spaces and a comment can follow on it."""
        end = self._text.find("\n", self._offset)
        self._move((end if end >= 0 else len(self._text)) - self._offset)

    def _skip_text(self) -> bool:
        """Skip a string of any form; return whether there was one."""
        for pattern in (_MULTI_LINE_TEXT, _ONE_LINE_TEXT):
            key_match = pattern.match(self._text, self._offset)
            if key_match is not None:
                self._move(len(key_match[0]))
                return True
        return False

    def _skip_spaces(self) -> None:
        while self._text[self._offset : self._offset + 1] in (" ", "\t"):
            self._move(1)

    def _skip_blank(self) -> bool:
        """Skip white space, newlines and one comment; return whether there were any."""
        start_offset = self._offset
        while self._offset < len(self._text) and self._text[self._offset] in " \t\r\n":
            self._move(1)
        comment = _COMMENT.match(self._text, self._offset)
        if comment is not None:
            self._move(len(comment[0]))
        return self._offset > start_offset

    def _move(self, object_count: int) -> None:
        self._line += self._text.count("\n", self._offset, self._offset + object_count)
        self._offset += object_count


def _unquote_key(part: str) -> str:
    """Return a part of a key without its quotes and escapes."""
    if part.startswith("'"):
        return part[1:-1]
    # The escapes of TOML are those of JSON, except \U and \e, which do not occur in names of settings.
    return str(json.loads(part, strict=False)) if part.startswith('"') and "\\U" not in part else part.strip('"')


_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"' + r"|[{}\[\],:]|\n")


def find_json_lines(text: str) -> LineNumbers:
    """Return the line number of every key of a valid JSON document, except keys inside lists."""
    lines: dict[KeyPath, int] = {}
    for key in _iterate_json_keys(text):
        if not key.is_in_list:
            lines.setdefault(key.path, key.line)
    return lines


def find_repeated_json_key(text: str) -> tuple[KeyPath, int] | None:
    """Return the first key that occurs twice in one object, with the line of its second occurrence."""
    seen_keys: set[tuple[int, str]] = set()
    for key in _iterate_json_keys(text):
        key_in_object = (key.object_number, key.path[-1])
        if key_in_object in seen_keys:
            return key.path, key.line
        seen_keys.add(key_in_object)
    return None


class _JsonKey(NamedTuple):
    """A key of a JSON document."""

    path: KeyPath
    """The keys from the document to this one, without indexes of lists."""
    line: int
    is_in_list: bool
    object_number: int
    """Identifies the object that directly contains the key."""


def _iterate_json_keys(text: str) -> Iterator[_JsonKey]:
    """Yield every key of a valid JSON document, in the order of the text."""
    path: list[str | None] = []  # One item for each open object (its current key) or list (`None`).
    object_numbers: list[int] = []  # The numbers of the open objects.
    object_count = 0
    line, last_string, expects_key = 1, "", False
    for token in _JSON_TOKEN.findall(text):
        match token:
            case "\n":
                line += 1
            case "{":
                path.append("")
                object_numbers.append(object_count)
                object_count += 1
                expects_key = True
            case "[":
                path.append(None)
                expects_key = False
            case "}" | "]":
                path.pop()
                if token == "}":
                    object_numbers.pop()
                expects_key = False
            case ",":
                expects_key = bool(path) and path[-1] is not None
            case ":":
                path[-1] = str(json.loads(last_string))
                yield _JsonKey(tuple(key for key in path if key is not None), line, None in path, object_numbers[-1])
                expects_key = False
            case _ if expects_key:
                last_string = token
            case _:
                pass
