"""Blocked evaluations: which ones wait for capacity, and which to retry when capacity is freed (scheduling.md 1.5).

An evaluation that knows which node classes are eligible waits for those and for new classes. One with constraints on
unique attributes waits for any class. The queue holds nothing that the replica does not: a new leader rebuilds it and
retries every evaluation. The order of retries is in `scheduling.blocked.retry_order`, reservations are in
`scheduling.blocked.reservation_policy`.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from wharf.cluster.scheduling.blocked.reservation_policy import RESERVATION_DELAY_NS
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.job import JobKey

CONFLICT_RETRY_DELAY_NS: Final = 60_000_000_000
"""An evaluation that failed because of too many conflicts is retried after this time, even if nothing changed."""

MAX_CACHED_CHANGES: Final = 4_096
"""Limits memory: for how many node classes, and for how many parent jobs, the index of the last change is stored."""

RESERVATION_CHECK_INTERVAL_NS: Final = 15_000_000_000
"""How often waiting evaluations are checked for a reservation if none was possible before."""


RetryOrderFunction = Callable[[Iterable[Evaluation], int], list[Evaluation]]
"""Returns the first evaluations, up to a limit, in the order of retries."""


class BlockedQueue:
    """The leader's queue of blocked evaluations."""

    def __init__(self) -> None:
        self._waiting: dict[str, Evaluation] = {}  # All blocked evaluations by id.
        self._marked: dict[str, None] = {}
        """Ids of blocked evaluations that must be retried, in the order in which they were marked."""
        self._conflicted: dict[str, Evaluation] = {}
        """Of `_waiting`, those that are blocked because their plans conflicted too often, by id."""
        self._waiting_children: dict[JobKey, list[tuple[int, int, str]]] = {}
        """By parent job, a heap of the child jobs that wait until fewer children run than `max_running` allows.

        An entry is (waiting since in nanoseconds, create index, evaluation id). It may have stale entries.
        """
        self._slot_holders: dict[str, JobKey] = {}
        """By id of an evaluation that is retried because a slot (one of the `max_running` children) became free: the
        parent job.
        """
        self._slot_freed_index: dict[JobKey, int] = {}
        """By parent job, the log index at which one of its `max_running` slots was freed last."""
        self._last_check_ns: int | None = None
        """When the last check for reservations started, in nanoseconds."""
        self._freed_index_by_class: dict[str, int] = {}
        """By node class, the log index at which capacity was freed last."""
        self._last_freed_index = 0  # The log index at which capacity of any node class was freed last.

    def __len__(self) -> int:
        """Return the number of blocked evaluations."""
        return len(self._waiting)

    def update(self, evaluation: Evaluation) -> None:
        """Store the newest version of an evaluation, or remove it if it is no longer blocked.

        It is marked for a retry at once if capacity, or a slot of its parent job's `max_running`, was freed after the
        state on which it was decided. If it was retried because of a free slot and now waits for something else, the
        next child of the parent is marked instead.
        """
        if evaluation.status is not EvaluationStatus.BLOCKED:
            self.remove(evaluation.id)
            if evaluation.status.is_terminal:
                self._slot_holders.pop(evaluation.id, None)
            return
        parent_key = self._slot_holders.pop(evaluation.id, None)
        if parent_key is not None and not evaluation.waits_behind:
            self._give_slot(parent_key)  # It now waits for another resource, which the next child may not need.
        self._waiting[evaluation.id] = evaluation
        if _is_conflicted(evaluation):
            self._conflicted[evaluation.id] = evaluation
        if evaluation.waits_behind:
            key = (evaluation.namespace, evaluation.waits_behind)
            heap = self._waiting_children.setdefault(key, [])
            heapq.heappush(heap, (evaluation.waiting_since_ns, evaluation.create_index, evaluation.id))
            if self._slot_freed_index.get(key, 0) > evaluation.snapshot_index:
                self._give_slot(key)
        elif self._has_missed_capacity(evaluation):
            self._marked[evaluation.id] = None

    def remove(self, evaluation_id: str) -> None:
        """Remove an evaluation that is no longer blocked."""
        self._waiting.pop(evaluation_id, None)
        self._marked.pop(evaluation_id, None)
        self._conflicted.pop(evaluation_id, None)

    def on_capacity_freed(self, node_classes: Iterable[str], index: int) -> None:
        """Mark for a retry the evaluations that could use capacity freed on these node classes at log `index`.

        An empty class name stands for any class: it matches every evaluation that waits for capacity.
        """
        node_classes = list(dict.fromkeys(node_classes))
        if not node_classes:
            return
        for node_class in node_classes:
            self._freed_index_by_class.pop(node_class, None)
            self._freed_index_by_class[node_class] = index
        while len(self._freed_index_by_class) > MAX_CACHED_CHANGES:
            del self._freed_index_by_class[next(iter(self._freed_index_by_class))]
        self._last_freed_index = index
        for evaluation in self._waiting.values():
            if any(_can_use_capacity(evaluation, node_class) for node_class in node_classes):
                self._marked[evaluation.id] = None

    def on_slot_freed(self, namespace: str, parent_id: str, index: int) -> None:
        """Mark for a retry the child of this parent job that has waited longest for a slot of `max_running`.

        Called when a child started or ended, or when the limit changed, at log `index`.
        """
        key = (namespace, parent_id)
        self._slot_freed_index.pop(key, None)
        self._slot_freed_index[key] = index
        while len(self._slot_freed_index) > MAX_CACHED_CHANGES:
            del self._slot_freed_index[next(iter(self._slot_freed_index))]
        self._give_slot(key)

    def _give_slot(self, parent_key: JobKey) -> None:
        """Mark the longest waiting child of this parent job for a retry, and record that it uses the free slot."""
        heap = self._waiting_children.get(parent_key)
        while heap:
            evaluation = self._waiting.get(heap[0][-1])
            if evaluation is not None and (evaluation.namespace, evaluation.waits_behind) == parent_key:
                self._marked[evaluation.id] = None
                self._slot_holders[evaluation.id] = parent_key
                return
            heapq.heappop(heap)
        self._waiting_children.pop(parent_key, None)

    def mark_for_retry(self, evaluation_ids: Iterable[str]) -> None:
        """Mark these evaluations for a retry, as far as they are blocked: a slot of their lock is free."""
        self._marked |= {each: None for each in evaluation_ids if each in self._waiting}

    def retry_all(self) -> None:
        """Mark all blocked evaluations for a retry."""
        self._marked |= dict.fromkeys(self._waiting)

    def retry_conflicted(self, now_ns: int) -> None:
        """Mark for a retry the evaluations that were blocked after too many conflicts, once `CONFLICT_RETRY_DELAY_NS`
        has passed.
        """
        for evaluation in self._conflicted.values():
            # A time in the future is from before the clock was set back.
            if not evaluation.modify_time <= now_ns < evaluation.modify_time + CONFLICT_RETRY_DELAY_NS:
                self._marked[evaluation.id] = None

    def next_wake_ns(self) -> int | None:
        """Return when the next retry after conflicts or the next reservation check is due, in nanoseconds.

        Return `None` if neither is pending.
        """
        due_times = [evaluation.modify_time + CONFLICT_RETRY_DELAY_NS for evaluation in self._conflicted.values()]
        unreserved = [
            evaluation.waiting_since_ns for evaluation in self._waiting.values() if not evaluation.reserved_node_id
        ]
        if unreserved:
            due_ns = min(unreserved) + RESERVATION_DELAY_NS
            due_times.append(
                due_ns
                if self._last_check_ns is None
                else max(due_ns, self._last_check_ns + RESERVATION_CHECK_INTERVAL_NS)
            )
        return min(due_times, default=None)

    def start_reservation_check(self, now_ns: int) -> bool:
        """Return whether blocked evaluations must be checked for a node reservation now, and if so record the time.

        False if nothing is blocked or if the last check was less than `RESERVATION_CHECK_INTERVAL_NS` ago.
        """
        # A check in the future was recorded before the clock was set back.
        is_recent = (
            self._last_check_ns is not None
            and self._last_check_ns <= now_ns < self._last_check_ns + RESERVATION_CHECK_INTERVAL_NS
        )
        if not self._waiting or is_recent:
            return False
        self._last_check_ns = now_ns
        return True

    def list_waiting(self) -> list[Evaluation]:
        """Return all blocked evaluations, in no particular order."""
        return list(self._waiting.values())

    @property
    def has_retries(self) -> bool:
        """Whether an evaluation is marked for a retry."""
        return bool(self._marked)

    def select_retries(self, max_evaluations: int, order: RetryOrderFunction | None = None) -> list[Evaluation]:
        """Return up to `max_evaluations` evaluations that are marked for a retry, sorted by the function `order`.

        Without `order` they are sorted by descending priority, then age. They stay marked.
        """
        marked = (self._waiting[evaluation_id] for evaluation_id in self._marked)
        return (order or sort_by_age)(marked, max_evaluations)

    def cancel_retry(self, evaluation_id: str) -> None:
        """Leave an evaluation blocked until capacity is freed again."""
        self._marked.pop(evaluation_id, None)
        self._conflicted.pop(evaluation_id, None)

    def _has_missed_capacity(self, evaluation: Evaluation) -> bool:
        """Return whether capacity that the evaluation could use was freed after the snapshot on which it was decided."""
        if self._last_freed_index <= evaluation.snapshot_index:
            return False
        snapshot_index = evaluation.snapshot_index
        return any(
            index > snapshot_index and _can_use_capacity(evaluation, node_class)
            for node_class, index in self._freed_index_by_class.items()
        )


def sort_by_age(evaluations: Iterable[Evaluation], max_evaluations: int) -> list[Evaluation]:
    """Return up to `max_evaluations` evaluations, sorted by descending priority, then by age, the oldest first."""
    return sorted(evaluations, key=lambda evaluation: (-evaluation.priority, evaluation.create_index, evaluation.id))[
        :max_evaluations
    ]


def _can_use_capacity(evaluation: Evaluation, node_class: str) -> bool:
    """Return whether the evaluation could use capacity freed on nodes of this class.

    An empty text stands for any class.
    """
    if evaluation.waits_behind or evaluation.waits_only_for_locks:
        return False  # It waits for a slot, not for capacity.
    eligible = evaluation.class_eligibility
    if evaluation.quota_limit_reached:
        return True  # It waits for its quota, which any ended allocation may free.
    return not node_class or evaluation.escaped_computed_class or eligible is None or eligible.get(node_class, True)


def _is_conflicted(evaluation: Evaluation) -> bool:
    """Return whether the evaluation is blocked because its plans conflicted with other writes too often."""
    return evaluation.triggered_by is EvaluationTrigger.MAX_PLAN_ATTEMPTS
