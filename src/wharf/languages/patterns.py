"""Patterns that users write: RE2, so that none takes more than linear time, and bounded in size.

The only place that knows the library. `re` is never given a caller's pattern.

Regular expressions that callers write: RE2, so that none takes more than linear time, and bounded in size.

The only place of this package that knows the library; `re` is never given a caller's pattern.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # the library ships no types

MAX_PATTERN_CHARS: Final = 2_000
MAX_PATTERN_MEMORY_BYTES: Final = 1 << 20
# Of the replacement, never of the text: this pattern is ours.
_GROUP: Final = re.compile(r"\$\$|\$(\w+)|\$\{(\w+)\}")


class PatternError(ValueError):
    """The text is not a pattern, or too large a one."""


class Re2Pattern:
    """A compiled pattern."""

    __slots__ = ("_compiled",)

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN_CHARS:
            raise PatternError(f"the pattern is longer than {MAX_PATTERN_CHARS} characters")
        options = re2.Options()
        options.max_mem = MAX_PATTERN_MEMORY_BYTES
        options.log_errors = False
        try:
            self._compiled = re2.compile(text, options)
        except re2.error as error:
            raise PatternError(_reason(error)) from None

    def matches(self, text: str) -> bool:
        """Whether it is found anywhere in the text."""
        return self._compiled.search(text) is not None

    def replace(self, text: str, replacement: str) -> str:
        """The text with what is found put otherwise; `$1` and `${name}` stand for the pattern's groups, `$$` for $."""
        count = self._compiled.groups
        names = self._compiled.groupindex

        def group_of(found: Any, name: str) -> str:  # The library's match has no type.
            number = int(name) if name.isdecimal() else names.get(name, -1)
            return (found.group(number) or "") if 0 <= number <= count else ""

        def put(found: Any) -> str:
            return _GROUP.sub(lambda one: "$" if one[0] == "$$" else group_of(found, one[1] or one[2]), replacement)

        return str(self._compiled.sub(put, text))


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else "not understood"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> Re2Pattern:
    """The pattern of that text, compiled once; a PatternError says what is wrong with it."""
    return Re2Pattern(text)


MAX_SEARCH_PATTERN_CHARS: Final = 2_000
MAX_SEARCH_MEMORY_BYTES: Final = 1 << 19
# A pattern of these only is the text itself.
_SPECIAL: Final = frozenset("\\.+*?()|[]{}^$")

SearchFunction = Callable[[str], bool]


class SearchPatternError(ValueError):
    """The text is not a regular expression, or too large a one."""


def compile_search(pattern: str) -> SearchFunction:
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
    if len(pattern) > MAX_SEARCH_PATTERN_CHARS:
        raise SearchPatternError(f"longer than {MAX_SEARCH_PATTERN_CHARS} characters")
    options = re2.Options()
    options.max_mem = MAX_SEARCH_MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True  # Only whether it is found is asked, and groups would cost time.
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise SearchPatternError(_search_error_reason(error)) from None
    # The library's own `search` makes match objects and offsets that nobody reads here, at five times the cost.
    match_at, anywhere, nowhere = compiled._regexp.Match, re2._Anchor.UNANCHORED, re2._NULL_SPAN

    def search(data: bytes) -> bool:
        return bool(match_at(anywhere, data, 0, len(data))[0] != nowhere)

    return search


def _search_error_reason(error: Exception) -> str:
    reason = error.args[0] if error.args else "not understood"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
