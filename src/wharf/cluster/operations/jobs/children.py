"""Create child jobs of periodic and parameterized jobs.

Only the leader's scheduler process creates them, because it counts the children of a job. When to launch one is
decided elsewhere.
"""

from typing import Final

import msgspec
from msgspec.structs import astuple, replace

from wharf.cluster.operations.decision import Decision, DecisionContext, WriteBuilder
from wharf.cluster.operations.jobs.arrays import add_attempt
from wharf.cluster.operations.jobs.overlap import get_overlap
from wharf.cluster.operations.jobs.registration import add_periodic_launch, make_job_evaluation
from wharf.cluster.operations.jobs.summaries import make_job_summary
from wharf.cluster.operations.scaling import assign_policy_ids, sync_policies
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, JOB_SUMMARIES, JOB_VERSIONS, JOBS
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind

MAX_SMALL_PARENT_PARTS: Final = 150
"""A child of a job with more parts (groups, tasks, services, templates and the like) takes more than 2 ms to make."""


class ChildJobResult(msgspec.Struct, frozen=True):
    """The result of a dispatch or launch of a child job."""

    index: int  # The log index of the write, or of the child if it existed already.
    job_id: str  # The id of the child.
    job_create_index: int  # The log index at which the child was created.
    eval_id: str = ""  # The evaluation of the child; empty if none was created.
    eval_create_index: int = 0  # The log index of that evaluation.


def has_large_children(snapshot: Replica, namespace: str, job_id: str) -> bool:
    """Return whether to make a child of the job takes long, so that it is decided off the event loop."""
    unvisited: list[msgspec.Struct] = [job] if (job := snapshot.get(JOBS, namespace, job_id)) is not None else []
    part_count = 0
    while unvisited:
        part_count += 1
        for value in astuple(unvisited.pop()):
            if isinstance(value, msgspec.Struct):
                unvisited.append(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
                unvisited += value
        if part_count + len(unvisited) > MAX_SMALL_PARENT_PARTS:
            return True
    return False


def make_child_job(parent: Job, child_id: str, context: DecisionContext, settings: JobSettings) -> Job:
    """Return a new job with the id `child_id` and the specification of its parent."""
    child = replace(
        parent,
        id=child_id,
        name=child_id,
        parent_id=parent.id,
        status_description="",
        version=0,
        version_tag=None,
        stable=False,
        submit_time=context.now_ns,
        create_index=WRITE_INDEX,
        job_modify_index=WRITE_INDEX,
    )
    return canonicalize_job(child, settings)  # Values that contain the job's id now contain the child's.


def store_child_job(
    builder: WriteBuilder,
    parent: Job,
    child: Job,
    trigger: EvaluationTrigger,
    context: DecisionContext,
    *,
    write_kind: str,
    cause: str,
) -> Decision[ChildJobResult]:
    """Return the decision that stores a child job with its first version, its summary and its evaluation.

    The write conflicts if the parent changed meanwhile. `builder` may already contain further changes for the same
    write.
    """
    child = assign_policy_ids(builder.snapshot, child, context)
    add_attempt(builder, child, None)
    builder.put(JOBS, child)
    builder.put(JOB_VERSIONS, child)
    builder.put(JOB_SUMMARIES, make_job_summary(child))
    builder.require_unchanged_record(JOBS, parent)
    builder.require_unchanged_parents(JOBS, child)
    builder.require_unchanged_key(JOBS, child.namespace, child.id)
    builder.require_unchanged_key(JOB_SUMMARIES, child.namespace, child.id)
    if get_overlap(parent):
        # A run that begins again after its end changes the counts of its flow (record 0345).
        builder.require_unchanged_key(JOB_SUMMARIES, parent.namespace, parent.id)
    sync_policies(builder, child)
    add_periodic_launch(builder, child, context)
    evaluation = make_job_evaluation(child, context, trigger)
    if evaluation is not None:
        builder.put(EVALUATIONS, evaluation)
    return Decision(
        builder.build(write_kind, Cause(CauseKind.REQUEST, cause)),
        lambda index: make_child_result(index, child.id, index, evaluation),
    )


def make_child_result(index: int, child_id: str, create_index: int, evaluation: Evaluation | None) -> ChildJobResult:
    """Return the reply for a child job.

    `index` is that of the write, and `evaluation` the one that it created, if any.
    """
    if evaluation is None:
        return ChildJobResult(index, child_id, create_index)
    return ChildJobResult(index, child_id, create_index, evaluation.id, index)
