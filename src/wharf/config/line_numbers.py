"""Finds the line number of each key in a TOML or JSON file.

The parsers of the standard library return values without line numbers. The scanners find line numbers only. They run on
text that has been parsed without error, so they only need to recognize keys, strings and nesting. For a key that they
miss, callers use the line of the table around it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from wharf.config.tree import KeyPath
from wharf.languages.toml_locations import find_locations

LineNumbers = Mapping[KeyPath, int]
"""Line numbers by key, counted from 1."""


def find_toml_lines(text: str) -> LineNumbers:
    """Return the line number of every key of a valid TOML document."""
    lines: dict[KeyPath, int] = {}
    for path, location in find_locations(text.replace("\r\n", "\n")).items():
        # Keys inside arrays are recorded without their index, because no setting is an array of tables.
        lines.setdefault(tuple(part for part in path if isinstance(part, str)), location.line)
    return lines


_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"' + r"|[{}\[\],:]|\n")


def find_json_lines(text: str) -> LineNumbers:
    """Return the line number of every key of a valid JSON document, except keys inside lists."""
    lines: dict[KeyPath, int] = {}
    for key in _iterate_json_keys(text):
        if not key.is_in_list:
            lines.setdefault(key.path, key.line)
    return lines


def find_repeated_json_key(text: str) -> tuple[KeyPath, int] | None:
    """Return the path of the first key that occurs twice in one object, and the line of its second occurrence.

    Return `None` if there is none.
    """
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
