"""Who came after whom, as far as it is true: a plan is committed in parts, and a part may be refused.

The stop of an allocation names its successor before that is placed. Where the placement was refused, or never committed,
the name stays in the record and stands for nobody. It changes no record: what is decided next writes what is so.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from wharf.model.allocation import Allocation
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS


def as_followed(snapshot: Replica, allocations: Iterable[Allocation]) -> list[Allocation]:
    """The same, without successors of living ones that are not there: they would be waited for without end.

    A successor may also be gone because it was collected, and then another has its place by now: whoever is over, or
    shares its name with one that lives, keeps what it says.
    """
    mine = list(allocations)
    standing = snapshot.rows(ALLOCATIONS).records
    astray = [
        each for each in mine if each.next_allocation and not each.is_terminal and each.next_allocation not in standing
    ]
    if not astray:
        return mine
    lost = {each.id for each in astray}
    held = {(each.task_group, each.name) for each in mine if not each.is_terminal and each.id not in lost}
    alone = {each.id for each in astray if (each.task_group, each.name) not in held}
    return [replace(each, next_allocation="") if each.id in alone else each for each in mine]
