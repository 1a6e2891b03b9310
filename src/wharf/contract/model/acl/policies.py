"""Policies: named documents that grant or deny capabilities. `access` parses and evaluates their rules."""

from wharf.contract.model.names import NAME_RULE_TEXT, is_valid_name, list_description_problems
from wharf.contract.model.record import Record

ANONYMOUS_POLICY = "anonymous"
"""The name of the policy that applies to callers without a token, if it exists."""


class JobACL(Record):
    """The jobs, groups or tasks whose workload identities a policy applies to.

    The namespace must be set. Each other field needs the one before it; an empty one matches all.
    """

    namespace: str = ""
    job_id: str = ""
    group: str = ""
    task: str = ""


class Policy(Record):
    """A named document that grants or denies capabilities to tokens and workload identities."""

    name: str
    description: str = ""
    rules: str = ""  # The document with the granted and denied capabilities, as text.
    job_acl: JobACL | None = None  # Null: the policy applies only to tokens and roles that name it.
    hash: bytes = b""  # A digest of the content.
    create_index: int = 0
    modify_index: int = 0


def list_policy_problems(policy: Policy) -> list[str]:
    """Return an error text for each thing that is wrong with a submitted policy; empty if it is valid.

    Its rules are not checked.
    """
    found = []
    if not is_valid_name(policy.name):
        found.append(f"invalid name '{policy.name}': {NAME_RULE_TEXT}")
    found += list_description_problems(policy.description)
    if policy.job_acl is not None:
        found += _list_job_acl_problems(policy.job_acl)
    return found


def _list_job_acl_problems(job_acl: JobACL) -> list[str]:
    """Return an error text for each field that is set without the field above it, such as a task without a group."""
    found = []
    if job_acl.job_id and not job_acl.namespace:
        found.append("namespace must be set to set job ID")
    if job_acl.group and not job_acl.job_id:
        found.append("job ID must be set to set group")
    if job_acl.task and not job_acl.group:
        found.append("group must be set to set task")
    return found
