"""Who did something: the token of a person or of a program, by its name where that is known."""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.web.rendering import build_link

Names = Mapping[str, str]
"""Names of tokens by their accessor IDs."""
ANONYMOUS: Final = "token:acls-disabled"
"""Stands for everybody who changes something while access control is off."""


class Author(msgspec.Struct, frozen=True):
    """Who did something."""

    text: str
    url: str
    """The token in the list; empty if the person may not read tokens."""


def name_author(accessor_id: str, names: Names) -> Author | None:
    """Return who did something, such as "ci" or "token 1a2b3c4d"; `None` if that is not known."""
    if accessor_id in ("", ANONYMOUS):
        return None
    kind, _, identifier = accessor_id.rpartition(":")
    name = names.get(identifier, "")
    url = build_link("access", "tokens", prefix=identifier[:8]) if name else ""
    return Author(name or f"{kind or 'token'} {identifier[:8]}", url)
