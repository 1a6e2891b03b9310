"""The source text of a job version: stored beside the version if it is small enough, and deleted with it."""

from typing import Final, TypeAlias

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOB_VERSIONS, SUBMISSIONS_OF_JOB
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job, Submission
from wharf.contract.model.jobs.sensitive_fields import HiddenFields
from wharf.contract.model.log import WRITE_INDEX

SIZE_UNITS: Final = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))
"""Bytes of a unit and its name, the largest first."""


def measure_submission(source: Submission) -> int:
    """Return the size of the texts of a job's source that would be stored, in bytes."""
    texts = [source.source, source.variables, source.format]
    texts += [text for pair in (source.variable_flags or {}).items() for text in pair]
    return sum(len(text.encode()) for text in texts)


def check_submission_size(
    source: Submission | None, settings: JobSettings
) -> tuple[Submission | None, tuple[str, ...]]:
    """Return the source text to store, and warnings.

    If the source is too large, return `None` and one warning. The sensitive fields of the job are stored without it.
    """
    if source is None:
        return None, ()
    size = measure_submission(source)
    if size <= settings.max_source_bytes:
        return source, ()
    limit_text = format_size(settings.max_source_bytes)
    rest = Submission(namespace=source.namespace, job_id=source.job_id, sensitive_fields=source.sensitive_fields)
    return rest if source.sensitive_fields else None, (
        f"job source size of {format_size(size)} exceeds maximum of {limit_text} and will be discarded",
    )


def make_submission(source: Submission, job: Job) -> Submission:
    """Return the record that stores the source text with the current version of the job."""
    return Submission(
        namespace=job.namespace,
        job_id=job.id,
        version=job.version,
        job_modify_index=WRITE_INDEX,
        source=source.source,
        format=source.format,
        variable_flags=source.variable_flags,
        variables=source.variables,
        sensitive_fields=source.sensitive_fields,
        create_index=WRITE_INDEX,
    )


def has_source(submission: Submission) -> bool:
    """Return whether a record has a source text, or only the sensitive fields of a job whose source is too large."""
    return bool(submission.source or submission.format)


SensitiveVersions: TypeAlias = list[tuple[tuple[str, ...], Job]]
"""The sensitive fields of versions of a job, with these versions."""


def list_sensitive_versions(snapshot: Replica, namespace: str, job_id: str) -> SensitiveVersions:
    """Return the stored versions of a job that have sensitive fields."""
    return [
        (submission.sensitive_fields, version)
        for submission in snapshot.list_by_index(SUBMISSIONS_OF_JOB, namespace, job_id)
        if submission.sensitive_fields
        and (version := snapshot.get(JOB_VERSIONS, namespace, job_id, submission.version)) is not None
    ]


def find_hidden_fields(versions: SensitiveVersions) -> HiddenFields | None:
    """Return the fields that differences of a job hide: those that are sensitive in any version. `None`: no field is."""
    hidden = HiddenFields()
    for pointers, version in versions:
        hidden.add_pointers(pointers, version)
    return hidden if versions else None


def format_size(byte_count: int) -> str:
    """Return a number of bytes as text with one decimal, such as `1.1 MB`."""
    for unit_bytes, unit in SIZE_UNITS:
        if byte_count >= unit_bytes:
            return f"{byte_count / unit_bytes:.1f} {unit}"
    return f"{byte_count} B"
