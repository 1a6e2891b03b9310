"""Small JSON files that this program has written for itself: read them, or say what is wrong and how to go on."""

from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


class DamagedFile(Exception):
    """A file cannot be read or has the wrong content. The text names the file, the reason and what the operator can do."""


def read_stored_json(file: Path, type: type[T], *, remedy: str) -> T | None:
    """Return the content of the file; `None` if it does not exist.

    Raises `DamagedFile`, whose text ends in `remedy`, if it cannot be read or is not the JSON of this type.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=type)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFile(f"the file {file} cannot be read ({error.strerror}): {remedy}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedFile(f"the file {file} is damaged ({error}): {remedy}") from error
