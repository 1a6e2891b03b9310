"""What the policy of a lock does to other runs: who is canceled for a newer run, and which steps are too many. Leader only.

It reads only the replica, so a new leader continues where the former one stopped. Who gets a slot is decided in
`scheduling.capacity.locks` (record 0320).
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.derived_write_builder import DerivedWriteBuilder
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.run_changes import cancel_steps, end_steps, start_builder
from wharf.cluster.operations.step_states import read_stored_run, settle_steps, store_step_states
from wharf.cluster.scheduling.capacity.locks import (
    LockName,
    LockWaiter,
    QueueOrder,
    list_lock_holders,
    list_lock_waiters,
)
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import list_attempts, read_element_states
from wharf.cluster.state.tables import ELEMENTS_OF_GROUP, EVALUATIONS, EVALUATIONS_OF_JOB, JOBS, ElementPhase
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepPhase, StepState
from wharf.contract.model.jobs.steps import LockPolicy
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.times import DecisionContext

CAUSE: Final = Cause(CauseKind.TIMER, "lock")
MAX_WAITING_STEPS: Final = 1_000
"""Steps that wait for one lock. Each scheduling pass of such a step reads all of them."""


def enforce_lock(
    snapshot: Replica, lock: LockName, context: DecisionContext, *, max_waiting: int
) -> Decision[str] | None:
    """Return the decision that ends one step or run because of the lock; `None` if none has to end. The reply says which.

    A step with the policy `replace-waiting` or `replace-running` cancels the waiting steps of other runs that became ready
    before it. `replace-running` also cancels earlier runs that hold the lock. If more than `max_waiting` steps wait, the newest
    one fails.
    """
    waiters = list_lock_waiters(snapshot, lock)
    replacing = _find_replacing(waiters)
    if replacing is None and len(waiters) <= max_waiting:
        return None  # The common case, in which no other records are read.
    new_waiters = [each for each in waiters if _can_be_replaced(snapshot, each)]
    if replacing is not None and _is_ready(snapshot, replacing):
        for waiter in new_waiters:
            if waiter.order < replacing.order and waiter.evaluation.job_id != replacing.evaluation.job_id:
                return _replace_waiting(snapshot, waiter, replacing, context)
        if replacing.wait.policy == LockPolicy.REPLACE_RUNNING:
            decision = _replace_running(snapshot, lock, waiters, replacing, context)
            if decision is not None:
                return decision
    return _fail_step(snapshot, new_waiters[-1], max_waiting, context) if len(new_waiters) > max_waiting else None


def _find_replacing(waiters: Sequence[LockWaiter]) -> LockWaiter | None:
    """Return the newest step that replaces others and waits for a slot, or `None`."""
    for waiter in reversed(waiters):
        if waiter.wait.policy != LockPolicy.QUEUE and not waiter.wait.lacks_capacity:
            return waiter
    return None


def _find_step(snapshot: Replica, job: Job, step: str) -> StepState | None:
    return read_element_states(snapshot, job, step).step


def _find_job(snapshot: Replica, waiter: LockWaiter) -> Job | None:
    return snapshot.get(JOBS, waiter.evaluation.namespace, waiter.evaluation.job_id)


def _is_ready(snapshot: Replica, waiter: LockWaiter) -> bool:
    """Return whether the step still waits. Its evaluation may be older than its cancellation."""
    job = _find_job(snapshot, waiter)
    state = _find_step(snapshot, job, waiter.wait.step) if job is not None and not job.stop else None
    return state is not None and state.phase is StepPhase.READY


def _can_be_replaced(snapshot: Replica, waiter: LockWaiter) -> bool:
    """Return whether a step waits and none of its elements has begun. A step that has begun is not waiting work any more."""
    job = _find_job(snapshot, waiter)
    if job is None or job.stop:
        return False
    state = _find_step(snapshot, job, waiter.wait.step)
    if state is None or state.phase is not StepPhase.READY or state.began_at:
        return False
    return not snapshot.count_by_index(
        ELEMENTS_OF_GROUP, job.namespace, job.id, job.create_index, waiter.wait.step, ElementPhase.ALIVE
    )


def _make_cause(replacing: LockWaiter) -> StepCause:
    return StepCause(kind=StepCauseKind.LOCK, step=replacing.evaluation.job_id, detail=replacing.wait.key)


def _replace_waiting(
    snapshot: Replica, waiter: LockWaiter, replacing: LockWaiter, context: DecisionContext
) -> Decision[str] | None:
    """Return the decision that cancels a waiting step because another run wants the lock."""
    job = _find_job(snapshot, waiter)
    assert job is not None, "a step that can be replaced has a job"
    step = waiter.wait.step
    builder = start_builder(snapshot, "step-replaced", CAUSE)
    end_steps(builder, job, _make_cause(replacing), context.now_ns, selects=lambda group: group.name == step)
    return _finish(builder, job, step, context, f"step {step} of {job.id}")


def _replace_running(
    snapshot: Replica, lock: LockName, waiters: Sequence[LockWaiter], replacing: LockWaiter, context: DecisionContext
) -> Decision[str] | None:
    """Return the decision that cancels an earlier run with a step that holds the lock, or that had begun and waits again."""
    namespace = lock[0]
    earlier_steps = {(each.job_id, each.task_group) for each in list_lock_holders(snapshot, lock)}
    earlier_steps |= {(each.evaluation.job_id, each.wait.step) for each in waiters if each.order < replacing.order}
    for job_id, step in sorted(earlier_steps):
        job = snapshot.get(JOBS, namespace, job_id)
        if (
            job is None
            or job_id == replacing.evaluation.job_id
            or not _is_earlier(snapshot, job, step, replacing.order)
        ):
            continue
        builder = start_builder(snapshot, "run-replaced", CAUSE)
        cancel_steps(builder, job, _make_cause(replacing), context.now_ns)
        return _finish(builder, job, "", context, f"run {job.id}")
    return None


def _is_earlier(snapshot: Replica, job: Job, step: str, order: QueueOrder) -> bool:
    """Return whether a step became ready before this place in the queue, and its run is not canceled yet."""
    attempts = list_attempts(snapshot, job)
    group = job.find_group(step)
    if job.stop or not attempts or attempts[-1].cancel_cause is not None or group is None or group.final:
        return False
    state = _find_step(snapshot, job, step)
    return state is not None and state.phase is StepPhase.READY and (state.since, job.id, step) < order


def _fail_step(
    snapshot: Replica, waiter: LockWaiter, max_waiting: int, context: DecisionContext
) -> Decision[str] | None:
    """Return the decision that fails a step because too many steps wait for its lock."""
    job = _find_job(snapshot, waiter)
    assert job is not None, "a step that can be replaced has a job"
    step = waiter.wait.step
    builder = start_builder(snapshot, "step-failed", CAUSE)
    run = read_stored_run(builder, job)
    detail = f"{max_waiting:,} other steps wait for the lock {waiter.wait.key}, which is the limit"
    failed = replace(
        run.steps[step].facts.state,
        phase=StepPhase.FAILED,
        cause=StepCause(kind=StepCauseKind.LOCK, detail=detail),
        since=context.now_ns,
    )
    store_step_states(builder, run, {step: failed})
    settle_steps(builder, job, context.now_ns)
    return _finish(builder, job, step, context, f"step {step} of {job.id}")


def _finish(builder: DerivedWriteBuilder, job: Job, step: str, context: DecisionContext, text: str) -> Decision[str]:
    """Return the decision of a write that ends a step, or all steps of a run, with its evaluation.

    The steps leave the queue of the lock in the same write. An empty `step` stands for all of them.
    """
    evaluations = builder.snapshot.list_by_index_sorted(EVALUATIONS_OF_JOB, job.namespace, job.id)
    for evaluation in evaluations:
        if not evaluation.status.is_terminal and evaluation.lock_waits:
            builder.put_record(EVALUATIONS, _remove_wait(evaluation, step))
    builder.put_record(JOBS, job)
    builder.put_record(EVALUATIONS, make_evaluation(job, context, EvaluationTrigger.RUN_CANCEL))
    return Decision(builder.build_write(), lambda _index: text)


def _remove_wait(evaluation: Evaluation, step: str) -> Evaluation:
    remaining = tuple(wait for wait in evaluation.lock_waits or () if step and wait.step != step)
    return replace(evaluation, lock_waits=remaining or None)
