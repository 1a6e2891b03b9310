"""Keep the table of scaling policies equal to the scaling blocks of the jobs' groups. Used by every operation that
stores a job.

A policy keeps its id while the job has a policy with the same target.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from wharf.cluster.operations.decision import DecisionContext, WriteBuilder
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS, SCALING_POLICIES, SCALING_POLICIES_OF_JOB
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.scaling import ScalingPolicy

PolicyTarget = tuple[str, str, str]
"""Identifies a policy within its job: type, group, task."""


def assign_policy_ids(snapshot: Replica, job: Job, context: DecisionContext) -> Job:
    """Return the job with an id for each of its scaling policies: the stored id of the same target, or a new one."""
    if not any(group.scaling is not None for group in job.groups):
        return job
    # If the job does not exist, policies that a purge has not deleted yet belong to an earlier job of this name.
    has_stored_job = snapshot.get(JOBS, job.namespace, job.id) is not None
    stored = snapshot.list_by_index(SCALING_POLICIES_OF_JOB, job.namespace, job.id) if has_stored_job else []
    ids = {get_policy_target(policy): policy.id for policy in stored}
    groups = [
        group
        if group.scaling is None
        else replace(
            group, scaling=replace(group.scaling, id=ids.get(get_policy_target(group.scaling)) or context.new_id())
        )
        for group in job.groups
    ]
    return replace(job, task_groups=tuple(groups))


def sync_policies(builder: WriteBuilder, job: Job) -> None:
    """Add to the write the changes that make the stored scaling policies equal to those of the job.

    Policies of a stopped job are disabled.
    """
    policies = builder.snapshot.list_by_index_sorted(SCALING_POLICIES_OF_JOB, job.namespace, job.id)
    stored = {policy.id: policy for policy in policies}
    for policy in iterate_policies(job):
        stored_policy = stored.pop(policy.id, None)
        if stored_policy is None:
            builder.put(SCALING_POLICIES, replace(policy, create_index=WRITE_INDEX))
        elif replace(stored_policy, create_index=0, modify_index=0) != replace(policy, create_index=0, modify_index=0):
            builder.put(SCALING_POLICIES, replace(policy, create_index=stored_policy.create_index))
            builder.require_unchanged_record(SCALING_POLICIES, stored_policy)
    for obsolete in stored.values():
        builder.delete(SCALING_POLICIES, obsolete.id)
        builder.require_unchanged_record(SCALING_POLICIES, obsolete)


def iterate_policies(job: Job) -> Iterator[ScalingPolicy]:
    """Yield the scaling policies of the job as they are stored: disabled if the job is stopped."""
    for group in job.groups:
        if group.scaling is not None:
            yield replace(group.scaling, enabled=group.scaling.enabled and not job.stop)


def get_policy_target(policy: ScalingPolicy) -> PolicyTarget:
    """Return what identifies a scaling policy within its job: its type, group and task."""
    target = policy.target or {}
    return policy.type, target.get("Group", ""), target.get("Task", "")
