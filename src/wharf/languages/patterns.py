"""Regular expressions that users write, compiled with RE2: matching takes linear time, and their size is limited.

No other module imports the RE2 library. Never pass a user's pattern to `re`: matching could take exponential time.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # the library ships no types

MAX_PATTERN_CHARS: Final = 2_000
"""The length of a pattern: limits the time of compiling it."""
MAX_PATTERN_MEMORY_BYTES: Final = 1 << 20
"""The memory that RE2 may use for one compiled pattern of a job or template."""
# Finds references to groups in a replacement. `re` is safe here, because the pattern is not a user's.
_GROUP_REFERENCE: Final = re.compile(r"\$\$|\$(\w+)|\$\{(\w+)\}")


class PatternError(ValueError):
    """The text is not a valid pattern, or the pattern is too large."""


class Re2Pattern:
    """A compiled pattern. Raises `PatternError` if the text is not a valid pattern or is too large."""

    __slots__ = ("_compiled",)

    def __init__(self, text: str) -> None:
        self._compiled = _compile_re2(text, max_memory_bytes=MAX_PATTERN_MEMORY_BYTES)

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in the text."""
        return self._compiled.search(text) is not None

    def replace(self, text: str, replacement: str) -> str:
        """Return the text with every match replaced.

        In the replacement `$1` and `${name}` stand for groups of the match, and `$$` for a dollar sign. A group that the
        pattern does not have is empty.
        """
        count = self._compiled.groups
        names = self._compiled.groupindex

        def get_group(match: Any, name: str) -> str:  # The library declares no types.
            """Return the text of a group, by name or number. Return "" if the group does not exist or did not match."""
            number = int(name) if name.isdecimal() else names.get(name, -1)
            return (match.group(number) or "") if 0 <= number <= count else ""

        def expand_replacement(match: Any) -> str:
            """Return the replacement with the groups of one match inserted."""
            return _GROUP_REFERENCE.sub(
                lambda reference: "$" if reference[0] == "$$" else get_group(match, reference[1] or reference[2]),
                replacement,
            )

        return str(self._compiled.sub(expand_replacement, text))


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> Re2Pattern:
    """Return the compiled pattern, from a cache if possible. Raises `PatternError`."""
    return Re2Pattern(text)


MAX_SEARCH_MEMORY_BYTES: Final = 1 << 19
"""The memory that RE2 may use for one compiled pattern of a filter."""
# A pattern without any of these characters matches only its own text.
_SPECIAL_CHARACTERS: Final = frozenset("\\.+*?()|[]{}^$")

SearchFunction = Callable[[str], bool]
"""Takes a text; returns whether the pattern matches anywhere in it."""


def compile_search(pattern: str) -> SearchFunction:
    """Return a function that searches texts for the pattern. Raises `PatternError`.

    Plain text, with or without `^` and `$`, is compared with string methods, which are faster than RE2.
    """
    search_bytes = compile_bytes_search(pattern)
    is_anchored_start, is_anchored_end = pattern.startswith("^"), pattern.endswith("$")
    plain_text = pattern[1 if is_anchored_start else 0 : len(pattern) - 1 if is_anchored_end else len(pattern)]
    if not _SPECIAL_CHARACTERS.isdisjoint(plain_text) or (is_anchored_start and is_anchored_end and len(pattern) < 2):
        # Lone surrogates are not valid UTF-8. Passing them on lets the search run; they match no character class.
        return lambda text: search_bytes(text.encode("utf-8", "surrogatepass"))
    if is_anchored_start and is_anchored_end:
        return lambda text: text == plain_text
    if is_anchored_start:
        return lambda text: text.startswith(plain_text)
    if is_anchored_end:
        return lambda text: text.endswith(plain_text)
    return lambda text: plain_text in text


def compile_bytes_search(pattern: str) -> Callable[[bytes], bool]:
    """Return a function that searches bytes for the pattern. Raises `PatternError`."""
    # Only whether it matches is needed; capturing groups would take time.
    compiled = _compile_re2(pattern, max_memory_bytes=MAX_SEARCH_MEMORY_BYTES, captures_groups=False)
    # The library's own `search` builds match objects that are not needed here, and takes five times as long.
    match_span, unanchored, no_match = compiled._regexp.Match, re2._Anchor.UNANCHORED, re2._NULL_SPAN

    def search(data: bytes) -> bool:
        return bool(match_span(unanchored, data, 0, len(data))[0] != no_match)

    return search


def _compile_re2(pattern: str, *, max_memory_bytes: int, captures_groups: bool = True) -> Any:
    """Return a compiled pattern of the RE2 library, which declares no types. Raises `PatternError`."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(f"the pattern is longer than {MAX_PATTERN_CHARS} characters")
    options = re2.Options()
    options.max_mem = max_memory_bytes
    options.log_errors = False
    options.never_capture = not captures_groups
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "not understood"
        raise PatternError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
