"""Allocation names: `job.group[index]`. Which index an allocation gets is decided by the scheduler."""

from typing import Final

MAX_INDEX_DIGITS: Final = 18
"""Limits the size of an index. No job has as many allocations."""


def format_name(job_id: str, group: str, index: int) -> str:
    """Return the name of an allocation, such as `web.frontend[0]`."""
    return f"{job_id}.{group}[{index}]"


def parse_index(name: str) -> int:
    """Return the index at the end of an allocation's name: 3 for `web.frontend[3]`, 0 if the name has no index."""
    digits = name[name.rfind("[") + 1 : -1] if name.endswith("]") else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= MAX_INDEX_DIGITS else 0
