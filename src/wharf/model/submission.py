"""Submissions: the source text that a version of a job was made from, with its variables."""

from wharf.model.record import Record


class Submission(Record):
    namespace: str
    job_id: str
    version: int = 0
    job_modify_index: int = 0
    source: str = ""
    format: str = ""  # "hcl2" or "json"
    variable_flags: dict[str, str] | None = None
    variables: str = ""
    create_index: int = 0
    modify_index: int = 0
