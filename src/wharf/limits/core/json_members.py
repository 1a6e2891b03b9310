"""Finds members of a JSON body that services read in different ways: repeated ones, and names in other letters.

Of two members with one name, some services use the first and others the last. Go's decoder also ignores case. A limiter that
counts one reading would let a body hide its cost in the other one.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

Members = tuple[tuple[str, Any], ...]
"""The members of a JSON object in their order, also repeated ones. A JSON array is a list, so the two differ."""

MAX_SHOWN_CHARACTERS: Final = 40
"""The longest name in a message; limits the size of replies."""


class AmbiguousMember(ValueError):
    """A member that services read in different ways. The text is sent to the caller."""


def load_members(text: bytes | str) -> Any:
    """Return a JSON value in which each object is a tuple of its members. Raises `ValueError` if the text is not JSON."""
    try:
        return json.loads(text, object_pairs_hook=_keep_members)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _keep_members(members: list[tuple[str, Any]]) -> Members:
    # A function in Python, not `tuple` itself: between its calls, other threads can run while a long body is read.
    return tuple(members)


def check_names(members: Members, names: Iterable[str]) -> None:
    """Raise `AmbiguousMember` if a member with one of these names is repeated, or has the name in other letters."""
    expected = {name.casefold(): name for name in names}
    found: set[str] = set()
    for name, _ in members:
        folded = name.casefold()
        if folded not in expected:
            continue
        if name != expected[folded]:
            raise AmbiguousMember(f"Some services read the member `{name}` as `{expected[folded]}`: leave it out.")
        if folded in found:
            raise AmbiguousMember(f"The member `{name}` is there twice, and services differ in which one they use.")
        found.add(folded)


def check_unique(members: Members) -> None:
    """Raise `AmbiguousMember` if two members have the same name."""
    found: set[str] = set()
    for name, _ in members:
        if name in found:
            shown = name if len(name) <= MAX_SHOWN_CHARACTERS else f"{name[:MAX_SHOWN_CHARACTERS]}…"
            raise AmbiguousMember(f"The member `{shown}` is there twice, and services differ in which one they use.")
        found.add(name)
