"""Finds the known name that a user probably meant by an unknown one, for error messages."""

import difflib
from collections.abc import Collection, Iterable
from typing import Final

MAX_SUGGESTION_CHARS: Final = 80
"""Longer names get no suggestion: the search for a similar name takes time quadratic in the length."""
MAX_COMPARED_NAMES: Final = 2_000
"""Of more known names, only those that differ in case or in two swapped letters are found: 1,000 comparisons take 3 ms."""
MAX_COMPARISONS: Final = 100_000
"""The comparisons of all searches for one file. They take about 0.3 s."""
MIN_NAME_SIMILARITY: Final = 0.7
"""How similar a known name must be to be suggested: 0 is unrelated, 1 is equal (see `difflib`)."""


def find_nearest_name(name: str, known: Iterable[str], *, min_similarity: float = MIN_NAME_SIMILARITY) -> str | None:
    """Return the known name that is most similar to `name`, or `None` if no name is similar enough.

    Upper and lower case count as equal.
    """
    if len(name) > MAX_SUGGESTION_CHARS:
        return None
    # Two letters in the wrong order make a short name very different, as `evn` for `env`.
    swapped = [name[:at] + name[at + 1 : at + 2] + name[at : at + 1] + name[at + 2 :] for at in range(len(name) - 1)]
    spellings = [each.lower() for each in (name, *swapped)]
    names = tuple(known)
    if len(names) > MAX_COMPARED_NAMES:
        all_spellings = frozenset(spellings)
        return min((each for each in names if each.lower() in all_spellings), default=None)
    by_lower = {known_name.lower(): known_name for known_name in sorted(names)}
    for spelling in spellings:
        if spelling in by_lower:
            return by_lower[spelling]
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=min_similarity)
    return by_lower[close[0]] if close else None


class NameSearch:
    """The searches for similar names for one file, which may have any number of unknown names.

    After `MAX_COMPARISONS` comparisons it finds no further names.
    """

    def __init__(self) -> None:
        self._remaining = MAX_COMPARISONS

    def find_nearest_name(
        self, name: str, known: Collection[str], *, min_similarity: float = MIN_NAME_SIMILARITY
    ) -> str | None:
        """Return the known name that is most similar to `name`, or `None`."""
        self._remaining -= len(known)
        return find_nearest_name(name, known, min_similarity=min_similarity) if self._remaining >= 0 else None
