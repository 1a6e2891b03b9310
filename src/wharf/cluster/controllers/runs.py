"""The timers of runs, and what happens when one expires: gates, deadlines of runs, and the time of final steps. Leader only.

All times are stored with the run, so a new leader continues the timers of the former one.
"""

from typing import Final

from wharf.cluster.controllers.deadlines import NEVER_S, DeadlineHeap
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.run_changes import cancel_steps, end_final_steps, start_builder
from wharf.cluster.operations.step_states import settle_steps
from wharf.cluster.scheduling.steps.decider import judge_run
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, JOBS
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.array_attempts import ArrayAttempt
from wharf.contract.model.jobs.job import JobKey
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepPhase
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.times import DecisionContext

CAUSE: Final = Cause(CauseKind.TIMER, "run")


def find_deadline_ns(attempt: ArrayAttempt) -> int:
    """Return when the next timer of an attempt expires, in Unix nanoseconds; 0 if it has none."""
    gates = (
        part.step.gate_deadline
        for part in attempt.groups.values()
        if part.step is not None and part.step.phase is StepPhase.GATED
    )
    return min(filter(None, (attempt.deadline, *gates)), default=0)


class RunTimers:
    """The next deadline of each attempt that has one. Times are of the leader's wall clock."""

    def __init__(self) -> None:
        self._heap = DeadlineHeap[str]()
        """Deadlines in Unix nanoseconds: seconds as floating-point numbers would expire a timer too early."""
        self._jobs: dict[str, JobKey] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def update(self, key: str, attempt: ArrayAttempt | None) -> None:
        """Store the deadline of a new or changed attempt. `key` is its key; `None`: it was deleted."""
        deadline_ns = find_deadline_ns(attempt) if attempt is not None else 0
        if attempt is None or not deadline_ns:
            self._heap.remove(key)
            self._jobs.pop(key, None)
            return
        self._heap.set_deadline(key, deadline_ns)
        self._jobs[key] = attempt.namespace, attempt.job_id

    def take_due(self, now_ns: int) -> list[JobKey]:
        """Return the jobs whose deadlines have passed, each once. Their attempts have a deadline again when they change."""
        late = self._heap.take_late(now_ns)
        return list(dict.fromkeys(self._jobs.pop(key) for key in late))

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline in Unix nanoseconds, or `None`."""
        deadline_ns = self._heap.next_deadline_s()
        return None if deadline_ns == NEVER_S else int(deadline_ns)


def expire_run(snapshot: Replica, key: JobKey, context: DecisionContext, *, due_ns: int = 0) -> Decision[str] | None:
    """Return the decision that ends what has expired of a run; `None` if nothing has. The reply says what it was.

    `due_ns` is when the timer expired: the clock may have been set back by a little since.

    A gate without an answer fails its step. A run that takes too long is canceled. Final steps that take too long after that
    are stopped.
    """
    job = snapshot.get(JOBS, *key)
    if job is None or job.stop or not job.is_run:
        return None
    run = read_snapshot_run(snapshot, job)
    newest = run.newest_attempt
    if newest is None or judge_run(run.iter_facts()).outcome:
        return None
    now_ns = max(context.now_ns, due_ns)
    builder = start_builder(snapshot, "run-expired", CAUSE)
    trigger = EvaluationTrigger.RUN_CANCEL
    if newest.deadline and newest.deadline <= now_ns:
        expired, is_evaluation_needed = "run", True
        if newest.cancel_cause is None:
            cancel_steps(builder, job, StepCause(kind=StepCauseKind.DEADLINE, detail="Flow.Deadline"), now_ns)
        else:
            expired = "final steps"
            end_final_steps(builder, job, now_ns)
    elif any(each.state.phase is StepPhase.GATED and each.state.gate_deadline <= now_ns for each in run.iter_facts()):
        expired, trigger = "gate", EvaluationTrigger.STEP_READY
        is_evaluation_needed = settle_steps(builder, job, now_ns)
    else:
        return None
    if is_evaluation_needed:
        builder.put_record(EVALUATIONS, make_evaluation(job, context, trigger))
    return Decision(builder.build_write(), lambda _index: expired)
