"""`${name}` in the texts that make up a login: which role it binds to, and what its token is called."""

import re
from collections.abc import Mapping
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_OPENING: Final = "${"


def names_in(text: str) -> list[str] | None:
    """The names between the braces, in order; None where a brace is not closed."""
    if text.count(_OPENING) != len(found := _PLACEHOLDER.findall(text)):
        return None
    return [name.strip() for name in found]


def fill(text: str, values: Mapping[str, str]) -> str | None:
    """The text with every name replaced by its value; None where one has none."""
    names = names_in(text)
    if names is None or not values.keys() >= set(names):
        return None
    return _PLACEHOLDER.sub(lambda found: values[found[1].strip()], text)
