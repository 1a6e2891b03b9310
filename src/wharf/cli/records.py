"""Records that people write into a file or on the command line: read from JSON or YAML, by the wire's names."""

import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wharf.cli.failing import Failed

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
        return msgspec.convert(named, kind)
    except msgspec.ValidationError as error:
        raise Failed(f"{name}: {error}") from error
