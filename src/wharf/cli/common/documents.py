"""Reads JSON and YAML files that users write: job files, and records such as quotas, by the field names of the API."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from wharf.cli.common.errors import CliError
from wharf.cli.common.output import to_plain
from wharf.languages import markup
from wharf.languages.markup_errors import MarkupError
from wharf.languages.source_locations import find_location
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
YAML_SUFFIXES: Final = (".yaml", ".yml")


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


def parse_json(name: str, text: str, *, max_values: int | None = markup.MAX_JSON_VALUES) -> Any:  # Any JSON value.
    """Return the value of a JSON text. `max_values` is `None` for a text that a program has written.

    Raises CliError with line and column, also for a value that cannot be sent exactly, such as `1e400`. Raises CliError
    for a key that occurs twice in one object.
    """
    with _locate_markup_errors(name, text):
        return markup.parse_json(text, max_values=max_values)


def parse_yaml(name: str, text: str) -> Any:  # Any YAML value.
    """Return the value of a YAML text that holds one document. Raises CliError with line and column."""
    with _locate_markup_errors(name, text):
        return markup.parse_yaml(text).value


@contextmanager
def _locate_markup_errors(name: str, text: str) -> Iterator[None]:
    """In the block, turn errors of the document into CliError with the name of the file, line and column."""
    try:
        yield
    except MarkupError as error:
        place = ""
        if error.start is not None:
            location = find_location(text, error.start)
            place = f":{location.line}:{location.column}"
        raise CliError(f"{name}{place}: {error}") from error
