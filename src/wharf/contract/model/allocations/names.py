"""Allocation names: `job.group[index]`. Which index an allocation gets is decided by the scheduler."""

import re
from typing import Final

_INDEX: Final = re.compile(r"\[([0-9]{1,18})\]\Z")


def format_name(job_id: str, group: str, index: int) -> str:
    """Return the name of an allocation, such as `web.frontend[0]`."""
    return f"{job_id}.{group}[{index}]"


def parse_index(name: str) -> int:
    """Return the index at the end of an allocation's name: 3 for `web.frontend[3]`, 0 if the name has no index."""
    found = _INDEX.search(name)
    return int(found[1]) if found is not None else 0
