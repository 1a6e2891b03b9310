"""Regular expressions that users write, compiled with RE2: matching takes linear time, and their cost is limited.

The worst time of a match is proportional to the instructions of the compiled pattern times the bytes of the text. A new
pattern whose program is too large is refused. Callers that match long texts limit the product.

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
MAX_PATTERN_INSTRUCTIONS: Final = 2_500
"""The instructions of one compiled pattern. Limits the worst time of a match, for each byte of the text."""
MAX_PATTERN_TRANSITIONS: Final = 5_000
"""The transitions between the instructions of one pattern. They multiply if optional parts are repeated, as in
`(a?){300}`. RE2 then leaves its fast algorithm, and each byte of the text takes as long as a thousand usually do."""
MAX_UNICODE_CLASSES: Final = 10
"""The Unicode classes, such as `\\p{L}`, of one pattern. Each takes a tenth of a millisecond to parse."""
MAX_REPETITIONS: Final = 1_000
"""The sum of the numbers of all repetitions, such as `{0,20}`, of one pattern. More take up to a second to compile."""
MATCH_COST_SHIFT: Final = 8
"""The cost of a match in steps is instructions times bytes, shifted right by this number. A step takes up to 2 µs."""
MAX_MATCH_STEPS: Final = 10_000
"""The steps of one match of a job's constraint. A longer text does not match. Protects the loop of the scheduler."""
# Finds references to groups in a replacement. `re` is safe here, because the pattern is not a user's.
_GROUP_REFERENCE: Final = re.compile(r"\$\$|\$(\w+)|\$\{(\w+)\}")
_UNICODE_CLASS: Final = re.compile(r"\\[pP]")
_REPETITION: Final = re.compile(r"\{(\d{1,4})(?:,(\d{0,4}))?\}")


class PatternError(ValueError):
    """The text is not a valid pattern, or the pattern is too large."""


class Re2Pattern:
    """A compiled pattern. Raises `PatternError` if the text is not a valid pattern or needs too much memory."""

    __slots__ = ("_compiled", "_instructions")

    def __init__(self, text: str) -> None:
        self._compiled = _compile_re2(text, max_memory_bytes=MAX_PATTERN_MEMORY_BYTES)
        self._instructions: int = self._compiled._regexp.ProgramSize()

    def check_cost(self) -> None:
        """Raise `PatternError` if a match could take too long."""
        _check_cost(self._compiled)

    def matches_cheaply(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in the text. False if that could take over `MAX_MATCH_STEPS`."""
        steps = count_match_steps(self._instructions, len(text) if text.isascii() else MAX_UTF8_BYTES * len(text))
        return steps <= MAX_MATCH_STEPS and self.matches(text)

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in the text."""
        return self._compiled.search(text) is not None

    def count_steps(self, byte_count: int) -> int:
        """Return the cost of one search in steps, each of which takes up to 2 µs in the worst case."""
        return count_match_steps(self._instructions, byte_count)

    def replace(self, text: str, replacement: str, *, count_chars: Callable[[int], None] | None = None) -> str:
        """Return the text with every match replaced.

        In the replacement `$1` and `${name}` stand for groups of the match, and `$$` for a dollar sign. A group that the
        pattern does not have is empty. `count_chars` gets the length of each replacement, and may raise to stop.
        """
        count = self._compiled.groups
        names = self._compiled.groupindex

        def get_group(match: Any, name: str) -> str:  # The library declares no types.
            """Return the text of a group, by name or number. Return "" if the group does not exist or did not match."""
            number = int(name) if name.isdecimal() else names.get(name, -1)
            return (match.group(number) or "") if 0 <= number <= count else ""

        def expand_replacement(match: Any) -> str:
            """Return the replacement with the groups of one match inserted."""
            expanded = _GROUP_REFERENCE.sub(
                lambda reference: "$" if reference[0] == "$$" else get_group(match, reference[1] or reference[2]),
                replacement,
            )
            if count_chars is not None:
                count_chars(len(expanded))
            return expanded

        return str(self._compiled.sub(expand_replacement, text))


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> Re2Pattern:
    """Return the compiled pattern, from a cache if possible. Raises `PatternError`, also if a match could take too long."""
    _check_text(text)
    pattern = Re2Pattern(text)
    pattern.check_cost()
    return pattern


@lru_cache(maxsize=1024)
def compile_stored_pattern(text: str) -> Re2Pattern:
    """Return the compiled pattern of a stored job, from a cache if possible. Raises `PatternError`.

    The cost of a match is not limited: the job may have been accepted by a version without these limits.
    """
    return Re2Pattern(text)


MAX_UTF8_BYTES: Final = 4
"""The bytes of one character in UTF-8."""
MAX_SEARCH_MEMORY_BYTES: Final = 1 << 19
"""The memory that RE2 may use for one compiled pattern of a filter."""
# A pattern without any of these characters matches only its own text.
_SPECIAL_CHARACTERS: Final = frozenset("\\.+*?()|[]{}^$")

UNICODE_CLASS_COMPILE_STEPS: Final = 8_000
"""The cost of compiling a pattern with Unicode classes: up to 10 ms if they are repeated."""
COMPILE_STEPS: Final = 500
"""The cost of compiling a short pattern."""

SearchFunction = Callable[[str], bool]
"""Takes a text; returns whether the pattern matches anywhere in it."""


def count_match_steps(instructions: int, byte_count: int) -> int:
    """Return the cost of one match in steps, each of which takes up to 2 µs in the worst case."""
    return instructions * byte_count >> MATCH_COST_SHIFT


def count_compile_steps(pattern: str) -> int:
    """Return the cost of compiling a pattern, in steps of about a microsecond, also if it is refused then."""
    repetitions = sum(int(last or first) for first, last in _REPETITION.findall(pattern))
    classes = UNICODE_CLASS_COMPILE_STEPS if _UNICODE_CLASS.search(pattern) else 0
    return COMPILE_STEPS + classes + len(pattern) + 3 * min(repetitions, MAX_REPETITIONS)


def compile_search(pattern: str) -> tuple[SearchFunction, int]:
    """Return a function that searches texts for the pattern, and the pattern's instructions. Raises `PatternError`.

    Plain text, with or without `^` and `$`, is compared with string methods, which are faster than RE2. It counts as no
    instructions.
    """
    search_bytes, instructions = compile_bytes_search(pattern)
    is_anchored_start, is_anchored_end = pattern.startswith("^"), pattern.endswith("$")
    plain_text = pattern[1 if is_anchored_start else 0 : len(pattern) - 1 if is_anchored_end else len(pattern)]
    if not _SPECIAL_CHARACTERS.isdisjoint(plain_text) or (is_anchored_start and is_anchored_end and len(pattern) < 2):
        # Lone surrogates are not valid UTF-8. Passing them on lets the search run; they match no character class.
        return lambda text: search_bytes(text.encode("utf-8", "surrogatepass")), instructions
    if is_anchored_start and is_anchored_end:
        return lambda text: text == plain_text, 0
    if is_anchored_start:
        return lambda text: text.startswith(plain_text), 0
    if is_anchored_end:
        return lambda text: text.endswith(plain_text), 0
    return lambda text: plain_text in text, 0


def compile_bytes_search(pattern: str) -> tuple[Callable[[bytes], bool], int]:
    """Return a function that searches bytes for the pattern, and the pattern's instructions. Raises `PatternError`."""
    _check_text(pattern)
    # Only whether it matches is needed; capturing groups would take time.
    compiled = _compile_re2(pattern, max_memory_bytes=MAX_SEARCH_MEMORY_BYTES, captures_groups=False)
    _check_cost(compiled)
    # The library's own `search` builds match objects that are not needed here, and takes five times as long.
    match_span, unanchored, no_match = compiled._regexp.Match, re2._Anchor.UNANCHORED, re2._NULL_SPAN

    def search(data: bytes) -> bool:
        return bool(match_span(unanchored, data, 0, len(data))[0] != no_match)

    return search, compiled._regexp.ProgramSize()


def _check_text(pattern: str) -> None:
    """Raise `PatternError` if the pattern could take too long to compile."""
    if len(_UNICODE_CLASS.findall(pattern)) > MAX_UNICODE_CLASSES:
        raise PatternError(f"the pattern has more than {MAX_UNICODE_CLASSES} Unicode classes (\\p or \\P)")
    repetitions = sum(int(last or first) for first, last in _REPETITION.findall(pattern))
    if repetitions > MAX_REPETITIONS:
        raise PatternError(f"the numbers of all repetitions add up to {repetitions:,}, more than {MAX_REPETITIONS:,}")


def _check_cost(compiled: Any) -> None:
    """Raise `PatternError` if the program of a compiled pattern is so large that a match could take too long."""
    instructions: int = compiled._regexp.ProgramSize()
    if instructions > MAX_PATTERN_INSTRUCTIONS:
        raise PatternError(
            f"the pattern compiles to {instructions:,} instructions, more than {MAX_PATTERN_INSTRUCTIONS:,}: "
            "repeat less, or use smaller character classes"
        )
    # The library counts the instructions with 1, up to 2, up to 4, and so on, transitions.
    transitions = sum(count << power for power, count in enumerate(compiled._regexp.ProgramFanout()))
    if transitions > MAX_PATTERN_TRANSITIONS:
        raise PatternError(
            f"the pattern compiles to up to {transitions:,} transitions, more than {MAX_PATTERN_TRANSITIONS:,}: "
            "repeat optional parts less often"
        )


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
