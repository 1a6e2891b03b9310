"""The table of scaling policies as jobs' groups say it: whoever stores a job stores its policies with it.

A policy keeps its id as long as the job has one of that type for that group.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from wharf.cluster.operations.decision import DecisionContext
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS, SCALING_POLICIES, SCALING_POLICIES_OF_JOB
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Condition, DeleteRecord, PutRecord
from wharf.contract.model.scaling import ScalingPolicy

PolicyTarget = tuple[str, str, str]
"""What a policy is known by within its job: type, group, task."""


def assign_policy_ids(snapshot: Replica, job: Job, context: DecisionContext) -> Job:
    """The job, each of its policies under the id that it has, or under a new one."""
    if not any(group.scaling is not None for group in job.groups):
        return job
    # What a purge has not taken away yet is another life's.
    is_known = snapshot.get(JOBS, job.namespace, job.id) is not None
    stored = snapshot.list_by_index(SCALING_POLICIES_OF_JOB, job.namespace, job.id) if is_known else []
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


def sync_policies(
    snapshot: Replica, job: Job, changes: list[PutRecord | DeleteRecord], conditions: list[Condition]
) -> None:
    """Make the table say what the job says. The policies of a stopped job are there, and disabled."""
    stored = {
        policy.id: policy for policy in snapshot.list_by_index_sorted(SCALING_POLICIES_OF_JOB, job.namespace, job.id)
    }
    for policy in iterate_policies(job):
        was = stored.pop(policy.id, None)
        if was is None:
            changes.append(SCALING_POLICIES.build_put(replace(policy, create_index=WRITE_INDEX)))
        elif replace(was, create_index=0, modify_index=0) != replace(policy, create_index=0, modify_index=0):
            changes.append(SCALING_POLICIES.build_put(replace(policy, create_index=was.create_index)))
            conditions.append(snapshot.build_record_condition(SCALING_POLICIES, was))
    for gone in stored.values():
        changes.append(SCALING_POLICIES.build_delete(gone.id))
        conditions.append(snapshot.build_record_condition(SCALING_POLICIES, gone))


def iterate_policies(job: Job) -> Iterator[ScalingPolicy]:
    """Every policy of the job, as the table lists it."""
    for group in job.groups:
        if group.scaling is not None:
            yield replace(group.scaling, enabled=group.scaling.enabled and not job.stop)


def get_policy_target(policy: ScalingPolicy) -> PolicyTarget:
    target = policy.target or {}
    return policy.type, target.get("Group", ""), target.get("Task", "")
