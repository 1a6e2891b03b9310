"""The array of a task group: how many elements it has, and how many of them run at a time."""

from typing import Final

from wharf.contract.model.record import Record

MAX_ARRAY_ELEMENTS: Final = 100_000
"""Elements of all arrays of a job together. Servers store one byte for each of them in memory and in the log."""
MAX_ARRAY_ITEMS: Final = 50_000
"""Items of one array: half of the list items that a request body may hold."""
MAX_ARRAY_GROUPS: Final = 50
"""Groups of a job that have an array of more than one element. With this limit, the results with which a rerun of selected
elements begins fit in one write to etcd: 50 records, and 25 more for 100,000 elements.
"""
MAX_ITEM_BYTES: Final = 4_096
"""UTF-8 bytes of one item. It becomes an environment variable of the task."""
MAX_ALL_ITEM_BYTES: Final = 512 * 1024
"""UTF-8 bytes of all items of a job. A write has the job twice, and etcd accepts 1.5 MB in one write."""
DEFAULT_MAX_RUNNING: Final = 10_000
"""The elements that run at a time if the array has no limit of its own; limits the allocations in memory."""


class GroupArray(Record):
    """The elements of a group that runs once for each of them, such as the inputs of a sweep."""

    size: int = 0
    """How many elements the array has. Their indexes begin with 0.

    A task finds its index in `WHARF_ARRAY_INDEX`, and the size in `WHARF_ARRAY_SIZE`.

    Unit: elements
    Default: the number of `Items`
    Limits: 1 to 100,000, also for all arrays of a job together; must not be set together with `Items`
    Example: 500
    """
    items: tuple[str, ...] | None = None
    """A text for each element, such as the names of the inputs. A task finds its text in `WHARF_ARRAY_ITEM`.

    Default: none; `WHARF_ARRAY_ITEM` is then empty
    Limits: 1 to 50,000 items with at most 4,096 UTF-8 bytes each, and 524,288 together; no null characters; must not be
        set together with `Size`
    Example: ["north.csv", "south.csv"]
    """
    max_running: int = 0
    """How many elements may run at the same time.

    The next element begins when another one has ended.

    Unit: elements
    Default: 0, which means as many as fit into the cluster, up to 10,000
    Limits: 0 to 100,000
    Example: 20
    """
    fail_fast: bool = False
    """Whether the first element that fails, after its retries, stops the others.

    Elements that run are stopped, and elements that have not begun never run. Both count as canceled.
    """

    @property
    def element_count(self) -> int:
        """How many elements the array has."""
        return len(self.items) if self.items else self.size

    @property
    def running_limit(self) -> int:
        """How many elements may have an allocation that has not ended."""
        return min(self.max_running or DEFAULT_MAX_RUNNING, self.element_count)

    def find_item(self, index: int) -> str | None:
        """Return the text of an element, or `None` if the array has no items or no such element."""
        return self.items[index] if self.items and 0 <= index < len(self.items) else None
