"""The queue of pending evaluations: by priority, then age, and at most one evaluation of a job at a time.

Blocked evaluations that are retried together keep their order among each other, at the position of the oldest one. An
evaluation with a due time waits until then. A failed evaluation is delivered again after a delay, a limited number of
times, and keeps its job busy meanwhile. The broker holds nothing that the replica does not, except delivery counts: a
new leader fills it from the pending evaluations and counts from zero.
"""

import heapq
from collections.abc import Sequence
from typing import Final

from wharf.cluster.operations.evaluations import MAX_DELIVERIES
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.jobs.job import JobKey
from wharf.contract.model.times import SECOND, to_ns

FIRST_REDELIVERY_DELAY_NS: Final = SECOND
"""The delay after the first failed delivery."""
REDELIVERY_DELAY_NS: Final = 20 * SECOND
"""The delay before a failed evaluation is delivered again, times the number of deliveries after the first."""


class EvaluationBroker:
    """The leader's queue of pending evaluations."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, str]] = []
        self._slots: dict[str, tuple[int, int]] = {}
        """Slots of evaluations that are retried together: the age of the oldest of their priority, and a position."""
        self._queued: dict[str, None] = {}  # Evaluations that are in the heap, each once.
        self._pending: dict[str, Evaluation] = {}
        self._active_by_job: dict[JobKey, str] = {}
        self._waiting_by_job: dict[JobKey, dict[str, None]] = {}
        self._due_heap: list[tuple[int, str]] = []
        self._due_ids: dict[str, None] = {}
        """Evaluations whose due time has come."""
        self._deliveries: dict[str, int] = {}
        self._failed: dict[str, tuple[int, int]] = {}
        """Failed evaluations: when they failed, and until when they keep their job busy.

        Then they are delivered again.
        """

    def __len__(self) -> int:
        """Return the number of pending evaluations."""
        return len(self._pending)

    def count_queues(self) -> tuple[int, int, int]:
        """Return how many evaluations are in the queue, wait for another of their job, and are being processed."""
        return len(self._queued), sum(map(len, self._waiting_by_job.values())), len(self._active_by_job)

    def update(self, evaluation: Evaluation) -> None:
        """Store the newest version of an evaluation and queue it when it is due, or remove it if it is not pending."""
        if evaluation.status is not EvaluationStatus.PENDING:
            self.remove(evaluation.id)
            return
        self._pending[evaluation.id] = evaluation
        due_ns = due_at_ns(evaluation)
        if due_ns and evaluation.id not in self._due_ids:
            heapq.heappush(self._due_heap, (due_ns, evaluation.id))
            return
        job = (evaluation.namespace, evaluation.job_id)
        if self._active_by_job.get(job) != evaluation.id and evaluation.id not in self._waiting_by_job.get(job, {}):
            self._enqueue(evaluation)

    def remove(self, evaluation_id: str) -> None:
        """Remove a deleted or ended evaluation."""
        evaluation = self._pending.pop(evaluation_id, None)
        self._due_ids.pop(evaluation_id, None)
        self._slots.pop(evaluation_id, None)
        self._deliveries.pop(evaluation_id, None)
        if evaluation_id in self._failed:
            del self._failed[evaluation_id]
            if evaluation is not None:
                self.finish(evaluation)

    def enqueue_due(self, now_ns: int) -> None:
        """Queue the evaluations whose due time or redelivery time has come."""
        while self._due_heap and self._due_heap[0][0] <= now_ns:
            _, evaluation_id = heapq.heappop(self._due_heap)
            evaluation = self._pending.get(evaluation_id)
            if evaluation is not None and evaluation_id not in self._due_ids:
                self._due_ids[evaluation_id] = None
                self.update(evaluation)
        for evaluation_id, (since_ns, until_ns) in [*self._failed.items()]:
            # A failure in the future was recorded before the clock was set back.
            if not since_ns <= now_ns < until_ns:
                del self._failed[evaluation_id]
                self._enqueue(self._pending[evaluation_id])

    def next_wake_ns(self) -> int | None:
        """Return when the next waiting evaluation is due, or `None`."""
        due_times = [until_ns for _, until_ns in self._failed.values()]
        return min([*due_times, self._due_heap[0][0]] if self._due_heap else due_times, default=None)

    def assign_slots(self, evaluations: Sequence[Evaluation]) -> None:
        """Assign slots to blocked evaluations that are about to be retried in this order."""
        oldest: dict[int, int] = {}
        for evaluation in evaluations:
            oldest[evaluation.priority] = min(
                evaluation.create_index, oldest.get(evaluation.priority, evaluation.create_index)
            )
        for position, each in enumerate(evaluations):
            self._slots[each.id] = (oldest[each.priority], position)

    def release_slots(self, evaluations: Sequence[Evaluation]) -> None:
        """Drop the slots of evaluations that are not retried after all."""
        for evaluation in evaluations:
            self._slots.pop(evaluation.id, None)

    @property
    def remaining_slots(self) -> int:
        """The number of assigned slots that were not used yet."""
        return len(self._slots)

    def take_next(self) -> Evaluation | None:
        """Remove the next evaluation from the queue and return it, or `None` if no evaluation can be processed.

        Its job is busy until `finish` is called: other evaluations of the job wait. Also counts the delivery.
        """
        while self._heap:
            *_, evaluation_id = heapq.heappop(self._heap)
            del self._queued[evaluation_id]
            self._slots.pop(evaluation_id, None)
            evaluation = self._pending.get(evaluation_id)
            if evaluation is None:
                continue
            job = (evaluation.namespace, evaluation.job_id)
            if self._active_by_job.get(job, evaluation_id) != evaluation_id:
                self._waiting_by_job.setdefault(job, {})[evaluation_id] = None
                continue
            self._active_by_job[job] = evaluation_id
            self._deliveries[evaluation_id] = self._deliveries.get(evaluation_id, 0) + 1
            return evaluation
        return None

    def redeliver_later(self, evaluation: Evaluation, now_ns: int) -> bool:
        """Schedule another delivery of a failed evaluation.

        Return False if all deliveries are used. The caller must then fail the evaluation and call `finish`.
        """
        deliveries = self._deliveries.get(evaluation.id, MAX_DELIVERIES)
        if deliveries >= MAX_DELIVERIES:
            return False
        wait_ns = FIRST_REDELIVERY_DELAY_NS if deliveries == 1 else REDELIVERY_DELAY_NS * (deliveries - 1)
        self._failed[evaluation.id] = now_ns, now_ns + wait_ns
        return True

    def finish(self, evaluation: Evaluation) -> None:
        """Release the job, and queue the evaluations that waited for it.

        The evaluation itself is queued again if it is still pending.
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
        """Add the evaluation to the heap."""
        if evaluation.id not in self._queued:
            self._queued[evaluation.id] = None
            age, position = self._slots.get(evaluation.id, (evaluation.create_index, 0))
            heapq.heappush(self._heap, (-evaluation.priority, age, position, evaluation.id))


def due_at_ns(evaluation: Evaluation) -> int:
    """Return when the evaluation may be processed. 0: at once."""
    if evaluation.wait:
        return evaluation.modify_time + evaluation.wait
    return 0 if evaluation.wait_until is None else to_ns(evaluation.wait_until)
