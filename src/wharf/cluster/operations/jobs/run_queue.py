"""The queue of a flow: its runs begin one after the other (record 0316). Leader only.

Nothing is stored about the queue. A run waits while an earlier run of its flow has not ended.
"""

from itertools import islice
from typing import Final

from wharf.cluster.operations.decision import Decision, DecisionContext, WriteBuilder
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.jobs.overlap import (
    get_overlap,
    has_queue,
    has_run_begun,
    list_unfinished,
    list_unfinished_runs,
    require_launch,
)
from wharf.cluster.operations.run_changes import cancel_steps, start_builder
from wharf.cluster.operations.step_states import settle_steps
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, JOBS
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.job import Job, JobKey
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind
from wharf.contract.model.jobs.steps import FlowOverlap
from wharf.contract.model.log import Cause, CauseKind

MAX_REPLACED_RUNS: Final = 20
"""Runs that one launch cancels, the oldest ones. A launch cancels those before it, so there are more only after `Overlap` of
the flow was changed."""
MAX_REPLACED_STEPS: Final = 500
"""Steps of these runs together, if they are more than one. The states of all of them are in the write that stores the new run."""
CAUSE: Final = Cause(CauseKind.TIMER, "run-queue")


def admit_run(builder: WriteBuilder, flow: Job, run_id: str, context: DecisionContext) -> None:
    """Add to the write that launches a run of a flow what `Flow.Overlap` does to the earlier runs.

    Raises if it does not allow another run now.
    """
    require_launch(builder.snapshot, flow)
    if get_overlap(flow) != FlowOverlap.REPLACE:
        return
    steps = start_builder(builder.snapshot, "run-replaced", CAUSE)
    cause = StepCause(kind=StepCauseKind.REPLACED, step=run_id)
    replaceable = (
        run for run in list_unfinished_runs(builder.snapshot, flow) if _is_replaceable(builder.snapshot, run)
    )
    step_count = 0
    for run in islice(replaceable, MAX_REPLACED_RUNS):
        step_count += len(run.groups)
        if step_count > max(MAX_REPLACED_STEPS, len(run.groups)):
            break
        cancel_steps(steps, run, cause, context.now_ns)
        steps.put_record(EVALUATIONS, make_evaluation(run, context, EvaluationTrigger.RUN_CANCEL))
    write = steps.build_write()
    builder.changes += write.changes
    builder.conditions += write.conditions


def _is_replaceable(snapshot: Replica, run: Job) -> bool:
    """Return whether a run has neither been stopped nor canceled. Others may still run their final steps."""
    if not run.is_run or run.stop:
        return False
    newest = read_snapshot_run(snapshot, run).newest_attempt
    return newest is not None and newest.cancel_cause is None


def begin_next_run(snapshot: Replica, flow: JobKey, context: DecisionContext) -> Decision[str] | None:
    """Return the decision that begins the oldest run of a flow that has not ended; `None` if it has begun, or waits for
    something else. The reply is the ID of the run.
    """
    if not has_queue(snapshot, flow):
        return None
    create_index, run_id = list_unfinished(snapshot, *flow)[0]
    oldest = snapshot.get(JOBS, flow[0], run_id)
    if oldest is None or oldest.create_index != create_index:
        return None  # It was purged, and its tasks are being stopped.
    if not get_overlap(oldest) or not oldest.is_run or oldest.stop:
        return None
    if has_run_begun(read_snapshot_run(snapshot, oldest)):
        return None
    builder = start_builder(snapshot, "run-begun", CAUSE)
    if settle_steps(builder, oldest, context.now_ns):
        builder.put_record(EVALUATIONS, make_evaluation(oldest, context, EvaluationTrigger.STEP_READY))
    write = builder.build_write()
    return Decision(write, lambda _index: oldest.id) if write.changes else None
