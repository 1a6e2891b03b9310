"""Policies: named documents that grant or deny capabilities. `access` parses and evaluates their rules."""

from wharf.contract.model.names import is_valid_name, list_description_problems
from wharf.contract.model.record import Record

ANONYMOUS_POLICY = "anonymous"
"""The name of the policy that applies to callers without a token, if it exists."""


class JobACL(Record):
    """Attaches a policy to the workload identities of a job, a group or a task. Each level needs the one above it."""

    namespace: str = ""
    job_id: str = ""
    group: str = ""
    task: str = ""


class Policy(Record):
    """A named document that grants or denies capabilities."""

    name: str
    description: str = ""
    rules: str = ""
    job_acl: JobACL | None = None
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


def list_policy_problems(policy: Policy) -> list[str]:
    """Return everything that is wrong with a submitted policy, except for its rules, which `access` checks."""
    found = []
    if not is_valid_name(policy.name):
        found.append(f"invalid name '{policy.name}'")
    found += list_description_problems(policy.description)
    if policy.job_acl is not None:
        found += _list_job_acl_problems(policy.job_acl)
    return found


def _list_job_acl_problems(job: JobACL) -> list[str]:
    """Return an error for each level that is set without the one above it."""
    found = []
    if job.job_id and not job.namespace:
        found.append("namespace must be set to set job ID")
    if job.group and not job.job_id:
        found.append("job ID must be set to set group")
    if job.task and not job.group:
        found.append("group must be set to set task")
    return found
