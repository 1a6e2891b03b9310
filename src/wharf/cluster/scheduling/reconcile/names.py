"""Assigns names to the allocations of a group. Each index below the count is used once, if possible."""

from collections.abc import Iterable

from wharf.contract.model.allocations.names import format_name, parse_index


class AllocationNames:
    """Assigns names such as `job.group[0]` to the allocations of a group. Tracks which indexes are in use."""

    def __init__(self, job_id: str, group: str, count: int, used_names: Iterable[str]) -> None:
        self._job_id = job_id
        self._group = group
        self._count = count
        self._used = {parse_index(name) for name in used_names}  # Indexes that are in use.

    def take_names(self, count: int) -> list[str]:
        """Return this many names and mark them as used: the lowest free indexes first, then index 0, 1 and so on again."""
        free = [index for index in range(self._count) if index not in self._used][:count]
        extra = range(count - len(free))
        indexes = [*free, *extra]
        self._used.update(indexes)
        return [format_name(self._job_id, self._group, index) for index in indexes]

    def take_free(self, own_name: str) -> str:
        """Return the free name with the lowest index and mark it as used, or return `own_name` if none is free.

        The caller stops the allocation that has `own_name`, so no name gets more allocations than it had.
        """
        index = next((index for index in range(self._count) if index not in self._used), None)
        if index is None:
            return own_name
        self._used.add(index)
        return format_name(self._job_id, self._group, index)

    def take_canary_names(self, count: int, canary_names: Iterable[str], replaced_names: Iterable[str]) -> list[str]:
        """Return names for `count` canaries, none of them used by another canary.

        `canary_names` are those of existing canaries, `replaced_names` those of allocations that an update will
        replace. First come names of `replaced_names`, then free names, then names beyond the group's count. They are
        not marked as used, because the allocation with the name of a canary is stopped when the canary is promoted.
        """
        canary_indexes = {parse_index(name) for name in canary_names}
        candidates = sorted({parse_index(name) for name in replaced_names} - canary_indexes)
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
