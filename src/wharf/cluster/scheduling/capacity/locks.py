"""Locks of steps: which allocations hold a slot, which steps wait for one, and which of them may have it (record 0320).

A slot is taken by the record of an allocation, and freed by its end. Nothing else says who holds a lock. The queue of a lock
consists of the evaluations that could not place a step because of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import read_element_states
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, EVALUATIONS_BY_LOCK, LOCK_HOLDERS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.placement_reasons import LOCK_PREFIX
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.lock_waits import LockWait
from wharf.contract.model.jobs.steps import Lock

LockName = tuple[str, str]
"""The namespace and the key of a lock."""
QueueOrder = tuple[int, str, str]
"""When a step became ready, in ns since the epoch, then the ID of its job and its name."""


NOT_READY: Final = 1 << 62
"""Stands for the time at which a step becomes ready that is only planned: after all others."""


class LockWaiter(NamedTuple):
    """A step in the queue of a lock."""

    order: QueueOrder
    wait: LockWait
    evaluation: Evaluation


def may_hold_lock(snapshot: Replica, allocation: Allocation) -> bool:
    """Return whether an allocation has a lock and may still run.

    Only the report of its node says that it does not. A lost allocation may run as long as its node exists: the node is out of
    contact, and may return. A user who purges the node states that it is gone.
    """
    if LOCK_HOLDERS.get_value(allocation) is None:
        return False
    return allocation.client_status is not ClientStatus.LOST or snapshot.get(NODES, allocation.node_id) is not None


def list_lock_holders(snapshot: Replica, lock: LockName) -> list[Allocation]:
    """Return the allocations that hold a slot of the lock, in no particular order."""
    return [each for each in snapshot.list_by_index(LOCK_HOLDERS, *lock) if may_hold_lock(snapshot, each)]


def list_lock_waiters(snapshot: Replica, lock: LockName) -> list[LockWaiter]:
    """Return the steps that wait for the lock, in the order in which they get slots; also those that lack capacity."""
    namespace, key = lock
    waiters: dict[tuple[str, str], LockWaiter] = {}
    for part in (key, ""):
        for evaluation in snapshot.list_by_index(EVALUATIONS_BY_LOCK, namespace, part):
            for wait in evaluation.lock_waits or ():
                if wait.key != key:
                    continue
                order = (wait.since, evaluation.job_id, wait.step)
                found = waiters.get(order[1:])
                # The newest evaluation knows best what the step lacks.
                if found is None or found.evaluation.snapshot_index < evaluation.snapshot_index:
                    waiters[order[1:]] = LockWaiter(order, wait, evaluation)
    return sorted(waiters.values(), key=lambda each: each.order)


def list_awaited_locks(snapshot: Replica) -> list[LockName]:
    """Return the locks for which a step waits, sorted."""
    return sorted(
        {
            (evaluation.namespace, wait.key)
            for value in snapshot.iter_index_values(EVALUATIONS_BY_LOCK)
            for evaluation in snapshot.list_by_index(EVALUATIONS_BY_LOCK, *_as_lock(value))
            for wait in evaluation.lock_waits or ()
        }
    )


def _as_lock(value: object) -> LockName:
    assert isinstance(value, tuple), "the index has two parts"
    return value[0], value[1]


class LockGrants:
    """Gives the free slots of a lock to the steps that wait for it, in their order.

    The first step that gets less than it needs ends the queue, so that a step that needs a lock for itself is not passed by
    those that share it. A step that lacks capacity takes no slot, and keeps nobody waiting.
    """

    def __init__(self, held_count: int) -> None:
        self._taken_count = held_count
        self._is_exhausted = False

    def count_free(self, slots: int) -> int:
        """Return how many slots the next step in the queue may take, if it permits this many holders."""
        return 0 if self._is_exhausted else max(0, slots - self._taken_count)

    def grant(self, wait: LockWait) -> int:
        """Give slots to the next step in the queue, and return how many."""
        if wait.lacks_capacity:
            return 0
        granted = min(wait.count, self.count_free(wait.slots))
        self._taken_count += granted
        self._is_exhausted |= granted < wait.count
        return granted


def iter_granted(snapshot: Replica, lock: LockName) -> Iterator[LockWaiter]:
    """Yield the steps that wait for a slot of the lock and may have one now."""
    waiters = list_lock_waiters(snapshot, lock)
    if waiters:
        grants = LockGrants(len(list_lock_holders(snapshot, lock)))
        for waiter in waiters:
            if grants.grant(waiter.wait):
                yield waiter


def list_changed_locks(table: str, before: Any, after: Any) -> set[LockName]:
    """Return the locks of which a slot may be free, or whose queue has changed, after the change of a record."""
    if table == EVALUATIONS.name:
        return {lock for each in (before, after) if each is not None for lock in _list_locks_of_evaluation(each)}
    if table == ALLOCATIONS.name and before is not None and (held := LOCK_HOLDERS.get_value(before)) is not None:
        # Also if it becomes lost: its node may have been deleted, and then it holds the lock no longer.
        return set() if after is not None and after.client_status is before.client_status else {_as_lock(held)}
    return set()


def _list_locks_of_evaluation(evaluation: Evaluation) -> list[LockName]:
    if EVALUATIONS_BY_LOCK.get_value(evaluation) is None:
        return []
    return [(evaluation.namespace, wait.key) for wait in evaluation.lock_waits or ()]


class LockAdmission:
    """Decides for each placement of one evaluation whether the lock of its step has a free slot for it."""

    def __init__(self, snapshot: Replica, job: Job) -> None:
        self._snapshot = snapshot
        self._job = job
        self._free_counts: dict[str, int] = {}
        """By step, how many slots it may take. Computed on first use."""
        self._taken_counts: dict[str, int] = {}
        """By key, how many slots this evaluation has taken."""
        self._since: dict[str, int] = {}

    def explain_refusal(self, group: TaskGroup) -> str:
        """Return why one more allocation of the step may not begin; empty if it may, or if the step has no lock."""
        lock = group.lock
        if lock is None or self._count_free(group, lock) > 0:
            return ""
        return f"{LOCK_PREFIX}{lock.key} is not free ({lock.slots} slot{'s' if lock.slots > 1 else ''})"

    def take_slot(self, group: TaskGroup) -> None:
        """Count a placement of the step, which takes a slot of its lock."""
        if group.lock is not None:
            self._taken_counts[group.lock.key] = self._taken_counts.get(group.lock.key, 0) + 1

    def make_wait(self, group: TaskGroup, count: int, *, lacks_capacity: bool) -> LockWait | None:
        """Return the place in the queue of a step that could not be placed, or `None` if it has no lock."""
        lock = group.lock
        if lock is None:
            return None
        return LockWait(
            key=lock.key,
            step=group.name,
            slots=lock.slots,
            policy=lock.policy,
            since=self._get_since(group),
            count=max(1, count),
            lacks_capacity=lacks_capacity,
        )

    def _count_free(self, group: TaskGroup, lock: Lock) -> int:
        free = self._free_counts.get(group.name)
        if free is None:
            name = (self._job.namespace, lock.key)
            grants = LockGrants(len(list_lock_holders(self._snapshot, name)))
            own = (self._get_since(group), self._job.id, group.name)
            for waiter in list_lock_waiters(self._snapshot, name):
                if waiter.order < own and waiter.order[1:] != own[1:]:
                    grants.grant(waiter.wait)
            free = self._free_counts[group.name] = grants.count_free(lock.slots)
        return free - self._taken_counts.get(lock.key, 0)

    def _get_since(self, group: TaskGroup) -> int:
        """Return when the step became ready, in ns since the epoch."""
        since = self._since.get(group.name)
        if since is None:
            step = read_element_states(self._snapshot, self._job, group.name).step
            since = self._since[group.name] = step.since if step is not None else NOT_READY
        return since


class LockCheck:
    """Checks before a commit that the placements of a plan do not exceed the slots of locks."""

    def __init__(self, snapshot: Replica, job: Job | None, earlier: Iterable[Sequence[Allocation]]) -> None:
        """`earlier` are new allocations that the same write contains."""
        self._snapshot = snapshot
        self._locks = {group.name: group.lock for group in job.groups if group.lock is not None} if job else {}
        self._held_counts: dict[LockName, int] = {}
        self._earlier = [each for placed in earlier for each in placed if each.lock_key] if self._locks else []

    def try_take_slots(self, placed: Sequence[Allocation]) -> bool:
        """Count the slots of these allocations as taken and return true, if all of them are free.

        Otherwise count nothing and return false.
        """
        if not self._locks:
            return True
        held = dict(self._held_counts)
        for allocation in placed:
            lock = self._locks.get(allocation.task_group)
            if lock is None:
                continue
            name = (allocation.namespace, lock.key)
            count = held.get(name)
            if count is None:
                count = len(list_lock_holders(self._snapshot, name)) + sum(
                    (each.namespace, each.lock_key) == name for each in self._earlier
                )
            if allocation.lock_key != lock.key or count >= lock.slots:
                return False
            held[name] = count + 1
        self._held_counts = held
        return True
