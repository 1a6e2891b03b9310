"""Workload identities: what a task's signed claims say, whether they still hold, and what a task may do by being itself.

That the signature is right, and that the claims have not run out, is checked before they come here.
"""

from typing import Final

import msgspec

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES, ALLOCATIONS, JOBS
from wharf.contract.model.acl.policies import JobACL, Policy
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.variables import RESERVED_PATH_PREFIX

_ROOT: Final = f"{RESERVED_PATH_PREFIX}/jobs"


class WorkloadClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What an identity says of its bearer. A service of a group has no task."""

    namespace: str
    job_id: str  # Of a child: its parent's, so that variables and policies can wait for children to come.
    alloc_id: str
    task: str = ""


def find_allocation(snapshot: Replica, claims: WorkloadClaims) -> Allocation | None:
    """The allocation that the claims speak of, while it is not terminal; None where they do not hold any more."""
    allocation = snapshot.get(ALLOCATIONS, claims.alloc_id)
    if allocation is None or allocation.is_terminal or allocation.namespace != claims.namespace:
        return None
    return allocation if _is_of_job(snapshot, allocation, claims.job_id) else None


def _is_of_job(snapshot: Replica, allocation: Allocation, job_id: str) -> bool:
    if allocation.job_id == job_id:
        return True
    job = snapshot.get(JOBS, allocation.namespace, allocation.job_id)
    return job is not None and job.parent_id == job_id != ""


def list_implicit_paths(claims: WorkloadClaims, group: str) -> frozenset[tuple[str, str]]:
    """The (namespace, path) of the variables that a task may list and read without a policy."""
    paths = [_ROOT, f"{_ROOT}/{claims.job_id}", f"{_ROOT}/{claims.job_id}/{group}"]
    if claims.task:
        paths.append(f"{_ROOT}/{claims.job_id}/{group}/{claims.task}")
    return frozenset((claims.namespace, path) for path in paths)


def list_workload_policies(snapshot: Replica, claims: WorkloadClaims, group: str) -> list[Policy]:
    """The policies that are attached to the task, its group, its job or its namespace."""
    return [
        policy
        for policy in snapshot.iter_all(ACL_POLICIES)
        if policy.job_acl is not None and _is_attached(policy.job_acl, claims, group)
    ]


def _is_attached(to: JobACL, claims: WorkloadClaims, group: str) -> bool:
    """Each level that is set must be the task's. A policy whose namespace is not set is attached to nothing."""
    return (
        to.namespace == claims.namespace != ""
        and to.job_id in ("", claims.job_id)
        and to.group in ("", group)
        and to.task in ("", claims.task)
    )
