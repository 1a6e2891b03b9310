"""Workload identities: whether the signed claims of a task still hold, and which rights they imply.

Signature and expiry are verified before (`server.security`).
"""

from typing import Final

import msgspec

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES, ALLOCATIONS, JOBS
from wharf.contract.model.acl.policies import JobACL, Policy
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.variables import RESERVED_PATH_PREFIX

_VARIABLES_ROOT: Final = f"{RESERVED_PATH_PREFIX}/jobs"


class WorkloadClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a workload identity. The identity of a group's service has no task."""

    namespace: str
    job_id: str  # For a child job the parent's id, so that policies and variables can be written before children exist.
    alloc_id: str
    task: str = ""


def find_allocation(snapshot: Replica, claims: WorkloadClaims) -> Allocation | None:
    """Return the allocation of the claims; None if it is missing or terminal, or does not belong to the claimed job."""
    allocation = snapshot.get(ALLOCATIONS, claims.alloc_id)
    if allocation is None or allocation.is_terminal or allocation.namespace != claims.namespace:
        return None
    return allocation if _belongs_to_job(snapshot, allocation, claims.job_id) else None


def _belongs_to_job(snapshot: Replica, allocation: Allocation, job_id: str) -> bool:
    """Return whether the allocation is of this job or of a child of it."""
    if allocation.job_id == job_id:
        return True
    job = snapshot.get(JOBS, allocation.namespace, allocation.job_id)
    return job is not None and job.parent_id == job_id != ""


def list_implicit_paths(claims: WorkloadClaims, group: str) -> frozenset[tuple[str, str]]:
    """Return the (namespace, path) of the variables that a task may list and read without a policy."""
    paths = [_VARIABLES_ROOT, f"{_VARIABLES_ROOT}/{claims.job_id}", f"{_VARIABLES_ROOT}/{claims.job_id}/{group}"]
    if claims.task:
        paths.append(f"{_VARIABLES_ROOT}/{claims.job_id}/{group}/{claims.task}")
    return frozenset((claims.namespace, path) for path in paths)


def list_workload_policies(snapshot: Replica, claims: WorkloadClaims, group: str) -> list[Policy]:
    """Return the policies attached to the task, its group, its job or its namespace."""
    return [
        policy
        for policy in snapshot.iter_all(ACL_POLICIES)
        if policy.job_acl is not None and _is_attached(policy.job_acl, claims, group)
    ]


def _is_attached(job_acl: JobACL, claims: WorkloadClaims, group: str) -> bool:
    """Return whether a policy is attached to the task: every field that is set must match, and the namespace must be
    set."""
    return (
        job_acl.namespace == claims.namespace != ""
        and job_acl.job_id in ("", claims.job_id)
        and job_acl.group in ("", group)
        and job_acl.task in ("", claims.task)
    )
