"""On which line of a TOML or JSON file each key stands.

The readers of the standard library give values without places. These two scanners give places without values: they
run over text that has been read without error, so they need to understand no more than keys, strings and nesting. A
key they miss is answered with the line of the table around it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from wharf.config.tree import KeyPath

_BARE: Final = r"[A-Za-z0-9_-]+"
_QUOTED: Final = r'"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'"
_KEY: Final = rf"(?:{_BARE}|{_QUOTED})"
_DOTTED: Final = re.compile(rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*")
_KEY_PART: Final = re.compile(_KEY)

_MULTI_LINE_TEXT: Final = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}' + r"|'''.*?'{3,5}", re.DOTALL)
_ONE_LINE_TEXT: Final = re.compile(_QUOTED)
_COMMENT: Final = re.compile(r"#[^\n]*")

LineNumbers = Mapping[KeyPath, int]


def find_toml_lines(text: str) -> LineNumbers:
    """Line numbers, from 1, of every key of a valid TOML document."""
    return _TomlScanner(text).scan()


class _TomlScanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._lines: dict[KeyPath, int] = {}

    def scan(self) -> LineNumbers:
        table: KeyPath = ()
        while self._at < len(self._text):
            if self._skip_blank():
                continue
            if self._text.startswith("[", self._at):
                self._move(2 if self._text.startswith("[[", self._at) else 1)
                self._skip_spaces()
                table = self._read_key(())
                self._skip_rest()
            else:
                self._read_pair(table)
                self._skip_rest()
        return self._lines

    def _read_pair(self, table: KeyPath) -> None:
        path = self._read_key(table)
        self._skip_spaces()
        self._move(1)  # The sign between key and value.
        self._skip_spaces()
        self._read_value(path)

    def _read_key(self, table: KeyPath) -> KeyPath:
        found = _DOTTED.match(self._text, self._at)
        if found is None:  # Not for a valid document; going on is better than stopping a person by a missing line.
            self._move(1)
            return table
        parts = tuple(_plain_key(part) for part in _KEY_PART.findall(found[0]))
        for depth in range(1, len(parts) + 1):
            self._lines.setdefault((*table, *parts[:depth]), self._line)
        self._move(len(found[0]))
        return (*table, *parts)

    def _read_value(self, path: KeyPath) -> None:
        if self._skip_text():
            return
        opening = self._text[self._at : self._at + 1]
        if opening == "{":
            self._read_inside("}", path, has_keys=True)
        elif opening == "[":
            self._read_inside("]", path, has_keys=False)
        else:
            plain = re.compile(r"[^,\]}#\n]+").match(self._text, self._at)
            self._move(len(plain[0]) if plain else 1)

    def _read_inside(self, closing: str, path: KeyPath, *, has_keys: bool) -> None:
        self._move(1)
        while self._at < len(self._text) and not self._text.startswith(closing, self._at):
            if self._skip_blank() or self._text.startswith(",", self._at):
                self._move(1 if self._text.startswith(",", self._at) else 0)
            elif has_keys:
                self._read_pair(path)
            else:
                self._read_value(path)
        self._move(1)

    def _skip_rest(self) -> None:
        """Go to the end of the line; after a complete key or value only spaces and a comment are left there."""
        end = self._text.find("\n", self._at)
        self._move((end if end >= 0 else len(self._text)) - self._at)

    def _skip_text(self) -> bool:
        for pattern in (_MULTI_LINE_TEXT, _ONE_LINE_TEXT):
            found = pattern.match(self._text, self._at)
            if found is not None:
                self._move(len(found[0]))
                return True
        return False

    def _skip_spaces(self) -> None:
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._move(1)

    def _skip_blank(self) -> bool:
        began = self._at
        while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
            self._move(1)
        comment = _COMMENT.match(self._text, self._at)
        if comment is not None:
            self._move(len(comment[0]))
        return self._at > began

    def _move(self, count: int) -> None:
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count


def _plain_key(part: str) -> str:
    if part.startswith("'"):
        return part[1:-1]
    # TOML's escapes in keys are those of JSON, but for \U and \e, which nobody writes into the name of a setting.
    return str(json.loads(part, strict=False)) if part.startswith('"') and "\\U" not in part else part.strip('"')


_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"' + r"|[{}\[\],:]|\n")


def find_json_lines(text: str) -> LineNumbers:
    """Line numbers, from 1, of every key of a valid JSON document."""
    lines: dict[KeyPath, int] = {}
    for key in _json_keys(text):
        if not key.is_in_list:
            lines.setdefault(key.path, key.line)
    return lines


def find_repeated_json_key(text: str) -> tuple[KeyPath, int] | None:
    """The first key that an object of a valid JSON document holds twice, and the line where it comes again."""
    seen: set[tuple[int, str]] = set()
    for key in _json_keys(text):
        place = (key.object_number, key.path[-1])
        if place in seen:
            return key.path, key.line
        seen.add(place)
    return None


class _JsonKey(NamedTuple):
    path: KeyPath
    """Without the places in lists."""
    line: int
    is_in_list: bool
    object_number: int
    """Of the object that holds it."""


def _json_keys(text: str) -> Iterator[_JsonKey]:
    """Every key of a valid JSON document, in the order of the text."""
    path: list[str | None] = []  # None for a list.
    objects: list[int] = []  # The numbers of the objects around.
    count = 0
    line, text_before, expects_key = 1, "", False
    for token in _JSON_TOKEN.findall(text):
        match token:
            case "\n":
                line += 1
            case "{":
                path.append("")
                objects.append(count)
                count += 1
                expects_key = True
            case "[":
                path.append(None)
                expects_key = False
            case "}" | "]":
                path.pop()
                if token == "}":
                    objects.pop()
                expects_key = False
            case ",":
                expects_key = bool(path) and path[-1] is not None
            case ":":
                path[-1] = str(json.loads(text_before))
                yield _JsonKey(tuple(key for key in path if key is not None), line, None in path, objects[-1])
                expects_key = False
            case _ if expects_key:
                text_before = token
            case _:
                pass
