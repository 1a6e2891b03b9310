"""Who came after whom in a group, by however many steps.

Both ends of a step name the other, so that the chain holds where one on the way was collected.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property

from wharf.model.allocation import Allocation


class Succession:
    def __init__(self, by_id: Mapping[str, Allocation]) -> None:
        self._by_id = by_id

    def after(self, original: Allocation) -> Iterator[Allocation]:
        """Those that took its place, one after the other."""
        seen = {original.id}
        steps = [original.id, original.next_allocation]
        while steps:
            step = steps.pop()
            if not step:
                continue
            here = self._by_id.get(step)
            for each in (*self._followers.get(step, ()), *((here,) if here is not None else ())):
                if each.id not in seen:
                    seen.add(each.id)
                    yield each
                    steps += [each.next_allocation, each.id]

    @cached_property
    def _followers(self) -> dict[str, list[Allocation]]:
        followers: dict[str, list[Allocation]] = {}
        for each in self._by_id.values():
            if each.previous_allocation:
                followers.setdefault(each.previous_allocation, []).append(each)
        return followers
