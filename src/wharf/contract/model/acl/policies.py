"""Policies: named texts of rights. What the text means is `access`'s business."""

from wharf.contract.model.names import is_valid_name, list_description_problems
from wharf.contract.model.record import Record

ANONYMOUS_POLICY = "anonymous"
"""The policy of callers without a token, where it exists."""


class JobACL(Record):
    """Attaches a policy to the identities of a job's tasks; each level needs the one before."""

    namespace: str = ""
    job_id: str = ""
    group: str = ""
    task: str = ""


class Policy(Record):
    name: str
    description: str = ""
    rules: str = ""
    job_acl: JobACL | None = None
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


def list_policy_problems(policy: Policy) -> list[str]:
    """Everything that is wrong with a policy somebody wants to write, but for its rules: see `access`."""
    found = []
    if not is_valid_name(policy.name):
        found.append(f"invalid name '{policy.name}'")
    found += list_description_problems(policy.description)
    if policy.job_acl is not None:
        found += _binding_problems(policy.job_acl)
    return found


def _binding_problems(job: JobACL) -> list[str]:
    """Each level needs the one above it."""
    found = []
    if job.job_id and not job.namespace:
        found.append("namespace must be set to set job ID")
    if job.group and not job.job_id:
        found.append("job ID must be set to set group")
    if job.task and not job.group:
        found.append("group must be set to set task")
    return found
