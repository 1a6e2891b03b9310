"""Patterns that users write: RE2, so that none takes more than linear time, and bounded in size.

The only place that knows the library. `re` is never given a caller's pattern.
"""

import re
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # the library ships no types

LENGTH_MAX: Final = 2_000
MEMORY_MAX_BYTES: Final = 1 << 20
# Of the replacement, never of the text: this pattern is ours.
_GROUP: Final = re.compile(r"\$\$|\$(\w+)|\$\{(\w+)\}")


class PatternError(ValueError):
    """The text is not a pattern, or too large a one."""


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_compiled",)

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise PatternError(f"the pattern is longer than {LENGTH_MAX} characters")
        options = re2.Options()
        options.max_mem = MEMORY_MAX_BYTES
        options.log_errors = False
        try:
            self._compiled = re2.compile(text, options)
        except re2.error as error:
            raise PatternError(_reason(error)) from None

    def matches(self, text: str) -> bool:
        """Whether it is found anywhere in the text."""
        return self._compiled.search(text) is not None

    def replaced(self, text: str, by: str) -> str:
        """The text with what is found put otherwise; `$1` and `${name}` stand for the pattern's groups, `$$` for $."""
        count = self._compiled.groups
        names = self._compiled.groupindex

        def group_of(found: Any, name: str) -> str:  # The library's match has no type.
            number = int(name) if name.isdecimal() else names.get(name, -1)
            return (found.group(number) or "") if 0 <= number <= count else ""

        def put(found: Any) -> str:
            return _GROUP.sub(lambda one: "$" if one[0] == "$$" else group_of(found, one[1] or one[2]), by)

        return str(self._compiled.sub(put, text))


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else "not understood"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


@lru_cache(maxsize=1024)
def pattern(text: str) -> Pattern:
    """The pattern of that text, compiled once; a PatternError says what is wrong with it."""
    return Pattern(text)
