"""Finds the known name that a user probably meant by an unknown one, for error messages."""

import difflib
from collections.abc import Iterable
from typing import Final

MAX_SUGGESTION_CHARS: Final = 80
"""Longer names get no suggestion: the search for a similar name takes time quadratic in the length."""
MIN_NAME_SIMILARITY: Final = 0.7
"""How similar a known name must be to be suggested: 0 is unrelated, 1 is equal (see `difflib`)."""


def find_nearest_name(name: str, known: Iterable[str], *, min_similarity: float = MIN_NAME_SIMILARITY) -> str | None:
    """Return the known name that is most similar to `name`, or `None` if no name is similar enough.

    Upper and lower case count as equal.
    """
    if len(name) > MAX_SUGGESTION_CHARS:
        return None
    by_lower = {known_name.lower(): known_name for known_name in sorted(known)}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=min_similarity)
    return by_lower[close[0]] if close else None
