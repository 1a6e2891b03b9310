"""Characters as users see them: grapheme clusters (Unicode annex 29), such as a flag or an emoji with its skin color."""

from typing import Final

import regex  # type: ignore[import-untyped]  # the library ships no types

# Never pass a user's pattern to this library: matching could take exponential time. `\X` takes linear time.
_CLUSTER: Final = regex.compile(r"\X")


def split_graphemes(text: str) -> list[str]:
    """Return the grapheme clusters of a text."""
    if text.isascii() and "\r" not in text:
        return list(text)
    return list(_CLUSTER.findall(text))


def count_graphemes(text: str) -> int:
    """Return the number of grapheme clusters of a text."""
    if text.isascii() and "\r" not in text:
        return len(text)
    return sum(1 for _ in _CLUSTER.finditer(text))
