"""Policies: named texts of rights. What the text means is `access`'s business."""

from wharf.model.record import Record

ANONYMOUS = "anonymous"
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
