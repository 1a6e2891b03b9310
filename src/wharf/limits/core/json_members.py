"""Finds members of a JSON body that services read in different ways: repeated ones, and names in other letters.

Of two members with one name, some services use the first and others the last. Go's decoder also ignores case. A limiter that
counts one reading would let a body hide its cost in the other one.
"""

import re
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

MAX_SHOWN_CHARACTERS: Final = 40
"""The longest name in a message; limits the size of replies."""
_TOKEN: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")([ \t\r\n]*+:)?|[{}\[\]]')
"""A text, which is the name of a member if a colon follows, or a bracket. All else in JSON is skipped."""
_NAME: Final = msgspec.json.Decoder(str)


class AmbiguousMember(ValueError):
    """A member that services read in different ways. The text is sent to the caller."""


def check_members(text: bytes, names: Collection[str], *, unique_in: str = "") -> None:
    """Raise `AmbiguousMember` if services can read one of these members in different ways.

    `text` is valid JSON: an object, or a list of objects, each of which is checked. `unique_in` names a member whose own members
    must not be repeated, in any letters.

    It runs in Python step by step, so that other threads can run while a long body is read.
    """
    expected = {name.casefold(): name for name in names}
    object_depth = 2 if text.lstrip()[:1] == b"[" else 1
    found: set[str] = set()
    found_inside: set[str] = set()
    member = ""
    for depth, name in _iter_names(text, object_depth + bool(unique_in)):
        if name is None:
            (found if depth == object_depth else found_inside).clear()
        elif depth == object_depth:
            member = name
            if (folded := name.casefold()) in expected:
                if name != expected[folded]:
                    raise AmbiguousMember(
                        f"Some services read the member `{name}` as `{expected[folded]}`: leave it out."
                    )
                _add_name(name, found)
        elif depth > object_depth and member == unique_in:
            _add_name(name, found_inside)


def check_unique(text: bytes) -> None:
    """Raise `AmbiguousMember` if the JSON object `text` has two members with the same name."""
    found: set[str] = set()
    for _, name in _iter_names(text, 1):
        if name is not None:
            _add_name(name, found)


def _add_name(name: str, found: set[str]) -> None:
    if name in found:
        shown = name if len(name) <= MAX_SHOWN_CHARACTERS else f"{name[:MAX_SHOWN_CHARACTERS]}…"
        raise AmbiguousMember(f"The member `{shown}` is there twice, and services differ in which one they use.")
    found.add(name)


def _iter_names(text: bytes, most_depth: int) -> Iterator[tuple[int, str | None]]:
    """Yield the depth and the name of each member down to this depth, and `None` as the name where an object or list begins.

    The members of the outermost object have depth 1.
    """
    depth = 0
    for match in _TOKEN.finditer(text):
        written, colon = match.groups()
        if written is None:
            is_begin = match[0] in (b"{", b"[")
            depth += 1 if is_begin else -1
            if is_begin and depth <= most_depth:
                yield depth, None
        elif colon is not None and depth <= most_depth:
            yield depth, _NAME.decode(written)
