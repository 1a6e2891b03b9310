"""Records that people write into a file or on the command line: read from JSON or YAML, by the wire's names."""

import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from wharf.cli.common.errors import CliError
from wharf.cli.common.output import to_plain

if TYPE_CHECKING:
    from wharf.contract.client.calls import Response

R = TypeVar("R", bound=msgspec.Struct)


def is_file_argument(argument: str) -> bool:
    """Whether a file is meant, and not a name."""
    return argument == "-" or Path(argument).suffix in (".json", ".yaml", ".yml")


def read_text(path: str) -> str:
    """Raises `Failed`."""
    if path == "-":
        return sys.stdin.read()
    try:
        return Path(path).read_text("utf-8")
    except FileNotFoundError:
        raise CliError(f"{path}: there is no such file: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: it cannot be read: {error}") from error


def read_record(path: str, record_type: type[R], **given: Any) -> R:
    """The record in a file, with what options say in its place. Raises `Failed`."""
    name, document = read_document(path)
    if not isinstance(document, dict):
        raise CliError(f"{name}: expected a map of its fields")
    known = dict(zip(record_type.__struct_fields__, record_type.__struct_encode_fields__, strict=True))
    lower = {wire.lower(): wire for wire in known.values()} | {
        field.replace("_", ""): wire for field, wire in known.items()
    }
    named = {lower.get(key.lower().replace("_", ""), key): value for key, value in document.items()}
    unknown = [key for key in named if key not in known.values()]
    if unknown:
        raise CliError(f"{name}: there is no field {unknown[0]}: there are {', '.join(known.values())}")
    for field, value in given.items():
        if value not in (None, "", ()):
            named[known[field]] = value
    try:
        record = msgspec.convert(named, record_type)
    except msgspec.ValidationError as error:
        raise CliError(f"{name}: {error}") from error
    for told in _passed_over(named, to_plain(record), ""):
        raise CliError(f"{name}: {told}")
    return record


def read_or_fetch_record(
    name_or_file: str, record_type: type[R], fetch: "Callable[[str], Response[R]]", **given: Any
) -> R:
    """The record in a file, or the one of that name as it stands or begins, with what options say in its place."""
    changes = {field: value for field, value in given.items() if value is not None}
    if is_file_argument(name_or_file):
        return read_record(name_or_file, record_type, **changes)
    from wharf.contract.client.errors import NotFound

    try:
        record = fetch(name_or_file).value
    except NotFound:
        record = record_type(name=name_or_file)
    return msgspec.structs.replace(record, **changes)


def _passed_over(given: Any, kept: Any, path: str) -> Iterator[str]:
    """What stands in the file and is nowhere in the record: passed over in silence it would be missed."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key not in kept:
                near = difflib.get_close_matches(key, list(kept), n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(kept)}"
                yield f"there is no field {path}{key}: {hint}"
            else:
                yield from _passed_over(value, kept[key], f"{path}{key}.")
    elif isinstance(given, list) and isinstance(kept, list):
        for at, (one, other) in enumerate(zip(given, kept, strict=False)):
            yield from _passed_over(one, other, f"{path[:-1]}[{at}].")


STDIN: Final = "-"


MAX_FILE_BYTES: Final = 10_000_000


MAX_VALUES: Final = 1_000_000


YAML_SUFFIXES: Final = (".yaml", ".yml")


_TWICE: Final = re.compile(r'found duplicate key "([^"]+)"')


def read_document(path: str) -> tuple[str, Any]:
    """A name for any file of JSON or YAML, and what stands in it. Raises `Failed`."""
    name = "standard input" if path == STDIN else path
    text = _text(path, name)
    is_json = text.lstrip().startswith("{") and not path.endswith(YAML_SUFFIXES)
    return name, _json(name, text) if is_json else _yaml(name, text)


def _text(place: str, name: str) -> str:
    try:
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if place == STDIN else Path(place).read_bytes()
    except FileNotFoundError:
        raise CliError(f"{name}: there is no such file: check the path") from None
    except OSError as error:
        raise CliError(f"{name}: it cannot be read: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise CliError(f"{name}: it is larger than {MAX_FILE_BYTES // 1_000_000} MB, which no job is")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CliError(f"{name}:{line}: it is no UTF-8 text") from error


def _json(name: str, text: str) -> Any:  # Whatever stands there.
    def unique(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in entries:
            if key in found:
                raise CliError(f"{name}: {key} stands twice in one object: keep one")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise CliError(f"{name}:{error.lineno}:{error.colno}: {error.msg[0].lower()}{error.msg[1:]}") from error
    except RecursionError:
        raise CliError(f"{name}: it is nested deeper than any job") from None


def _yaml(name: str, text: str) -> Any:  # Whatever stands there.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 2)  # In which `on` and `no` are words.
    try:
        documents = [_with_text_keys(document, _Room()) for document in reader.load_all(text)]
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise CliError(f"{name}{place}: {_said_of_yaml(error.context, error.problem)}") from error
    except (YAMLError, ValueError) as error:
        raise CliError(f"{name}: {str(error).splitlines()[0]}") from error
    except RecursionError:
        raise CliError(f"{name}: it is nested deeper than any job") from None
    except _TooMuch:
        raise CliError(f"{name}: what its aliases stand for is more than any job is") from None
    if not documents:
        raise CliError(f"{name}: it is empty")
    if len(documents) != 1:
        raise CliError(f"{name}: expected one job, and there are {len(documents)} documents")
    return documents[0]


def _said_of_yaml(context: str | None, problem: str | None) -> str:
    """As the reader of YAML says it, but for the two mistakes that people make most."""
    if problem is not None and "character '\\t'" in problem:
        return "a tab; YAML is indented by spaces alone"
    if problem is not None and (twice := _TWICE.match(problem)):
        return f"{twice[1]} stands twice in one object: keep one"
    return " ".join(part for part in (context, problem) if part).splitlines()[0]


class _TooMuch(Exception):
    pass


class _Room:
    """For so many values there is room: a few aliases of aliases can stand for more than any memory holds."""

    def __init__(self) -> None:
        self.left = MAX_VALUES


def _with_text_keys(value: Any, room: _Room) -> Any:  # As JSON has them.
    room.left -= 1
    if room.left < 0:
        raise _TooMuch
    if isinstance(value, dict):
        return {str(key): _with_text_keys(one, room) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_text_keys(one, room) for one in value]
    return value.isoformat() if hasattr(value, "isoformat") else value
