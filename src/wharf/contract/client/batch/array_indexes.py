"""The indexes of an array as a user writes them, such as `0-499%20`, and the `Array` block of a job for them."""

from typing import Any, Final, NamedTuple

MAX_ELEMENTS: Final = 100_000
"""The elements of one array. Servers have the same limit."""
MAX_ITEMS: Final = 50_000
"""The elements of an array whose indexes are not 0, 1, 2 and so on. Servers have the same limit for items."""
MAX_INDEX: Final = 10**9
"""The largest index; a longer number is a mistake."""
MAX_TEXT_CHARS: Final = 10_000
"""Limits the work for a text that is no list of indexes."""


class ArrayError(ValueError):
    """The error for a text that is not a list of indexes. Its message says what is expected."""


class ArrayIndexes(NamedTuple):
    """The indexes that a user gives to the elements of an array, in ascending order, and how many may run at a time."""

    indexes: tuple[int, ...]
    max_running: int = 0
    """0: no limit."""

    @property
    def is_plain(self) -> bool:
        """Whether the indexes are 0, 1, 2 and so on, as the cluster counts elements."""
        return self.indexes[0] == 0 and self.indexes[-1] == len(self.indexes) - 1

    @property
    def step(self) -> int:
        """The distance between the indexes if it is always the same, else 1."""
        distances = {second - first for first, second in zip(self.indexes, self.indexes[1:], strict=False)}
        return distances.pop() if len(distances) == 1 else 1

    def build_block(self, *, fail_fast: bool = False) -> dict[str, Any]:
        """Return the block `Array` of a task group.

        Plain indexes are a size. Others are items, because the cluster numbers elements from 0: each element then has its
        own index as its item.
        """
        block: dict[str, Any] = (
            {"Size": len(self.indexes)} if self.is_plain else {"Items": [str(index) for index in self.indexes]}
        )
        if self.max_running:
            block["MaxRunning"] = self.max_running
        if fail_fast:
            block["FailFast"] = True
        return block


def parse_array(text: str) -> ArrayIndexes:
    """Return the indexes of a text such as `0-499%20`, `1,3,7-9` or `0-100:10`. Raises `ArrayError`.

    `A-B` is a range, `A-B:S` each S-th of it, and `%N` at the end lets at most N elements run at a time. A single number
    is one element with that index.
    """
    listed, percent, limit = text.partition("%")
    if len(text) > MAX_TEXT_CHARS:
        raise ArrayError(f"a list of indexes has at most {MAX_TEXT_CHARS:,} characters")
    max_running = 0
    if percent:
        if not _is_number(limit) or int(limit) < 1:
            raise ArrayError(f"expected a number above 0 after %, got {limit!r}")
        max_running = int(limit)
    indexes: set[int] = set()
    for part in listed.split(","):
        indexes.update(_parse_part(part.strip(), text))
        if len(indexes) > MAX_ELEMENTS:
            raise ArrayError(f"an array has at most {MAX_ELEMENTS:,} elements: split it into several jobs")
    found = ArrayIndexes(tuple(sorted(indexes)), max_running)
    if not found.is_plain and len(found.indexes) > MAX_ITEMS:
        raise ArrayError(f"an array whose indexes do not begin at 0 has at most {MAX_ITEMS:,} elements: begin at 0")
    return found


def _parse_part(part: str, text: str) -> range:
    """Return the indexes of one number or range. Raises `ArrayError`."""
    bounds, colon, step = part.partition(":")
    first, dash, last = bounds.partition("-")
    last = last if dash else first
    is_valid = _is_number(first) and _is_number(last) and (not colon or (bool(dash) and _is_number(step)))
    if not is_valid:
        raise ArrayError(f"expected indexes such as 0-499, 0-499%20, 1,3,7-9 or 0-100:10, got {text!r}")
    if int(first) > int(last):
        raise ArrayError(f"range {part} ends before it begins")
    if colon and int(step) < 1:
        raise ArrayError(f"range {part} has the step 0: use 1 or more")
    if int(last) > MAX_INDEX:
        raise ArrayError(f"index {last} is larger than {MAX_INDEX:,}")
    found = range(int(first), int(last) + 1, int(step) if colon else 1)
    if len(found) > MAX_ELEMENTS:
        raise ArrayError(f"an array has at most {MAX_ELEMENTS:,} elements, and {part} has {len(found):,}")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10


def format_indexes(indexes: tuple[int, ...]) -> str:
    """Return the indexes as a list of ranges, such as `0-4,9`."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
