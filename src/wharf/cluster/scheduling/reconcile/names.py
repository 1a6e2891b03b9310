"""Assigns names to the allocations of a group. Each index below the count is used once, if possible."""

from collections.abc import Iterable

from wharf.contract.model.allocations.names import format_name, parse_index


class AllocationNames:
    """Tracks which indexes of a group are in use and assigns free ones."""

    def __init__(self, job_id: str, group: str, count: int, used: Iterable[str]) -> None:
        self._job_id = job_id
        self._group = group
        self._count = count
        self._used = {parse_index(name) for name in used}

    def take_names(self, count: int) -> list[str]:
        """Return this many names: the lowest free ones first, then names from index 0 again."""
        free = [index for index in range(self._count) if index not in self._used][:count]
        extra = range(count - len(free))
        indexes = [*free, *extra]
        self._used.update(indexes)
        return [format_name(self._job_id, self._group, index) for index in indexes]

    def take_free(self, own: str) -> str:
        """Return the lowest free name, or `own` if none is free.

        The caller stops the allocation that has `own`, so no name gets more allocations than it had.
        """
        index = next((index for index in range(self._count) if index not in self._used), None)
        if index is None:
            return own
        self._used.add(index)
        return format_name(self._job_id, self._group, index)

    def take_canary_names(self, count: int, canaries: Iterable[str], replaced: Iterable[str]) -> list[str]:
        """Return names for canaries, none of them used by another canary.

        Names of `replaced` come first, then free names, then names beyond the count.
        The names stay free for others, because the allocation with the name of a canary is stopped when the canary is
        promoted.
        """
        canary_indexes = {parse_index(name) for name in canaries}
        candidates = sorted({parse_index(name) for name in replaced} - canary_indexes)
        indexes = [index for index in candidates if index < self._count][:count]
        if len(indexes) < count:
            free = (
                candidate
                for candidate in range(self._count)
                if candidate not in self._used and candidate not in canary_indexes and candidate not in indexes
            )
            indexes += [index for _, index in zip(range(count - len(indexes)), free, strict=False)]
        next_index = self._count
        while len(indexes) < count:
            if next_index not in canary_indexes:
                indexes.append(next_index)
            next_index += 1
        return [format_name(self._job_id, self._group, index) for index in indexes]
