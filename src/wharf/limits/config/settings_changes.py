"""Which keys differ between two versions of a settings file."""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any


def list_changed_keys(before: str, after: str) -> list[str]:
    """Return the keys whose values differ in two texts of a settings file, such as `[gateway] listen`, in order.

    An entry in a list of tables has no name, so such a list is one key. Raises `tomllib.TOMLDecodeError`.
    """
    old, new = (dict(_iter_values(tomllib.loads(text))) for text in (before, after))
    return sorted(key for key in old.keys() | new.keys() if key not in old or key not in new or old[key] != new[key])


def _iter_values(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each key of a document with its value."""
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from ((f"[{name}] {key}", inner) for key, inner in value.items())
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"[[{name}]]", value
        else:
            yield name, value
