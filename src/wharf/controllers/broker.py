"""Which evaluation is processed next: by priority, then age, at most one of a job at a time.

One that is for later is kept apart until its time. The broker holds nothing that the state does not hold: a new leader
fills it from the pending evaluations. Deliveries and failed follow-ups come with the scheduling issue.
"""

import heapq

from wharf.model.evaluation import Evaluation, EvaluationStatus
from wharf.model.moment import to_ns

JobKey = tuple[str, str]


class Broker:
    """The leader's queue of evaluations."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []
        self._queued: dict[str, None] = {}  # Those that stand in the heap, each once.
        self._waiting: dict[str, Evaluation] = {}
        self._busy: dict[JobKey, str] = {}
        self._behind: dict[JobKey, dict[str, None]] = {}
        self._later: list[tuple[int, str]] = []
        self._woken: dict[str, None] = {}
        """Those whose time has come, though they say that they wait for it."""

    def __len__(self) -> int:
        return len(self._waiting)

    def counts(self) -> tuple[int, int, int]:
        """How many stand in the queue, wait behind another of their job, and are being processed."""
        return len(self._queued), sum(map(len, self._behind.values())), len(self._busy)

    def hear(self, evaluation: Evaluation) -> None:
        """The newest version of an evaluation, whatever its status."""
        if evaluation.status is not EvaluationStatus.PENDING:
            self.forget(evaluation.id)
            return
        self._waiting[evaluation.id] = evaluation
        due_ns = due_at_ns(evaluation)
        if due_ns and evaluation.id not in self._woken:
            heapq.heappush(self._later, (due_ns, evaluation.id))
            return
        job = (evaluation.namespace, evaluation.job_id)
        if self._busy.get(job) != evaluation.id and evaluation.id not in self._behind.get(job, {}):
            self._queue(evaluation)

    def forget(self, evaluation_id: str) -> None:
        """The evaluation is no longer there."""
        self._waiting.pop(evaluation_id, None)
        self._woken.pop(evaluation_id, None)

    def wake(self, now_ns: int) -> None:
        """Those that waited for their time, and whose time has come, are in the queue."""
        while self._later and self._later[0][0] <= now_ns:
            _, evaluation_id = heapq.heappop(self._later)
            evaluation = self._waiting.get(evaluation_id)
            if evaluation is not None and evaluation_id not in self._woken:
                self._woken[evaluation_id] = None
                self.hear(evaluation)

    def next_wake_ns(self) -> int | None:
        """When the next of them is due; None: none waits."""
        return self._later[0][0] if self._later else None

    def next(self) -> Evaluation | None:
        """The next evaluation, whose job is then busy until `done`."""
        while self._heap:
            _, _, evaluation_id = heapq.heappop(self._heap)
            del self._queued[evaluation_id]
            evaluation = self._waiting.get(evaluation_id)
            if evaluation is None:
                continue
            job = (evaluation.namespace, evaluation.job_id)
            if job in self._busy:
                self._behind.setdefault(job, {})[evaluation_id] = None
                continue
            self._busy[job] = evaluation_id
            return evaluation
        return None

    def done(self, evaluation: Evaluation) -> None:
        """The job is free again; what waited behind it, and this one if it must run again, is in the queue."""
        job = (evaluation.namespace, evaluation.job_id)
        if self._busy.get(job) == evaluation.id:
            del self._busy[job]
        for evaluation_id in (*self._behind.pop(job, {}), evaluation.id):
            waiting = self._waiting.get(evaluation_id)
            if waiting is not None:
                self._queue(waiting)

    def _queue(self, evaluation: Evaluation) -> None:
        if evaluation.id not in self._queued:
            self._queued[evaluation.id] = None
            heapq.heappush(self._heap, (-evaluation.priority, evaluation.create_index, evaluation.id))


def due_at_ns(evaluation: Evaluation) -> int:
    """Before when it is not to be processed; 0: it waits for nothing."""
    if evaluation.wait:
        return evaluation.modify_time + evaluation.wait
    return 0 if evaluation.wait_until is None else to_ns(evaluation.wait_until)
