"""The source text of a version: kept beside it while it is not too large, and gone with it."""

from typing import Final

from wharf.model.changes import THIS, Put
from wharf.model.job import Job
from wharf.model.job_settings import JobSettings
from wharf.model.submission import Submission
from wharf.state.tables import SUBMISSIONS

UNITS: Final = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))


def size_of(source: Submission) -> int:
    """All that would be kept, in bytes."""
    texts = [source.source, source.variables, source.format]
    texts += [text for pair in (source.variable_flags or {}).items() for text in pair]
    return sum(len(text.encode()) for text in texts)


def judge_source(source: Submission | None, settings: JobSettings) -> tuple[Submission | None, tuple[str, ...]]:
    """The source as it will be kept, and what to say where it will not be: a warning, never a refusal."""
    if source is None:
        return None, ()
    size = size_of(source)
    if size <= settings.max_source_bytes:
        return source, ()
    most = say_size(settings.max_source_bytes)
    return None, (f"job source size of {say_size(size)} exceeds maximum of {most} and will be discarded",)


def kept_with(source: Submission, job: Job) -> Put:
    """The source stored under this version of the job."""
    return SUBMISSIONS.put(
        Submission(
            namespace=job.namespace,
            job_id=job.id,
            version=job.version,
            job_modify_index=THIS,
            source=source.source,
            format=source.format,
            variable_flags=source.variable_flags,
            variables=source.variables,
            create_index=THIS,
        )
    )


def say_size(count: int) -> str:
    """`1.1 MB`."""
    for least, unit in UNITS:
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count} B"
