"""Reads JSON and YAML files that users write: job files, and records such as quotas, by the field names of the API."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from wharf.cli.common.errors import CliError
from wharf.languages.exact_values import InexactValue, load_exact_json
from wharf.cli.common.output import to_plain
from wharf.languages.suggestions import find_nearest_name

if TYPE_CHECKING:
    from wharf.contract.client.calls import Response

R = TypeVar("R", bound=msgspec.Struct)


def is_file_argument(argument: str) -> bool:
    """Return whether an argument is a file (or `-`, standard input) rather than a name."""
    return argument == "-" or Path(argument).suffix in (".json", ".yaml", ".yml")


def read_text(path: str) -> str:
    """Return the text of a file, or of standard input for `-`. Raises CliError."""
    return read_utf8_text(path, "standard input" if path == STDIN else path)


def read_record(path: str, record_type: type[R], **overrides: Any) -> R:
    """Return the record in a JSON or YAML file. Keyword arguments that are not empty replace fields of the file.

    Field names are accepted as the API spells them, in any case, and with underscores. Raises CliError, also if the
    file has a field that the record does not have.
    """
    name, document = read_document(path)
    if not isinstance(document, dict):
        raise CliError(f"{name}: expected a map of fields")
    wire_names = dict(zip(record_type.__struct_fields__, record_type.__struct_encode_fields__, strict=True))
    wire_names_by_spelling = {wire.lower(): wire for wire in wire_names.values()} | {
        field.replace("_", ""): wire for field, wire in wire_names.items()
    }
    fields: dict[str, Any] = {}
    for key, value in document.items():
        wire_name = str(wire_names_by_spelling.get(key.lower().replace("_", ""), key))
        if wire_name in fields:
            raise CliError(f"{name}: the field {wire_name} occurs twice, once as {key}: remove one")
        fields[wire_name] = value
    unknown = [key for key in fields if key not in wire_names.values()]
    if unknown:
        raise CliError(f"{name}: unknown field {unknown[0]}; the fields are {', '.join(wire_names.values())}")
    for field, value in overrides.items():
        if value not in (None, "", ()):
            fields[wire_names[field]] = value
    try:
        record = msgspec.convert(fields, record_type)
    except msgspec.ValidationError as error:
        raise CliError(f"{name}: {error}") from error
    for problem in _iter_unknown_fields(fields, to_plain(record), ""):
        raise CliError(f"{name}: {problem}")
    return record


def read_or_fetch_record(
    name_or_file: str, record_type: type[R], fetch: "Callable[[str], Response[R]]", **overrides: Any
) -> R:
    """Return the record in a file, or the stored record of that name with `overrides` applied.

    If there is no stored record of that name, a new one is returned. Overrides that are None are ignored.
    """
    changes = {field: value for field, value in overrides.items() if value is not None}
    if is_file_argument(name_or_file):
        return read_record(name_or_file, record_type, **changes)
    from wharf.contract.client.errors import NotFound

    try:
        record = fetch(name_or_file).value
    except NotFound:
        record = record_type(name=name_or_file)
    return msgspec.structs.replace(record, **changes)


def _iter_unknown_fields(document: Any, record: Any, path: str) -> Iterator[str]:
    """Yield an error text for each nested field of the file's document that the decoded record does not have.

    msgspec ignores unknown fields, so a misspelled one would be lost without an error.
    """
    if isinstance(document, dict) and isinstance(record, dict):
        for key, value in document.items():
            if key not in record:
                nearest = find_nearest_name(key, record)
                hint = f"did you mean {nearest}?" if nearest else f"the fields are {', '.join(record)}"
                yield f"unknown field {path}{key}; {hint}"
            else:
                yield from _iter_unknown_fields(value, record[key], f"{path}{key}.")
    elif isinstance(document, list) and isinstance(record, list):
        for index, (document_item, record_item) in enumerate(zip(document, record, strict=False)):
            yield from _iter_unknown_fields(document_item, record_item, f"{path[:-1]}[{index}].")


STDIN: Final = "-"
"""The path that stands for standard input."""
MAX_FILE_BYTES: Final = 10_000_000
"""Limit of a file or of standard input; protects memory. Job files are far smaller."""
MAX_VALUES: Final = 1_000_000
"""Limit of the values in a YAML document after aliases are expanded; protects memory from nested aliases."""
LARGE_YAML_CHARS: Final = 1_000_000
"""Above this size, a note says that reading takes seconds."""
YAML_SUFFIXES: Final = (".yaml", ".yml")
_DUPLICATE_KEY: Final = re.compile(r'found duplicate key "([^"]+)"')


def read_document(path: str) -> tuple[str, Any]:
    """Read a JSON or YAML file. Return two values: its name for messages, and its content. Raises CliError."""
    name = "standard input" if path == STDIN else path
    text = read_utf8_text(path, name)
    is_json = text.lstrip().startswith("{") and not path.endswith(YAML_SUFFIXES)
    return name, parse_json(name, text) if is_json else parse_yaml(name, text)


def read_utf8_text(path: str, name: str, *, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file or of standard input, up to `max_bytes`. `name` is for messages. Raises CliError."""
    try:
        if path == STDIN:
            raw = sys.stdin.buffer.read(max_bytes + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise CliError(f"{name}: no such file: check the path") from None
    except OSError as error:
        raise CliError(f"{name}: cannot read the file: {error.strerror}") from error
    if len(raw) > max_bytes:
        raise CliError(f"{name}: the file is larger than {max_bytes // 1_000_000} MB, the limit: check the path")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CliError(f"{name}:{line}: the file is not UTF-8 text") from error


def parse_json(name: str, text: str) -> Any:  # Any JSON value.
    """Return the value of a JSON text.

    Raises CliError with line and column, also for a value that cannot be sent exactly, such as `1e400`. Raises CliError
    for a key that occurs twice in one object.
    """

    def build_object(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return the object with these keys and values. Raises CliError if a key occurs twice."""
        built: dict[str, Any] = {}
        for key, value in entries:
            if key in built:
                raise CliError(f"{name}: duplicate key {key}: remove one")
            built[key] = value
        return built

    try:
        return load_exact_json(text, build_object)
    except InexactValue as problem:
        line, column = _locate(text, problem.position)
        raise CliError(f"{name}:{line}:{column}: {problem}") from None
    except json.JSONDecodeError as error:
        raise CliError(f"{name}:{error.lineno}:{error.colno}: {error.msg[0].lower()}{error.msg[1:]}") from error
    except RecursionError:
        raise CliError(f"{name}: the document is nested too deeply") from None


def parse_yaml(name: str, text: str) -> Any:  # Any YAML value.
    """Return the value of a YAML text that holds one document. Raises CliError with line and column."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    from wharf.languages.yaml_reader import create_yaml_reader

    reader = create_yaml_reader()
    if len(text) > LARGE_YAML_CHARS:
        click.echo(f"note: {name}: reading {len(text) / 1e6:.1f} MB of YAML takes seconds; JSON is faster", err=True)
    try:
        documents = [_copy_document(document, _DocumentBudget()) for document in reader.load_all(text)]
    except MarkedYAMLError as error:
        mark = error.problem_mark
        position = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise CliError(f"{name}{position}: {_format_yaml_problem(error.context, error.problem)}") from error
    except ReaderError as error:
        line, column = _locate(text, error.position)
        raise CliError(
            f"{name}:{line}:{column}: the control character #x{ord(text[error.position]):04x} is not allowed in YAML: "
            f'remove it, or write it in a quoted text as "\\x{ord(text[error.position]):02x}"'
        ) from error
    except (YAMLError, ValueError) as error:
        raise CliError(f"{name}: {str(error).splitlines()[0]}") from error
    except RecursionError:
        raise CliError(f"{name}: the document is nested too deeply") from None
    except _ValueBudgetExceeded:
        raise CliError(
            f"{name}: the document has more than {MAX_VALUES:,} values once its aliases are expanded"
        ) from None
    if not documents:
        raise CliError(f"{name}: the file is empty")
    if len(documents) != 1:
        raise CliError(f"{name}: expected one YAML document, got {len(documents)}")
    return documents[0]


def _locate(text: str, position: int) -> tuple[int, int]:
    """Return line and column of a character of the text, both counted from 1."""
    before = text[:position]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _format_yaml_problem(context: str | None, problem: str | None) -> str:
    """Return the YAML parser's text for an error, but a plainer text for the two most frequent mistakes."""
    if problem is not None and "character '\\t'" in problem:
        return "the line has a tab; indent YAML with spaces"
    if problem is not None and (duplicate := _DUPLICATE_KEY.match(problem)):
        return f"duplicate key {duplicate[1]}: remove one"
    return " ".join(part for part in (context, problem) if part).splitlines()[0]


class _ValueBudgetExceeded(Exception):
    """The document has more than MAX_VALUES values."""


class _DocumentBudget:
    """How many more values a document may have. A few nested aliases can stand for more values than fit in memory."""

    def __init__(self) -> None:
        self.remaining = MAX_VALUES


def _copy_document(value: Any, budget: _DocumentBudget) -> Any:  # Any value of the document.
    """Return a copy of the value, with a value of its own for each alias. Raises _ValueBudgetExceeded."""
    budget.remaining -= 1
    if budget.remaining < 0:
        raise _ValueBudgetExceeded
    if isinstance(value, dict):
        return {key: _copy_document(item, budget) for key, item in value.items()}
    return [_copy_document(item, budget) for item in value] if isinstance(value, list) else value
