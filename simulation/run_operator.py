"""A client that answers gates, cancels runs and runs their steps again.

It calls the operations in an api process, and not through the HTTP API: other tests check the API. Nobody waits for a call,
because its process may be killed at any time.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final

from simulation.client_records import ClientRecords
from simulation.cluster import JOB_SETTINGS
from simulation.job_order import get_overlap
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.jobs.run_retry import RunRetry, retry_run
from wharf.cluster.operations.jobs.runs import GateAnswer, RunCancellation, answer_gate, cancel_run
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, JOBS
from wharf.contract.model.jobs.array_attempts import ArrayAttempt
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.step_states import StepPhase
from wharf.contract.model.refusal import Refusal

MEAN_PAUSE_S: Final = 1.0


class RunOperator:
    """Answers gates, cancels runs and runs their steps again, each time in the api process of a random server."""

    def __init__(self, records: ClientRecords, name: str) -> None:
        self.name = name
        self._records = records
        self._cluster = records.cluster
        self._random = Random(f"{records.cluster.seed}/{name}")

    async def run(self) -> None:
        """Perform random actions without end, with pauses."""
        actions = ((3, self._answer_gate), (1, self._cancel_run), (2, self._retry_run))
        while True:
            await asyncio.sleep(self._random.expovariate(1 / MEAN_PAUSE_S))
            api = self._random.choice(self._cluster.members).api
            if api.process is None or not api.is_alive or api.server is None or not api.server.replica.index:
                continue
            _, action = self._random.choices(actions, [weight for weight, _ in actions])[0]
            chosen = action(api.server.replica)
            if chosen is not None:
                api.process.start(self._execute(api.server, *chosen), name=self.name)

    async def _execute(
        self,
        server: Server,
        text: str,
        job_id: str,
        decide: Callable[[Replica, DecisionContext], Decision[Any]],
    ) -> None:
        try:
            await server.writer.execute(decide)
        except Refusal as refusal:
            text = f"{text}: {refusal.code}: {refusal.text}"
        self._records.timeline.add_event(f"{self.name} ({server.identity.name}) {text}", self.name, job_id)

    def _choose_child(self, replica: Replica, *, is_dead: bool) -> Job | None:
        """Return a run that was dispatched. Others are not changed: the history of most is checked, and only the leader may
        decide about runs of a flow with `Overlap`."""
        found = [
            job
            for job in replica.iter_all(JOBS)
            if job.is_run and job.parent_id and not get_overlap(job) and (job.status is JobStatus.DEAD) is is_dead
        ]
        return self._random.choice(sorted(found, key=lambda job: job.id)) if found else None

    def _answer_gate(self, replica: Replica) -> "Action | None":
        found = sorted(
            (attempt.job_id, attempt.namespace, name)
            for attempt in replica.iter_all(ARRAY_ATTEMPTS)
            for name in _list_gated(attempt)
        )
        if not found:
            return None
        job_id, namespace, step = self._random.choice(found)
        approve = self._random.random() < 0.8
        answer = GateAnswer(namespace=namespace, job_id=job_id, step=step, approve=approve, actor=self.name)
        text = f"{'approve' if approve else 'reject'} {step} of {job_id}"
        return text, job_id, lambda snapshot, context: answer_gate(snapshot, answer, context)

    def _cancel_run(self, replica: Replica) -> "Action | None":
        job = self._choose_child(replica, is_dead=False)
        if job is None:
            return None
        cancellation = RunCancellation(namespace=job.namespace, job_id=job.id, actor=self.name)
        return (
            f"cancel {job.id}",
            job.id,
            lambda snapshot, context: cancel_run(snapshot, cancellation, context, JOB_SETTINGS),
        )

    def _retry_run(self, replica: Replica) -> "Action | None":
        """Run the failed steps again, or one step and what follows it; mostly of a run that has ended."""
        job = self._choose_child(replica, is_dead=self._random.random() < 0.8)
        if job is None:
            return None
        steps = (self._random.choice(job.groups).name,) if self._random.random() < 0.4 else ()
        retry = RunRetry(namespace=job.namespace, job_id=job.id, steps=steps)
        return (
            f"retry {' '.join(steps)} of {job.id}",
            job.id,
            lambda snapshot, context: retry_run(snapshot, retry, context, JOB_SETTINGS),
        )


Action = tuple[str, str, Callable[[Replica, DecisionContext], Decision[Any]]]
"""What an action does in words, the job, and its operation."""


def _list_gated(attempt: ArrayAttempt) -> list[str]:
    """Return the steps of an attempt whose gate is open."""
    return [name for name, part in attempt.groups.items() if part.step and part.step.phase is StepPhase.GATED]
