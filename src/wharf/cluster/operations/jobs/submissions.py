"""The source text of a version: kept beside it while it is not too large, and gone with it."""

from typing import Final

from wharf.cluster.state.tables import JOB_SUBMISSIONS
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job, Submission
from wharf.contract.model.log import WRITE_INDEX, PutRecord

SIZE_UNITS: Final = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))


def measure_submission(source: Submission) -> int:
    """All that would be kept, in bytes."""
    texts = [source.source, source.variables, source.format]
    texts += [text for pair in (source.variable_flags or {}).items() for text in pair]
    return sum(len(text.encode()) for text in texts)


def check_submission_size(
    source: Submission | None, settings: JobSettings
) -> tuple[Submission | None, tuple[str, ...]]:
    """The source as it will be kept, and what to say where it will not be: a warning, never a refusal."""
    if source is None:
        return None, ()
    size = measure_submission(source)
    if size <= settings.max_source_bytes:
        return source, ()
    most = format_size(settings.max_source_bytes)
    return None, (f"job source size of {format_size(size)} exceeds maximum of {most} and will be discarded",)


def store_submission(source: Submission, job: Job) -> PutRecord:
    """The source stored under this version of the job."""
    return JOB_SUBMISSIONS.build_put(
        Submission(
            namespace=job.namespace,
            job_id=job.id,
            version=job.version,
            job_modify_index=WRITE_INDEX,
            source=source.source,
            format=source.format,
            variable_flags=source.variable_flags,
            variables=source.variables,
            create_index=WRITE_INDEX,
        )
    )


def format_size(byte_count: int) -> str:
    """`1.1 MB`."""
    for least, unit in SIZE_UNITS:
        if byte_count >= least:
            return f"{byte_count / least:.1f} {unit}"
    return f"{byte_count} B"
