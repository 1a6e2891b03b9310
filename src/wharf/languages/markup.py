"""JSON, YAML and TOML: reads a text as the values that JSON has, and as a tree with the place of each value.

Values are read exactly: what JSON cannot hold is an error. Trees are built only on request, because most files are right and
hold no templates.
"""

import datetime
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from wharf.languages.exact_values import InexactValue, find_number_problem, load_exact_json
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
from wharf.languages.hcl.reader import ParseError
from wharf.languages.toml_locations import KeyPath, find_locations

MAX_VALUES: Final = 1_000_000
"""Limit of the values in a YAML document after aliases are expanded; protects memory from nested aliases."""
_DUPLICATE_KEY: Final = re.compile(r'found duplicate key "([^"]+)"')
_TOML_PLACE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TOML_NAME: Final = re.compile(r"""[^\s=.\[\]{},]+|"[^"\n]*"|'[^'\n]*'""")


class MarkupFormat(StrEnum):
    """A language of data."""

    JSON = "json"
    YAML = "yaml"
    TOML = "toml"


class MarkupError(Exception):
    """A text cannot be read. `offset` is the place in the text; `None` if it is not known."""

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


@dataclass(frozen=True, slots=True)
class MarkupDocument:
    """A document: its value as JSON has it, and a function that builds its tree.

    The function raises `MarkupError` if the document is too deep or too large for a tree.
    """

    value: Any
    build_tree: Callable[[], JsonNode]


def parse_markup(text: str, format: MarkupFormat) -> MarkupDocument:
    """Parse a text. Raises `MarkupError`."""
    match format:
        case MarkupFormat.JSON:
            return MarkupDocument(parse_json(text), lambda: _build_json_tree(text))
        case MarkupFormat.YAML:
            return parse_yaml(text)
        case MarkupFormat.TOML:
            value = parse_toml(text)
            return MarkupDocument(value, lambda: _TomlTreeBuilder(text).build(value, ()))


# -- JSON


def parse_json(text: str) -> Any:  # Any JSON value.
    """Return the value of a JSON text. Raises `MarkupError`, also for a key that occurs twice in one object."""

    def build_object(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key, value in entries:
            if key in built:
                raise MarkupError(f"duplicate key {key}: remove one")
            built[key] = value
        return built

    try:
        return load_exact_json(text, build_object)
    except InexactValue as problem:
        raise MarkupError(str(problem), problem.position) from None
    except json.JSONDecodeError as error:
        raise MarkupError(f"{error.msg[0].lower()}{error.msg[1:]}", error.pos) from error
    except RecursionError:
        raise MarkupError("the document is nested too deeply") from None


def _build_json_tree(text: str) -> JsonNode:
    try:
        return JsonDocumentParser(SourceFile("", text)).parse_document()
    except ParseError as error:
        raise MarkupError(error.message, error.start) from None


# -- YAML


class _ValueBudgetExceeded(Exception):
    """The document has more than MAX_VALUES values."""


class _DocumentBudget:
    """How many more values a document may have. A few nested aliases can stand for more values than fit in memory."""

    def __init__(self) -> None:
        self.remaining = MAX_VALUES

    def use(self) -> None:
        """Count one value. Raises `_ValueBudgetExceeded`."""
        self.remaining -= 1
        if self.remaining < 0:
            raise _ValueBudgetExceeded


def parse_yaml(text: str) -> MarkupDocument:
    """Parse a YAML text that holds one document. Raises `MarkupError`."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    from wharf.languages.yaml_reader import create_yaml_reader

    reader = create_yaml_reader()
    try:
        values = [_copy_document(value, _DocumentBudget()) for value in reader.load_all(text)]
    except MarkedYAMLError as error:
        mark = error.problem_mark
        raise MarkupError(
            _format_yaml_problem(error.context, error.problem), mark.index if mark is not None else None
        ) from error
    except ReaderError as error:
        code = ord(text[error.position])
        raise MarkupError(
            f"the control character #x{code:04x} is not allowed in YAML: "
            f'remove it, or write it in a quoted text as "\\x{code:02x}"',
            error.position,
        ) from error
    except (YAMLError, ValueError) as error:
        raise MarkupError(str(error).splitlines()[0]) from error
    except RecursionError:
        raise MarkupError("the document is nested too deeply") from None
    except _ValueBudgetExceeded:
        raise MarkupError(f"the document has more than {MAX_VALUES:,} values once its aliases are expanded") from None
    if not values:
        raise MarkupError("the file is empty")
    if len(values) != 1:
        raise MarkupError(f"expected one YAML document, got {len(values)}")
    node = reader.composer.last_root
    return MarkupDocument(values[0], lambda: _build_yaml_tree(node, reader.constructor))


def _format_yaml_problem(context: str | None, problem: str | None) -> str:
    """Return the YAML parser's text for an error, but a plainer text for the two most frequent mistakes."""
    if problem is not None and "character '\\t'" in problem:
        return "the line has a tab; indent YAML with spaces"
    if problem is not None and (duplicate := _DUPLICATE_KEY.match(problem)):
        return f"duplicate key {duplicate[1]}: remove one"
    return " ".join(part for part in (context, problem) if part).splitlines()[0]


def _copy_document(value: Any, budget: _DocumentBudget) -> Any:  # Any value of the document.
    """Return a copy of the value, with a value of its own for each alias. Raises _ValueBudgetExceeded."""
    budget.use()
    if isinstance(value, dict):
        return {key: _copy_document(item, budget) for key, item in value.items()}
    return [_copy_document(item, budget) for item in value] if isinstance(value, list) else value


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
    try:
        value = tomllib.loads(text, parse_float=_parse_toml_float)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _TOML_PLACE.search(message)
        problem = _TOML_PLACE.sub("", message)
        raise MarkupError(f"{problem[0].lower()}{problem[1:]}", _find_toml_offset(text, place)) from None
    except ValueError as error:
        raise MarkupError(str(error)) from None
    except RecursionError:
        raise MarkupError("the document is nested too deeply") from None
    path = _find_date(value, ())
    if path is not None:
        tree = _TomlTreeBuilder(text)
        raise MarkupError("JSON has no dates: put the date in quotes", tree.find_range(path)[0])
    return value


def _parse_toml_float(text: str) -> float:
    problem = find_number_problem(text)
    if text.lstrip("+-") in ("inf", "nan"):
        problem = f"{text} is not a finite number"
    if problem:
        raise ValueError(problem)
    return float(text)


def _find_toml_offset(text: str, place: re.Match[str] | None) -> int | None:
    if place is None:
        return None
    if place[1] is None:
        return len(text)
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: int(place[1]) - 1]) + int(place[2]) - 1


def _find_date(value: Any, path: KeyPath) -> KeyPath | None:
    """Return the path of the first date or time of a value, or `None` if it has none."""
    if isinstance(value, datetime.date | datetime.time):
        return path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in entries:
        found = _find_date(item, (*path, step))
        if found is not None:
            return found
    return None


class _TomlTreeBuilder:
    """Builds the tree of a document. A value has the place of its key, because the locations are those of keys."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._locations = find_locations(text)
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def find_range(self, path: KeyPath) -> tuple[int, int]:
        """Return the offsets of a key or of an item of a list."""
        location = self._locations.get(path)
        if location is None:
            return 0, 0
        start = self._line_starts[location.line - 1] + location.column - 1
        name = _TOML_NAME.match(self._text, start)
        return start, name.end() if name is not None else start + 1

    def build(self, value: Any, path: KeyPath) -> JsonNode:
        """Return the tree of the value at a path."""
        start, end = self.find_range(path) if path else (0, 0)
        if isinstance(value, Mapping):
            properties = [
                JsonProperty(key, *self.find_range((*path, key)), self.build(item, (*path, key)))
                for key, item in value.items()
            ]
            return JsonObject(properties, start, end)
        if isinstance(value, list):
            return JsonArray([self.build(item, (*path, at)) for at, item in enumerate(value)], start, end)
        line_end = self._text.find("\n", start)
        return JsonScalar(_to_exact(value), start, max(end, line_end if line_end >= 0 else len(self._text)))
