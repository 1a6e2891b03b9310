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
    swapped = (name[:at] + name[at + 1 : at + 2] + name[at : at + 1] + name[at + 2 :] for at in range(len(name) - 1))
    for each in (
        name,
        *swapped,
    ):  # Two letters in the wrong order make a short name very different, as `evn` for `env`.
        if each.lower() in by_lower:
            return by_lower[each.lower()]
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=min_similarity)
    return by_lower[close[0]] if close else None
