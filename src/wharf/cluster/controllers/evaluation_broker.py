"""The queue of pending evaluations: by priority, then age, and at most one evaluation of a job at a time.

Namespaces share the queue: each has a limited number of places in it. The other evaluations of a namespace wait for one of
these places, so one that creates thousands delays those of others by a few hundred at most. One of some deliveries goes to
the evaluation that has its place for the longest time, so that a stream of high priorities holds up no other for ever.

Blocked evaluations that are retried together keep their order among each other, at the position of the oldest one. An
evaluation with a due time waits until then. A failed evaluation is delivered again after a delay, a limited number of
times, and keeps its job busy meanwhile. The broker holds nothing that the replica does not, except delivery counts: a
new leader fills it from the pending evaluations and counts from zero.
"""

import heapq
from collections.abc import Sequence
from typing import Any, Final

from wharf.cluster.operations.evaluations import MAX_DELIVERIES
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.jobs.job import JobKey
from wharf.contract.model.times import MAX_CLOCK_SKEW_NS, SECOND, has_passed, to_ns

FIRST_REDELIVERY_DELAY_NS: Final = SECOND
"""The delay after the first failed delivery."""
REDELIVERY_DELAY_NS: Final = 20 * SECOND
"""The delay before a failed evaluation is delivered again, times the number of deliveries after the first."""
PLACES_PER_NAMESPACE: Final = 100
"""How many evaluations of a namespace may be in the queue. Those of another namespace of the same priority come after at most
this many of each: with one namespace that creates thousands, after some tenths of a second."""
DELIVERIES_BY_AGE: Final = 16
"""One of this many deliveries goes to the evaluation that has been in the queue for the longest time, whatever its priority."""


class EvaluationBroker:
    """The leader's queue of pending evaluations."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, str]] = []
        """Queued evaluations as (negative priority, age, position, id). The lowest entry is processed next."""
        self._slots: dict[str, tuple[int, int]] = {}
        """By id of a blocked evaluation that is retried: its slot, which is a place in the queue.

        A slot is the age of the oldest evaluation of the same priority in this retry, and the position in the retry
        order.
        """
        self._heap_by_age: list[tuple[int, int, str]] = []
        """The same evaluations without those that have a slot, as (age, create index, id).

        An entry of either heap is stale if its evaluation is not in `_queued` any more.
        """
        self._queued: dict[str, str] = {}
        """By id of an evaluation in the heap: the namespace whose place it uses; empty if it has a slot instead."""
        self._used_places: dict[str, int] = {}  # By namespace, how many evaluations use one of its places.
        self._without_place: dict[str, list[tuple[int, int, str]]] = {}
        """By namespace, a heap of the evaluations that wait for a place, as (negative priority, create index, id)."""
        self._ids_without_place: dict[str, None] = {}
        self._newest_index = 0  # The highest create index of an evaluation so far.
        self._delivery_count = 0
        self._pending: dict[str, Evaluation] = {}  # All pending evaluations by id.
        self._active_by_job: dict[JobKey, str] = {}  # By job, the id of the evaluation that is being processed.
        self._waiting_by_job: dict[JobKey, dict[str, None]] = {}
        """By job, the ids of evaluations that wait until another one of the job is processed."""
        self._latest_ns: int | None = None  # The time of the last call of `enqueue_due`.
        self._due_heap: list[tuple[int, str]] = []  # Delayed evaluations as (due time in Unix nanoseconds, id).
        self._due_ids: dict[str, None] = {}
        """Ids of delayed evaluations whose due time has come."""
        self._deliveries: dict[str, int] = {}  # By evaluation id, how often it was handed to the scheduler.
        self._failed: dict[str, tuple[int, int]] = {}
        """By id of a failed evaluation: when it failed and when it is queued again, in nanoseconds.

        Its job is busy until then.
        """

    def __len__(self) -> int:
        """Return the number of pending evaluations."""
        return len(self._pending)

    def count_queues(self) -> tuple[int, int, int]:
        """Return three counts of evaluations: queued, waiting for another one of their job, and being processed.

        An evaluation that failed and waits for its next delivery counts as being processed.
        """
        queued = len(self._queued) + len(self._ids_without_place)
        return queued, sum(map(len, self._waiting_by_job.values())), len(self._active_by_job)

    def count_queued_in(self, namespace: str) -> int:
        """Return how many evaluations of the namespace are queued, with those that wait for one of its places.

        Evaluations that were removed since then count until their turn comes.
        """
        return self._used_places.get(namespace, 0) + len(self._without_place.get(namespace, ()))

    def update(self, evaluation: Evaluation) -> None:
        """Store the newest version of an evaluation and queue it when it is due, or remove it if it is not pending."""
        if evaluation.status is not EvaluationStatus.PENDING:
            self.remove(evaluation.id)
            return
        self._pending[evaluation.id] = evaluation
        self._newest_index = max(self._newest_index, evaluation.create_index)
        due_ns = due_at_ns(evaluation)
        if due_ns and evaluation.id not in self._due_ids:
            heapq.heappush(self._due_heap, (due_ns, evaluation.id))
            return
        job = (evaluation.namespace, evaluation.job_id)
        if self._active_by_job.get(job) != evaluation.id and evaluation.id not in self._waiting_by_job.get(job, {}):
            self._enqueue(evaluation)

    def remove(self, evaluation_id: str) -> None:
        """Remove an evaluation that was deleted or has ended.

        If it waited for another delivery, its job becomes free.
        """
        evaluation = self._pending.pop(evaluation_id, None)
        self._ids_without_place.pop(evaluation_id, None)
        self._due_ids.pop(evaluation_id, None)
        self._slots.pop(evaluation_id, None)
        self._deliveries.pop(evaluation_id, None)
        if evaluation_id in self._failed:
            del self._failed[evaluation_id]
            if evaluation is not None:
                self.finish(evaluation)

    def enqueue_due(self, now_ns: int) -> None:
        """Queue the delayed evaluations that are due, and the failed ones whose delay has passed.

        If the clock was set back, evaluations with implausible times are queued too: see `times.has_passed`.
        """
        if self._latest_ns is None or now_ns < self._latest_ns - MAX_CLOCK_SKEW_NS:
            # A new leader cannot know what the clock was before, so it checks all of them once.
            self._due_heap = [(0 if self._is_implausible(id, due, now_ns) else due, id) for due, id in self._due_heap]
            heapq.heapify(self._due_heap)
        self._latest_ns = now_ns
        while self._due_heap and self._due_heap[0][0] <= now_ns:
            _, evaluation_id = heapq.heappop(self._due_heap)
            evaluation = self._pending.get(evaluation_id)
            if evaluation is not None and evaluation_id not in self._due_ids:
                self._due_ids[evaluation_id] = None
                self.update(evaluation)
        for evaluation_id, (failed_at_ns, retry_at_ns) in [*self._failed.items()]:
            # A failure in the future was recorded before the clock was set back.
            if not failed_at_ns <= now_ns < retry_at_ns:
                del self._failed[evaluation_id]
                self._enqueue(self._pending[evaluation_id])

    def _is_implausible(self, evaluation_id: str, due_ns: int, now_ns: int) -> bool:
        """Return whether an evaluation is due so late that the clock was set back after its creation."""
        evaluation = self._pending.get(evaluation_id)
        if evaluation is None or due_ns <= now_ns:
            return False
        started_ns = evaluation.modify_time if evaluation.wait else evaluation.create_time
        return has_passed(due_ns, max(0, due_ns - started_ns), now_ns)

    def next_wake_ns(self) -> int | None:
        """Return when the next delayed or failed evaluation must be queued, in nanoseconds, or `None` if there is none."""
        due_times = [retry_at_ns for _, retry_at_ns in self._failed.values()]
        return min([*due_times, self._due_heap[0][0]] if self._due_heap else due_times, default=None)

    def assign_slots(self, evaluations: Sequence[Evaluation]) -> None:
        """Reserve a place in the queue for each of these blocked evaluations, which are about to be retried in this
        order.

        Those of one priority share the age of the oldest one, so newer evaluations of that priority come after all of
        them.
        """
        oldest: dict[int, int] = {}
        for evaluation in evaluations:
            oldest[evaluation.priority] = min(
                evaluation.create_index, oldest.get(evaluation.priority, evaluation.create_index)
            )
        for position, evaluation in enumerate(evaluations):
            self._slots[evaluation.id] = (oldest[evaluation.priority], position)

    def release_slots(self, evaluations: Sequence[Evaluation]) -> None:
        """Take back the reserved places in the queue of blocked evaluations that are not retried after all."""
        for evaluation in evaluations:
            self._slots.pop(evaluation.id, None)

    @property
    def remaining_slots(self) -> int:
        """The number of places in the queue that are reserved for retried evaluations and not used yet."""
        return len(self._slots)

    @property
    def has_queued(self) -> bool:
        """Whether an evaluation is in the queue. Its job may still be busy with another one."""
        return bool(self._queued)  # None waits for a place of its namespace if all places are free.

    def take_next(self) -> Evaluation | None:
        """Remove the next evaluation from the queue and return it, or `None` if no evaluation can be processed.

        Counts the delivery. Its job is then busy: other evaluations of the job wait until the caller passes this one to
        `finish`.
        """
        while (evaluation_id := self._pop_next()) is not None:
            self._slots.pop(evaluation_id, None)
            evaluation = self._pending.get(evaluation_id)
            if evaluation is None:
                continue
            job = (evaluation.namespace, evaluation.job_id)
            if self._active_by_job.get(job, evaluation_id) != evaluation_id:
                self._waiting_by_job.setdefault(job, {})[evaluation_id] = None
                continue
            self._active_by_job[job] = evaluation_id
            self._delivery_count += 1
            self._deliveries[evaluation_id] = self._deliveries.get(evaluation_id, 0) + 1
            return evaluation
        return None

    def redeliver_later(self, evaluation: Evaluation, now_ns: int) -> bool:
        """Schedule another delivery of a failed evaluation at a later time, and return True.

        Return False if it was delivered `MAX_DELIVERIES` times. The caller must then fail the evaluation and pass it to
        `finish`.
        """
        deliveries = self._deliveries.get(evaluation.id, MAX_DELIVERIES)
        if deliveries >= MAX_DELIVERIES:
            return False
        wait_ns = FIRST_REDELIVERY_DELAY_NS if deliveries == 1 else REDELIVERY_DELAY_NS * (deliveries - 1)
        self._failed[evaluation.id] = now_ns, now_ns + wait_ns
        return True

    def finish(self, evaluation: Evaluation) -> None:
        """Record that the evaluation is no longer processed, and queue the evaluations of its job that waited for it.

        If the evaluation itself is still pending, it is queued again too.
        """
        job = (evaluation.namespace, evaluation.job_id)
        if self._active_by_job.get(job) == evaluation.id:
            del self._active_by_job[job]
        self._deliveries.pop(evaluation.id, None)
        for evaluation_id in (*self._waiting_by_job.pop(job, {}), evaluation.id):
            waiting = self._pending.get(evaluation_id)
            if waiting is not None:
                self._enqueue(waiting)

    def _enqueue(self, evaluation: Evaluation) -> None:
        """Add the evaluation to the heap, at its reserved place if it has one. No effect if it is queued already.

        It waits first if all places of its namespace are used.
        """
        if evaluation.id in self._queued or evaluation.id in self._ids_without_place:
            return
        namespace = evaluation.namespace
        if evaluation.id in self._slots:
            self._queued[evaluation.id] = ""
            heapq.heappush(self._heap, (-evaluation.priority, *self._slots[evaluation.id], evaluation.id))
        elif self._used_places.get(namespace, 0) < PLACES_PER_NAMESPACE:
            self._push(evaluation, evaluation.create_index)
        else:
            self._ids_without_place[evaluation.id] = None
            entry = (-evaluation.priority, evaluation.create_index, evaluation.id)
            heapq.heappush(self._without_place.setdefault(namespace, []), entry)

    def _push(self, evaluation: Evaluation, age: int) -> None:
        """Add the evaluation to the heap, at a place of its namespace."""
        namespace = evaluation.namespace
        self._queued[evaluation.id] = namespace
        self._used_places[namespace] = self._used_places.get(namespace, 0) + 1
        heapq.heappush(self._heap, (-evaluation.priority, age, evaluation.create_index, evaluation.id))
        heapq.heappush(self._heap_by_age, (age, evaluation.create_index, evaluation.id))

    def _pop_next(self) -> str | None:
        """Remove the next id from the queue and return it, or `None` if the queue is empty."""
        heaps: list[list[Any]] = [self._heap, self._heap_by_age]
        for heap in heaps:
            if len(heap) > 2 * len(self._queued) + PLACES_PER_NAMESPACE:
                heap[:] = [entry for entry in heap if entry[-1] in self._queued]
                heapq.heapify(heap)
        if self._delivery_count % DELIVERIES_BY_AGE == DELIVERIES_BY_AGE - 1:
            heaps.reverse()
        for heap in heaps:
            while heap:
                evaluation_id: str = heapq.heappop(heap)[-1]
                if evaluation_id in self._queued:  # Else it was taken from the other heap.
                    self._free_place(self._queued.pop(evaluation_id))
                    return evaluation_id
        return None

    def _free_place(self, namespace: str) -> None:
        """Give a place of the namespace to the next of its evaluations that wait for one. Empty: the place was a slot.

        Its age counts from now. So those of other namespaces that are in the queue come first.
        """
        if not namespace:
            return
        self._used_places[namespace] -= 1
        waiting = self._without_place.get(namespace)
        while waiting:
            *_, evaluation_id = heapq.heappop(waiting)
            if evaluation_id in self._ids_without_place:
                del self._ids_without_place[evaluation_id]
                self._push(self._pending[evaluation_id], self._newest_index)
                return
        self._without_place.pop(namespace, None)
        if not self._used_places[namespace]:
            del self._used_places[namespace]


def due_at_ns(evaluation: Evaluation) -> int:
    """Return the earliest time to process the evaluation, in Unix nanoseconds; 0 if it need not wait."""
    if evaluation.wait:
        return evaluation.modify_time + evaluation.wait
    return 0 if evaluation.wait_until is None else to_ns(evaluation.wait_until)
