"""Which evaluation is processed next: by priority, then age, at most one of a job at a time.

It holds nothing that the state does not hold: a new leader fills it from the pending evaluations. Deliveries, delays
and failed follow-ups come with the scheduling issue.
"""

import heapq

from wharf.model.evaluation import Evaluation, EvaluationStatus

JobKey = tuple[str, str]


class Broker:
    """The leader's queue of evaluations."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []
        self._queued: dict[str, None] = {}  # Those that stand in the heap, each once.
        self._waiting: dict[str, Evaluation] = {}
        self._busy: dict[JobKey, str] = {}
        self._behind: dict[JobKey, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def counts(self) -> tuple[int, int, int]:
        """How many stand in the queue, wait behind another of their job, and are being processed."""
        return len(self._queued), sum(map(len, self._behind.values())), len(self._busy)

    def hear(self, evaluation: Evaluation) -> None:
        """The newest version of an evaluation, whatever its status."""
        if evaluation.status is not EvaluationStatus.PENDING:
            self._waiting.pop(evaluation.id, None)
            return
        self._waiting[evaluation.id] = evaluation
        job = (evaluation.namespace, evaluation.job_id)
        if self._busy.get(job) != evaluation.id and evaluation.id not in self._behind.get(job, {}):
            self._queue(evaluation)

    def forget(self, evaluation_id: str) -> None:
        """The evaluation is no longer there."""
        self._waiting.pop(evaluation_id, None)

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
