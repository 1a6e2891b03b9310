"""The versions of a job: what changed, by whom, and when."""

import msgspec

from wharf.contract.model.jobs.job import Job
from wharf.contract.wire.jobs.messages import JobVersions
from wharf.web.rendering import build_link, format_age
from wharf.web.views.people import Author, Names, name_author
from wharf.web.views.plans import DiffView, PlanView, build_diff_view


class VersionView(msgspec.Struct, frozen=True):
    """A version of a job, with what it changed."""

    number: int
    is_current: bool
    is_stable: bool
    is_stopped: bool
    tag: str
    description: str
    submitter: Author | None
    """Who submitted it; `None` if that is not known."""
    submitted_ns: int
    age: str
    diff: DiffView | None
    """`None` for the oldest version."""
    revert_url: str


class VersionsView(msgspec.Struct, frozen=True):
    """The versions of a job, the newest first."""

    job_id: str
    job_url: str
    versions: tuple[VersionView, ...]


class RevertView(msgspec.Struct, frozen=True):
    """The question whether a job returns to an earlier version, with what that changes."""

    job_id: str
    job_url: str
    versions_url: str
    form_url: str
    number: int
    current: int
    plan: PlanView


def build_versions_view(
    job_id: str, namespace: str, reply: JobVersions, now_ns: int, names: Names | None = None
) -> VersionsView:
    """Return the versions of a job. The server sends the differences in the order of the versions."""
    diffs = reply.diffs or ()
    newest = max((job.version for job in reply.versions), default=0)
    query = {"namespace": namespace} if namespace != "default" else {}
    return VersionsView(
        job_id,
        build_link("jobs", job_id, **query),
        tuple(
            _build_version(
                job,
                build_diff_view(diffs[position]) if position < len(diffs) else None,
                is_current=job.version == newest,
                now_ns=now_ns,
                names=names or {},
                revert_url=build_link("jobs", job_id, "versions", str(job.version), "revert", **query),
            )
            for position, job in enumerate(reply.versions)
        ),
    )


def _build_version(
    job: Job, diff: DiffView | None, *, is_current: bool, now_ns: int, names: Names, revert_url: str
) -> VersionView:
    return VersionView(
        number=job.version,
        is_current=is_current,
        is_stable=job.stable,
        is_stopped=job.stop,
        tag=job.version_tag.name if job.version_tag is not None else "",
        description=job.version_tag.description if job.version_tag is not None else "",
        submitter=name_author(job.submitter_accessor_id, names),
        submitted_ns=job.submit_time,
        age=format_age(job.submit_time, now_ns),
        diff=diff,
        revert_url="" if is_current else revert_url,
    )
