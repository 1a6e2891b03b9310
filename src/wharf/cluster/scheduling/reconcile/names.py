"""The names of a group's allocations: `job.group[index]`, each index of the count used once where it can be."""

import re
from collections.abc import Iterable
from typing import Final

_INDEX: Final = re.compile(r"\[([0-9]{1,18})\]\Z")


def format_name(job_id: str, group: str, index: int) -> str:
    return f"{job_id}.{group}[{index}]"


def parse_index(name: str) -> int:
    """The index at the end of a name; 0 where there is none."""
    found = _INDEX.search(name)
    return int(found[1]) if found is not None else 0


class AllocationNames:
    """Which indexes are in use, and which are given next."""

    def __init__(self, job_id: str, group: str, count: int, used: Iterable[str]) -> None:
        self._job_id = job_id
        self._group = group
        self._count = count
        self._used = {parse_index(name) for name in used}

    def take_names(self, number: int) -> list[str]:
        """The lowest free names of the count; when those run out, from the first on again."""
        free = [index for index in range(self._count) if index not in self._used][:number]
        over = range(number - len(free))
        given = [*free, *over]
        self._used.update(given)
        return [format_name(self._job_id, self._group, index) for index in given]

    def take_free(self, own: str) -> str:
        """Return the lowest free name, or `own` if none is free.

        The caller stops the allocation that has `own`, so no name gets more allocations than it had.
        """
        index = next((index for index in range(self._count) if index not in self._used), None)
        if index is None:
            return own
        self._used.add(index)
        return format_name(self._job_id, self._group, index)

    def take_canary_names(self, number: int, canaries: Iterable[str], replaced: Iterable[str]) -> list[str]:
        """The first of those that are to be replaced and that no canary has, then free ones, then those after the count.

        They stay free for others: whoever has the name of a canary is stopped when that is promoted.
        """
        taken = {parse_index(name) for name in canaries}
        candidates = sorted({parse_index(name) for name in replaced} - taken)
        given = [index for index in candidates if index < self._count][:number]
        if len(given) < number:
            free = (i for i in range(self._count) if i not in self._used and i not in taken and i not in given)
            given += [index for _, index in zip(range(number - len(given)), free, strict=False)]
        after = self._count
        while len(given) < number:
            if after not in taken:
                given.append(after)
            after += 1
        return [format_name(self._job_id, self._group, index) for index in given]
