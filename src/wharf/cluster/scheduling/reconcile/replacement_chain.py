"""Who came after whom, as far as it is true: a plan is committed in parts, and a part may be refused.

The stop of an allocation names its successor before that is placed. Where the placement was refused, or never committed,
the name stays in the record and stands for nobody. It changes no record: what is decided next writes what is so.

Who came after whom in a group, by however many steps.

Both ends of a step name the other, so that the chain holds where one on the way was collected.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from msgspec.structs import replace

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import Allocation


def drop_missing_replacements(snapshot: Replica, allocations: Iterable[Allocation]) -> list[Allocation]:
    """The same, without successors of living ones that are not there: they would be waited for without end.

    A successor may also be gone because it was collected, and then another has its place by now: whoever is over, or
    shares its name with one that lives, keeps what it says.
    """
    mine = list(allocations)
    standing = snapshot.get_table_records(ALLOCATIONS).records
    astray = [
        each for each in mine if each.next_allocation and not each.is_terminal and each.next_allocation not in standing
    ]
    if not astray:
        return mine
    lost = {each.id for each in astray}
    held = {(each.task_group, each.name) for each in mine if not each.is_terminal and each.id not in lost}
    alone = {each.id for each in astray if (each.task_group, each.name) not in held}
    return [replace(each, next_allocation="") if each.id in alone else each for each in mine]


class ReplacementChain:
    def __init__(self, by_id: Mapping[str, Allocation]) -> None:
        self._by_id = by_id

    def iter_replacements(self, original: Allocation) -> Iterator[Allocation]:
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
