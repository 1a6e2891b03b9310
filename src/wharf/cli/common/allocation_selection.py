"""Selects allocations of a job by index, and orders them as people count: `web[2]` before `web[10]`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub

MAX_INDEX: Final = 10**9
"""Limit of an index that a user can enter; no job has as many allocations."""
JOB_TYPES_WITH_REPEATED_NAMES: Final = ("system", "sysbatch")
"""Jobs whose allocations have the same name on each node."""


class AllocationIndexes:
    """A set of indexes of allocations, such as `0-9,20`."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """`ranges` are pairs of the first and the last index."""
        self._ranges = tuple(ranges)

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and any(first <= index <= last for first, last in self._ranges)


class AllocationIndexesType(click.ParamType[AllocationIndexes]):
    """The type of `--index`: indexes and ranges of them, separated by commas."""

    name = "index"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> AllocationIndexes:
        """Return the indexes. Fails for a text that is not a list of numbers and ranges."""
        if isinstance(value, AllocationIndexes):
            return value
        ranges = []
        for part in str(value).split(","):
            first, dash, last = part.strip().partition("-")
            last = last if dash else first
            if not (is_index(first) and is_index(last) and int(first) <= int(last)):
                self.fail(f"expected indexes such as 3, 0-9 or 0-9,20, got {value}", param, context)
            ranges.append((int(first), int(last)))
        return AllocationIndexes(ranges)


index_option = click.option(
    "--index",
    "indexes",
    type=AllocationIndexesType(),
    default=None,
    help="Only allocations with these indexes, such as 3, 0-9 or 0-9,20.",
)


def is_index(text: str) -> bool:
    """Return whether the text is a decimal number that can be the index of an allocation."""
    return text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_INDEX))


def get_index(allocation: "AllocationStub") -> int:
    """Return the index in the allocation's name, such as 3 for `shop.web[3]`; -1 if the name has none."""
    text = allocation.name.rpartition("[")[2].removesuffix("]")
    return int(text) if is_index(text) else -1


def get_natural_order(allocation: "AllocationStub") -> tuple[str, int, str, int]:
    """Return the key by which allocations are sorted: group, index, node and age."""
    return allocation.task_group, get_index(allocation), allocation.node_name, allocation.create_index


def select_newest(allocations: "Iterable[AllocationStub]") -> "list[AllocationStub]":
    """Return the newest allocation of each name; of system jobs, the newest of each name and node."""
    newest = {
        (
            allocation.namespace,
            allocation.job_id,
            allocation.name,
            allocation.node_id if allocation.job_type in JOB_TYPES_WITH_REPEATED_NAMES else "",
        ): allocation
        for allocation in sorted(allocations, key=lambda allocation: allocation.create_index)
    }
    return list(newest.values())
