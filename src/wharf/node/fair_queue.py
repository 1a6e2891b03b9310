"""A queue of items that wait for one of a few places, in an order that is fair to namespaces, jobs and allocations.

It only keeps the items and counts them. Threads and waiting are in `wharf.node.threads`.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class ItemOwner(NamedTuple):
    """Whose item it is. Each field is one level of the queue, below that of the whole queue."""

    namespace: str = ""
    job_id: str = ""
    allocation_id: str = ""


class Level(NamedTuple):
    """The limits of the whole queue, or of each namespace, job or allocation."""

    max_running: int
    max_waiting: int


_LEVEL_NAMES: Final = ("the node", "the namespace", "the job", "the allocation")


class QueueFull(Exception):
    """The error of an item that cannot wait, because too many do; the text says whose."""


class _Branch(Generic[T]):
    """The items of one owner at one level: of the whole queue, a namespace, a job or an allocation."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.children: dict[str, _Branch[T]] = {}
        """By name, the one that took a place last at the end. Empty for an allocation."""
        self.items: deque[T] = deque()
        """Items of an allocation that wait."""


class FairQueue(Generic[T]):
    """Items that wait or run.

    A free place is for the namespace that has the fewest running items; in it, for the job that has the fewest; in it, for
    the allocation that has the fewest. Of equal ones, for that which has waited longest since its last place.
    """

    def __init__(self, levels: Sequence[Level]) -> None:
        """`levels` are the limits of the whole queue, a namespace, a job and an allocation."""
        self._levels = levels
        self._root: _Branch[T] = _Branch()

    def add(self, owner: ItemOwner, item: T) -> None:
        """Let an item wait. Raises QueueFull."""
        branch: _Branch[T] | None = self._root
        for depth, level in enumerate(self._levels):
            if branch is not None and branch.waiting >= level.max_waiting:
                raise QueueFull(f"{level.max_waiting:,} of {_LEVEL_NAMES[depth]} wait already")
            branch = branch.children.get(owner[depth]) if branch is not None and depth < len(owner) else None
        path = self._create_path(owner)
        for waiting in path:
            waiting.waiting += 1
        path[-1].items.append(item)

    def take(self) -> tuple[ItemOwner, T] | None:
        """Return the item that runs next, and count it as running; None if none may run."""
        found = self._take_from(self._root, 0)
        return (ItemOwner(*found[0]), found[1]) if found is not None else None

    def _take_from(self, branch: _Branch[T], depth: int) -> tuple[tuple[str, ...], T] | None:
        """Take an item below this branch. Return the names of the branches that lead to it, and the item."""
        if not branch.waiting or branch.running >= self._levels[depth].max_running:
            return None
        found: tuple[tuple[str, ...], T] | None = None
        if branch.items:
            found = (), branch.items.popleft()
        for name, child in sorted(branch.children.items(), key=lambda entry: entry[1].running):
            if (below := self._take_from(child, depth + 1)) is not None:
                found = (name, *below[0]), below[1]
                branch.children[name] = branch.children.pop(name)
                break
        if found is not None:
            branch.waiting -= 1
            branch.running += 1
        return found

    def remove(self, owner: ItemOwner, item: T) -> bool:
        """Remove an item that waits. Return False if it does not wait."""
        path = self._create_path(owner)
        is_waiting = item in path[-1].items
        if is_waiting:
            path[-1].items.remove(item)
            for branch in path:
                branch.waiting -= 1
        self._remove_empty(owner, path)
        return is_waiting

    def finish(self, owner: ItemOwner) -> None:
        """Count one item of this owner as ended."""
        path = self._create_path(owner)
        for branch in path:
            branch.running -= 1
        self._remove_empty(owner, path)

    def _create_path(self, owner: ItemOwner) -> list[_Branch[T]]:
        """Return the branches from the whole queue to the allocation; missing ones are created."""
        path = [self._root]
        for name in owner:
            path.append(path[-1].children.setdefault(name, _Branch()))
        return path

    @staticmethod
    def _remove_empty(owner: ItemOwner, path: list[_Branch[T]]) -> None:
        """Remove the branches of this path that have no items."""
        for name, parent, child in reversed(list(zip(owner, path, path[1:], strict=False))):
            if not child.running and not child.waiting:
                del parent.children[name]
