"""The table of scaling policies as jobs' groups say it: whoever stores a job stores its policies with it.

A policy keeps its id as long as the job has one of that type for that group.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from wharf.model.changes import THIS, Condition, Drop, Put
from wharf.model.job import Job
from wharf.model.scaling import ScalingPolicy
from wharf.operations.decision import Moment
from wharf.state import Replica
from wharf.state.tables import JOBS, POLICIES_OF_JOB, SCALING_POLICIES

Place = tuple[str, str, str]
"""What a policy is known by within its job: type, group, task."""


def with_policy_ids(snapshot: Replica, job: Job, moment: Moment) -> Job:
    """The job, each of its policies under the id that it has, or under a new one."""
    if not any(group.scaling is not None for group in job.groups):
        return job
    # What a purge has not taken away yet is another life's.
    is_known = snapshot.get(JOBS, job.namespace, job.id) is not None
    stored = snapshot.those(POLICIES_OF_JOB, job.namespace, job.id) if is_known else []
    ids = {place_of(policy): policy.id for policy in stored}
    groups = [
        group
        if group.scaling is None
        else replace(group, scaling=replace(group.scaling, id=ids.get(place_of(group.scaling)) or moment.new_id()))
        for group in job.groups
    ]
    return replace(job, task_groups=tuple(groups))


def follow_policies(snapshot: Replica, job: Job, changes: list[Put | Drop], conditions: list[Condition]) -> None:
    """Make the table say what the job says. The policies of a stopped job are there, and disabled."""
    stored = {policy.id: policy for policy in snapshot.those_by_key(POLICIES_OF_JOB, job.namespace, job.id)}
    for policy in policies_of(job):
        was = stored.pop(policy.id, None)
        if was is None:
            changes.append(SCALING_POLICIES.put(replace(policy, create_index=THIS)))
        elif replace(was, create_index=0, modify_index=0) != replace(policy, create_index=0, modify_index=0):
            changes.append(SCALING_POLICIES.put(replace(policy, create_index=was.create_index)))
            conditions.append(snapshot.unchanged(SCALING_POLICIES, was))
    for gone in stored.values():
        changes.append(SCALING_POLICIES.drop(gone.id))
        conditions.append(snapshot.unchanged(SCALING_POLICIES, gone))


def policies_of(job: Job) -> Iterator[ScalingPolicy]:
    """Every policy of the job, as the table lists it."""
    for group in job.groups:
        if group.scaling is not None:
            yield replace(group.scaling, enabled=group.scaling.enabled and not job.stop)


def place_of(policy: ScalingPolicy) -> Place:
    target = policy.target or {}
    return policy.type, target.get("Group", ""), target.get("Task", "")
