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
    """The same, without successors that are not there: whoever waits for one of these would wait for ever."""
    standing = snapshot.rows(ALLOCATIONS).records
    return [
        replace(each, next_allocation="") if each.next_allocation and each.next_allocation not in standing else each
        for each in allocations
    ]
