"""Which evaluation is processed next: by priority, then age, at most one of a job at a time. Those that waited for room and
are tried together keep the turns that they were given among each other, and stand where the oldest of them stands.

One that is for later is kept apart until its time, and so is one that could not be processed: it is given again after
a while, a few times, and keeps its job busy until then. The broker holds nothing that the state does not hold but how
often it gave an evaluation: a new leader fills it from the pending evaluations and counts anew.
"""

import heapq
from collections.abc import Sequence
from typing import Final

from wharf.cluster.operations.evaluations import MAX_DELIVERIES
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.times import to_ns

JobKey = tuple[str, str]

SECOND_NS: Final = 1_000_000_000
FIRST_REDELIVERY_DELAY_NS: Final = SECOND_NS
REDELIVERY_DELAY_NS: Final = 20 * SECOND_NS
"""How long one waits that could not be processed: this for each time but the first that it was given."""


class EvaluationBroker:
    """The leader's queue of evaluations."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, str]] = []
        self._turns: dict[str, tuple[int, int]] = {}
        """Of those that are tried together: the age of the oldest of their priority, and the turn."""
        self._queued: dict[str, None] = {}  # Those that stand in the heap, each once.
        self._waiting: dict[str, Evaluation] = {}
        self._busy: dict[JobKey, str] = {}
        self._behind: dict[JobKey, dict[str, None]] = {}
        self._later: list[tuple[int, str]] = []
        self._woken: dict[str, None] = {}
        """Those whose time has come, though they say that they wait for it."""
        self._deliveries: dict[str, int] = {}
        self._returned: dict[str, tuple[int, int]] = {}
        """Those that were given back, since when, and until when they keep their job busy: then they are given again."""

    def __len__(self) -> int:
        return len(self._waiting)

    def count_queues(self) -> tuple[int, int, int]:
        """How many stand in the queue, wait behind another of their job, and are being processed."""
        return len(self._queued), sum(map(len, self._behind.values())), len(self._busy)

    def update(self, evaluation: Evaluation) -> None:
        """The newest version of an evaluation, whatever its status."""
        if evaluation.status is not EvaluationStatus.PENDING:
            self.remove(evaluation.id)
            return
        self._waiting[evaluation.id] = evaluation
        due_ns = due_at_ns(evaluation)
        if due_ns and evaluation.id not in self._woken:
            heapq.heappush(self._later, (due_ns, evaluation.id))
            return
        job = (evaluation.namespace, evaluation.job_id)
        if self._busy.get(job) != evaluation.id and evaluation.id not in self._behind.get(job, {}):
            self._queue(evaluation)

    def remove(self, evaluation_id: str) -> None:
        """The evaluation is no longer there."""
        evaluation = self._waiting.pop(evaluation_id, None)
        self._woken.pop(evaluation_id, None)
        self._turns.pop(evaluation_id, None)
        self._deliveries.pop(evaluation_id, None)
        if evaluation_id in self._returned:
            del self._returned[evaluation_id]
            if evaluation is not None:
                self.finish(evaluation)

    def enqueue_due(self, now_ns: int) -> None:
        """Those that waited for their time, and whose time has come, are in the queue."""
        while self._later and self._later[0][0] <= now_ns:
            _, evaluation_id = heapq.heappop(self._later)
            evaluation = self._waiting.get(evaluation_id)
            if evaluation is not None and evaluation_id not in self._woken:
                self._woken[evaluation_id] = None
                self.update(evaluation)
        for evaluation_id, (since_ns, until_ns) in [*self._returned.items()]:
            # One that was given back in the future was so before the clock was set back.
            if not since_ns <= now_ns < until_ns:
                del self._returned[evaluation_id]
                self._queue(self._waiting[evaluation_id])

    def next_wake_ns(self) -> int | None:
        """When the next of them is due; None: none waits."""
        waiting = [until_ns for _, until_ns in self._returned.values()]
        return min([*waiting, self._later[0][0]] if self._later else waiting, default=None)

    def assign_slots(self, evaluations: Sequence[Evaluation]) -> None:
        """These are about to be tried, in this order."""
        oldest: dict[int, int] = {}
        for each in evaluations:
            oldest[each.priority] = min(each.create_index, oldest.get(each.priority, each.create_index))
        for turn, each in enumerate(evaluations):
            self._turns[each.id] = (oldest[each.priority], turn)

    def release_slots(self, evaluations: Sequence[Evaluation]) -> None:
        """They are not tried after all."""
        for each in evaluations:
            self._turns.pop(each.id, None)

    @property
    def remaining_slots(self) -> int:
        """How many of those are still to come."""
        return len(self._turns)

    def take_next(self) -> Evaluation | None:
        """The next evaluation, whose job is then busy until `done`."""
        while self._heap:
            *_, evaluation_id = heapq.heappop(self._heap)
            del self._queued[evaluation_id]
            self._turns.pop(evaluation_id, None)
            evaluation = self._waiting.get(evaluation_id)
            if evaluation is None:
                continue
            job = (evaluation.namespace, evaluation.job_id)
            if self._busy.get(job, evaluation_id) != evaluation_id:
                self._behind.setdefault(job, {})[evaluation_id] = None
                continue
            self._busy[job] = evaluation_id
            self._deliveries[evaluation_id] = self._deliveries.get(evaluation_id, 0) + 1
            return evaluation
        return None

    def redeliver_later(self, evaluation: Evaluation, now_ns: int) -> bool:
        """It could not be processed. False: it was given as often as it may be, and must be failed and `done`."""
        deliveries = self._deliveries.get(evaluation.id, MAX_DELIVERIES)
        if deliveries >= MAX_DELIVERIES:
            return False
        wait_ns = FIRST_REDELIVERY_DELAY_NS if deliveries == 1 else REDELIVERY_DELAY_NS * (deliveries - 1)
        self._returned[evaluation.id] = now_ns, now_ns + wait_ns
        return True

    def finish(self, evaluation: Evaluation) -> None:
        """The job is free again; what waited behind it, and this one if it must run again, is in the queue."""
        job = (evaluation.namespace, evaluation.job_id)
        if self._busy.get(job) == evaluation.id:
            del self._busy[job]
        self._deliveries.pop(evaluation.id, None)
        for evaluation_id in (*self._behind.pop(job, {}), evaluation.id):
            waiting = self._waiting.get(evaluation_id)
            if waiting is not None:
                self._queue(waiting)

    def _queue(self, evaluation: Evaluation) -> None:
        if evaluation.id not in self._queued:
            self._queued[evaluation.id] = None
            age, turn = self._turns.get(evaluation.id, (evaluation.create_index, 0))
            heapq.heappush(self._heap, (-evaluation.priority, age, turn, evaluation.id))


def due_at_ns(evaluation: Evaluation) -> int:
    """Before when it is not to be processed; 0: it waits for nothing."""
    if evaluation.wait:
        return evaluation.modify_time + evaluation.wait
    return 0 if evaluation.wait_until is None else to_ns(evaluation.wait_until)
