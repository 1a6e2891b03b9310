"""Regular expressions that callers write: RE2, so that none takes more than linear time, and bounded in size.

The only place of this package that knows the library; `re` is never given a caller's pattern.
"""

from collections.abc import Callable
from typing import Final

import re2  # type: ignore[import-untyped]  # the library ships no types

LENGTH_MAX: Final = 2_000
MEMORY_MAX_BYTES: Final = 1 << 19
# A pattern of these only is the text itself.
_SPECIAL: Final = frozenset("\\.+*?()|[]{}^$")

Search = Callable[[str], bool]


class NoPattern(ValueError):
    """The text is not a regular expression, or too large a one."""


def compile_search(pattern: str) -> Search:
    """Whether the pattern is found anywhere in a text. Patterns that are plain text need no machine."""
    search_bytes = compile_bytes_search(pattern)
    begins, ends = pattern.startswith("^"), pattern.endswith("$")
    inner = pattern[1 if begins else 0 : len(pattern) - 1 if ends else len(pattern)]
    if not _SPECIAL.isdisjoint(inner) or (begins and ends and len(pattern) < 2):
        # Whatever a text holds, it is searched: what is no Unicode matches only what asks for no character.
        return lambda text: search_bytes(text.encode("utf-8", "surrogatepass"))
    if begins and ends:
        return lambda text: text == inner
    if begins:
        return lambda text: text.startswith(inner)
    if ends:
        return lambda text: text.endswith(inner)
    return lambda text: inner in text


def compile_bytes_search(pattern: str) -> Callable[[bytes], bool]:
    if len(pattern) > LENGTH_MAX:
        raise NoPattern(f"longer than {LENGTH_MAX} characters")
    options = re2.Options()
    options.max_mem = MEMORY_MAX_BYTES
    options.log_errors = False
    options.never_capture = True  # Only whether it is found is asked, and groups would cost time.
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise NoPattern(_reason(error)) from None
    # The library's own `search` makes match objects and offsets that nobody reads here, at five times the cost.
    match_at, anywhere, nowhere = compiled._regexp.Match, re2._Anchor.UNANCHORED, re2._NULL_SPAN

    def search(data: bytes) -> bool:
        return bool(match_at(anywhere, data, 0, len(data))[0] != nowhere)

    return search


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else "not understood"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
