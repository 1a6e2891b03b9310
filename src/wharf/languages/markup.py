"""JSON, YAML and TOML: reads a text as the values that JSON has, and as a tree with the place of each value.

Values are read exactly: what JSON cannot hold is an error. Trees are built only on request, because most files are right and
hold no templates.
"""

import datetime
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from wharf.languages.exact_values import (
    MAX_DEPTH,
    MAX_NUMBER_CHARS,
    NUMBER_FIX,
    InexactValue,
    find_number_problem,
    load_exact_json,
)
from wharf.languages.hcl.diagnostics import SourceFile
from wharf.languages.hcl.json_documents import (
    JsonArray,
    JsonDocumentParser,
    JsonNode,
    JsonObject,
    JsonProperty,
    JsonScalar,
)
from wharf.languages.hcl.numerals import parse_number
from wharf.languages.hcl.reader import FinalError, ParseError
from wharf.languages.markup_errors import MarkupError
from wharf.languages.toml_faults import explain_toml_error, find_long_key
from wharf.languages.toml_locations import TOML_TEXT, KeyPath, find_ranges

EMPTY_FILE_FIX: Final = "write a job; `wharf job init` writes an example"
MAX_SLOW_CHARS: Final = 1_000_000
"""Limit of a text in YAML or TOML, equal to that of a job file in HCL. Their parsers are written in Python: a long text takes up to
2 s for each MB.
"""
MAX_JSON_VALUES: Final = 100_000
"""Limit of the values of a JSON document, equal to that of the items of a body (`MAX_TOTAL_ITEMS`). The tree that locates errors
takes up to 10 µs for each.
"""
MAX_TOML_VALUES: Final = 50_000
"""Limit of the values and the parts of keys of a TOML document. Reading and locating each takes up to 20 µs."""
_MAX_DEC_DIGITS: Final = 10**MAX_NUMBER_CHARS
_JSON_VALUE: Final = re.compile(r'[^"\[\]{},]++|"(?:[^"\\]|\\.)*+(?:"|\Z)|(?P<value>[,\[{])|[\]}]', re.DOTALL)
_TOML_VALUE: Final = re.compile(
    rf"[^\"'#=\[\]{{}},.\n]++|{TOML_TEXT.pattern}|#[^\n]*+|(?P<value>[=,\[{{]|(?<![0-9])\.|\.(?![0-9]))|.", re.DOTALL
)
"""Parts of a text. A value or a part of a key begins after each sign of the group `value`."""
_END: Final = object()
_OPENINGS: Final = frozenset("[{")
_CLOSINGS: Final = frozenset("]}")


class MarkupFormat(StrEnum):
    """A language of data."""

    JSON = "json"
    YAML = "yaml"
    TOML = "toml"


@dataclass(frozen=True, slots=True)
class MarkupDocument:
    """A document: its value as JSON has it, and a function that builds its tree.

    The function raises `MarkupError` if the document is too deep or too large for a tree.
    """

    value: Any
    format: MarkupFormat
    build_tree: Callable[[], JsonNode]


def parse_markup(text: str, format: MarkupFormat) -> MarkupDocument:
    """Parse a text. Raises `MarkupError`."""
    match format:
        case MarkupFormat.JSON:
            return MarkupDocument(parse_json(text), format, lambda: _build_json_tree(text))
        case MarkupFormat.YAML:
            return parse_yaml(text)
        case MarkupFormat.TOML:
            value = parse_toml(text)
            return MarkupDocument(value, format, lambda: _TomlTreeBuilder(text).build(value, ()))


def _check_length(text: str, language: str) -> None:
    """Raise `MarkupError` for a text that takes seconds to read."""
    if len(text) > MAX_SLOW_CHARS:
        raise MarkupError(
            f"the file has {len(text):,} characters, more than the {MAX_SLOW_CHARS:,} that a file in {language} may have",
            fix="make it smaller, or write it in JSON",
        )


def _check_size(text: str, pattern: re.Pattern[str], max_values: int, fix: str) -> None:
    """Raise `MarkupError` if a text has too many values or nests them too deeply. The text may have errors."""
    opening_count = text.count("[") + text.count("{")
    separator_count = text.count(",") + (text.count("=") + text.count(".") if pattern is _TOML_VALUE else 0)
    if opening_count <= MAX_DEPTH and opening_count + separator_count <= max_values:
        return
    depth = count = 0
    for part in pattern.finditer(text):
        sign = part[0]
        if part["value"] is not None:
            count += 1
            depth += sign in _OPENINGS
            if depth > MAX_DEPTH:
                raise _make_depth_error(part.start())
            if count > max_values:
                raise MarkupError(f"the file has more than {max_values:,} values", part.start(), part.end(), fix)
        elif sign in _CLOSINGS:
            depth -= 1


def _make_depth_error(start: int | None, end: int | None = None) -> MarkupError:
    return MarkupError(f"nested more than {MAX_DEPTH} deep", start, end, "write it flatter")


# -- JSON


def parse_json(text: str, *, max_values: int | None = MAX_JSON_VALUES) -> Any:  # Any JSON value.
    """Return the value of a JSON text. Raises `MarkupError`, also for a key that occurs twice in one object.

    Texts that programs have written may have any number of values: `max_values` is `None`.
    """

    def build_object(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(entries)
        if len(built) != len(entries):
            raise _DuplicateKey(_find_repeated(key for key, _ in entries))
        return built

    if max_values is not None:
        _check_size(text, _JSON_VALUE, max_values, "split the file, or store values in files that tasks read")
    try:
        return load_exact_json(text, build_object)
    except InexactValue as problem:
        raise MarkupError(str(problem), problem.position, problem.end) from None
    except json.JSONDecodeError as error:
        if not text.strip():
            raise MarkupError("the file is empty", fix=EMPTY_FILE_FIX) from None
        raise _explain_json_error(text, error) from error
    except _DuplicateKey as error:
        raise _locate_duplicate(text, str(error)) from None
    except RecursionError:
        _check_size(text, _JSON_VALUE, len(text), "")
        raise


def _find_repeated(keys: Iterable[str]) -> str:
    """Return the first key that occurs a second time."""
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("a key occurs twice")


class _DuplicateKey(Exception):
    """A key occurs twice in an object."""


def _explain_json_error(text: str, error: json.JSONDecodeError) -> MarkupError:
    """Return an error of the parser in words for users."""
    try:
        JsonDocumentParser(SourceFile("", text)).parse_any()
    except FinalError:
        pass  # The text is too large for a tree.
    except ParseError as found:
        return _make_markup_error(found)
    return MarkupError(f"this is not JSON: {error.msg[0].lower()}{error.msg[1:]}", error.pos)


def _locate_duplicate(text: str, key: str) -> MarkupError:
    """Return the error of a key that occurs twice, with both places, or the error of syntax behind it."""
    message, fix = f'the key "{key[:80]}" occurs twice', "remove one"
    try:
        stack = [JsonDocumentParser(SourceFile("", text)).parse_any()]
    except FinalError:  # The text is too large for a tree.
        return MarkupError(message, fix=fix)
    except ParseError as found:
        return _make_markup_error(found)
    while stack:
        node = stack.pop()
        if isinstance(node, JsonArray):
            stack += reversed(node.items)
        elif isinstance(node, JsonObject):
            seen: dict[str, JsonProperty] = {}
            for entry in node.properties:
                first = seen.setdefault(entry.key, entry)
                if first is not entry and entry.key == key:
                    related = (first.start, first.end, "the first is at")
                    return MarkupError(message, entry.start, entry.end, fix, related)
            stack += [entry.value for entry in reversed(node.properties)]
    return MarkupError(message, fix=fix)


def _build_json_tree(text: str) -> JsonNode:
    try:
        return JsonDocumentParser(SourceFile("", text)).parse_document()
    except ParseError as error:
        raise _make_markup_error(error) from None


def _make_markup_error(error: ParseError) -> MarkupError:
    return MarkupError(error.message, error.start, error.end, error.fix, error.related)


# -- YAML


def parse_yaml(text: str) -> MarkupDocument:
    """Parse a YAML text that holds one document. Raises `MarkupError`."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    from wharf.languages.yaml_faults import explain_documents, explain_yaml_error
    from wharf.languages.yaml_reader import RefusedValue, create_yaml_reader

    _check_length(text, "YAML")
    reader = create_yaml_reader()
    try:
        documents = reader.load_all(text)
        values = [_copy_document(value) for value in islice(documents, 1)]
        first_end = reader.composer.last_root.end_mark.index if values else 0
        if next(documents, _END) is not _END:
            raise explain_documents(text, first_end)
    except RefusedValue as error:
        if not _is_brace_value(text, error.problem_mark.index):
            raise MarkupError(error.problem, error.problem_mark.index, error.end, error.fix) from error
        raise explain_yaml_error(text, error, None) from error
    except MarkedYAMLError as error:
        raise explain_yaml_error(text, error, reader.composer.last_root) from error
    except ReaderError as error:
        code = ord(text[error.position])
        raise MarkupError(
            f"the control character #x{code:04x} is not allowed in YAML",
            error.position,
            fix=f'remove it, or write it in a quoted text as "\\x{code:02x}"',
        ) from error
    except (YAMLError, ValueError) as error:
        raise MarkupError(str(error).splitlines()[0]) from error
    if not values:
        raise MarkupError("the file is empty", fix=EMPTY_FILE_FIX)
    node = reader.composer.last_root
    return MarkupDocument(values[0], MarkupFormat.YAML, lambda: _build_yaml_tree(node, reader.constructor))


def _is_brace_value(text: str, offset: int) -> bool:
    """Return whether a refused value is the second brace of a text such as `{{ x }}`."""
    return text[max(0, offset - 1) : offset + 1] == "{{"


def _copy_document(value: Any) -> Any:  # Any value of the document.
    """Return a copy of the value, with a value of its own for each alias."""
    if isinstance(value, dict):
        return {key: _copy_document(item) for key, item in value.items()}
    return [_copy_document(item) for item in value] if isinstance(value, list) else value


def _build_yaml_tree(node: Any, constructor: Any) -> JsonNode:
    """Return the tree of a node of ruamel.yaml, which has no types for nodes. Nodes of aliases are shared."""
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    built: dict[int, JsonNode] = {}

    def build(node: Any) -> JsonNode:
        found = built.get(id(node))
        if found is not None:
            return found
        start, end = node.start_mark.index, node.end_mark.index
        result: JsonNode
        if isinstance(node, MappingNode):
            # The constructor has replaced merge keys by what they merge. The first of equal keys wins.
            properties = {
                key.value: JsonProperty(key.value, key.start_mark.index, key.end_mark.index, build(value))
                for key, value in reversed(node.value)
            }
            result = JsonObject(list(reversed(properties.values())), start, end)
        elif isinstance(node, SequenceNode):
            result = JsonArray([build(item) for item in node.value], start, end)
        else:
            value = constructor.construct_object(node)
            result = JsonScalar(_to_exact(value), start, end)
        built[id(node)] = result
        return result

    return build(node)


def _to_exact(value: Any) -> Any:
    """Return a scalar as the tree holds it: a fraction for a float."""
    return parse_number(repr(value)) if isinstance(value, float) else value


# -- TOML


def parse_toml(text: str) -> dict[str, Any]:
    """Return the value of a TOML text. Raises `MarkupError`, also for dates, which JSON does not have."""
    _check_length(text, "TOML")
    if (long_key := find_long_key(text)) is not None:
        raise long_key
    _check_size(text, _TOML_VALUE, MAX_TOML_VALUES, "write it in JSON or HCL, which are read faster")
    try:
        value = tomllib.loads(text, parse_float=_parse_toml_float)
    except ValueError as error:
        raise explain_toml_error(text, error) from None
    except RecursionError:
        raise AssertionError("the nesting is limited") from None
    for path, item in _iterate_values(value):
        if len(path) > MAX_DEPTH or isinstance(item, datetime.date | datetime.time) or _is_long(item):
            raise _refuse_toml_value(text, path, item)
    return value


def _iterate_values(value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yield all values inside a value, with their paths, without recursion."""
    stack: list[tuple[KeyPath, Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        yield path, item
        entries = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        stack += [((*path, step), inner) for step, inner in entries]


def _is_long(value: Any) -> bool:
    """Return whether a value is a number that is too long to be written as text. The parser reads any number in base 2, 8 or 16."""
    return isinstance(value, int) and not -_MAX_DEC_DIGITS < value < _MAX_DEC_DIGITS


def _refuse_toml_value(text: str, path: KeyPath, value: Any) -> MarkupError:
    """Return the error of a value that JSON does not have, or that is too deep."""
    place = find_ranges(text).get(path)
    start, end = (place.value_start, place.value_end) if place is not None else (None, None)
    written = text[start:end].strip()
    if _is_long(value):
        return MarkupError(
            find_number_problem(written) or f"the number {written[:40]}... is too large", start, end, NUMBER_FIX
        )
    if len(path) > MAX_DEPTH:
        return _make_depth_error(start, end)
    return MarkupError("JSON has no dates", start, end, f'put the date in quotes: "{written}"')


def _parse_toml_float(text: str) -> float:
    problem = find_number_problem(text)
    if text.lstrip("+-") in ("inf", "nan"):
        problem = f"{text} is not a finite number"
    if problem:
        raise ValueError(problem)
    return float(text)


class _TomlTreeBuilder:
    """Builds the tree of a document."""

    def __init__(self, text: str) -> None:
        self._ranges = find_ranges(text)

    def build(self, value: Any, path: KeyPath) -> JsonNode:
        """Return the tree of the value at a path."""
        place = self._ranges.get(path)
        start, end = (place.value_start, place.value_end) if place is not None else (0, 0)
        if isinstance(value, Mapping):
            properties: list[JsonProperty] = []
            for key, item in value.items():
                inner = self._ranges.get((*path, key))
                key_start, key_end = (inner.start, inner.end) if inner is not None else (start, end)
                properties.append(JsonProperty(key, key_start, key_end, self.build(item, (*path, key))))
            return JsonObject(properties, start, end)
        if isinstance(value, list):
            return JsonArray([self.build(item, (*path, at)) for at, item in enumerate(value)], start, end)
        return JsonScalar(_to_exact(value), start, end)
