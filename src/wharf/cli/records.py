"""Records that people write into a file or on the command line: read from JSON or YAML, by the wire's names."""

import difflib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from wharf.cli.failing import Failed
from wharf.cli.records_shown import plain

if TYPE_CHECKING:
    from wharf.client.calls import Answer

R = TypeVar("R", bound=msgspec.Struct)


def read_document(place: str) -> tuple[str, Any]:
    """A name for it, and what stands there. `-` is what is piped in. Raises `Failed`."""
    from wharf.cli.job_files import read_document as read

    return read(place)


def is_file(given: str) -> bool:
    """Whether a file is meant, and not a name."""
    return given == "-" or Path(given).suffix in (".json", ".yaml", ".yml")


def read_text(place: str) -> str:
    """Raises `Failed`."""
    if place == "-":
        return sys.stdin.read()
    try:
        return Path(place).read_text("utf-8")
    except FileNotFoundError:
        raise Failed(f"{place}: there is no such file: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{place}: it cannot be read: {error}") from error


def record_in(place: str, kind: type[R], **given: Any) -> R:
    """The record in a file, with what options say in its place. Raises `Failed`."""
    name, document = read_document(place)
    if not isinstance(document, dict):
        raise Failed(f"{name}: expected a map of its fields")
    known = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    lower = {wire.lower(): wire for wire in known.values()} | {
        field.replace("_", ""): wire for field, wire in known.items()
    }
    named = {lower.get(key.lower().replace("_", ""), key): value for key, value in document.items()}
    unknown = [key for key in named if key not in known.values()]
    if unknown:
        raise Failed(f"{name}: there is no field {unknown[0]}: there are {', '.join(known.values())}")
    for field, value in given.items():
        if value not in (None, "", ()):
            named[known[field]] = value
    try:
        record = msgspec.convert(named, kind)
    except msgspec.ValidationError as error:
        raise Failed(f"{name}: {error}") from error
    for told in _passed_over(named, plain(record), ""):
        raise Failed(f"{name}: {told}")
    return record


def record_changed(name_or_file: str, kind: type[R], read: "Callable[[str], Answer[R]]", **given: Any) -> R:
    """The record in a file, or the one of that name as it stands or begins, with what options say in its place."""
    changes = {field: value for field, value in given.items() if value is not None}
    if is_file(name_or_file):
        return record_in(name_or_file, kind, **changes)
    from wharf.client.errors import NotFound

    try:
        record = read(name_or_file).value
    except NotFound:
        record = kind(name=name_or_file)
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
