"""The pages of the versions of a job, and the return to one of them."""

from typing import Final

from wharf.contract.client.errors import InvalidRequest
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import RefusalCode
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.pages.people import find_names
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.plans import build_plan_view
from wharf.web.views.versions import RevertView, build_versions_view


async def list_versions(request: PageRequest) -> Page | Redirect:
    """Show what each version of a job changed, by whom, and when."""
    job_id, namespace = request.path_values["job"], request.namespace
    reply = (await request.client.jobs.versions(job_id, diffs=True, namespace=namespace)).value
    names = await find_names(request, (job.submitter_accessor_id for job in reply.versions))
    option = f" -namespace {namespace}" if namespace != DEFAULT_NAMESPACE else ""
    return Page(
        "versions.html",
        f"Versions of {job_id}",
        build_versions_view(job_id, namespace, reply, request.now_ns, names),
        section="jobs",
        topics=(f"Job:{job_id}",),
        command=f"wharf job history -p{option} {job_id}",
        api_path=f"/v1/job/{quote_segment(job_id)}/versions?diffs=true&namespace={quote_segment(namespace)}",
    )


async def ask_revert(request: PageRequest) -> Page | Redirect:
    """Show what the return to an earlier version changes, with the form that does it."""
    job_id, namespace = request.path_values["job"], request.namespace
    versions = (await request.client.jobs.versions(job_id, namespace=namespace)).value.versions
    number = _read_version(request.path_values["version"])
    earlier = _find_version(versions, number)
    plan = await request.client.jobs.plan(job_id, earlier, namespace=namespace)
    current = max(job.version for job in versions)
    query = {"namespace": request.query.get("namespace")}
    view = RevertView(
        job_id=job_id,
        job_url=build_link("jobs", job_id, **query),
        versions_url=build_link("jobs", job_id, "versions", **query),
        form_url=build_link("jobs", job_id, "versions", str(number), "revert", **query),
        number=number,
        current=current,
        plan=build_plan_view(plan),
    )
    return Page(
        "revert.html",
        f"Return {job_id} to version {number}",
        view,
        section="jobs",
        command=f"wharf job revert {job_id} {number}",
    )


async def revert_job(request: PageRequest) -> Page | Redirect:
    """Register an earlier version again, unless the job has changed since the person was asked."""
    job_id, number = request.path_values["job"], _read_version(request.path_values["version"])
    current = _read_version(request.form.get("current", ""))
    await request.client.jobs.revert(job_id, number, enforce_prior_version=current, namespace=request.namespace)
    url = build_link("jobs", job_id, namespace=request.query.get("namespace"))
    return Redirect(url, f"{job_id} returns to version {number}, as a new version.")


def _read_version(text: str) -> int:
    """Return the number of a version. Raises `InvalidRequest`."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    raise InvalidRequest(RefusalCode.INVALID, f"{text[:40]} is not the number of a version", 400)


def _find_version(versions: tuple[Job, ...], number: int) -> Job:
    """Return the version with this number. Raises `InvalidRequest`."""
    for job in versions:
        if job.version == number:
            return job
    known = ", ".join(str(job.version) for job in versions)
    raise InvalidRequest(RefusalCode.NOT_FOUND, f"There is no version {number}. The servers have {known}.", 404)


ROUTES: Final = (
    Route("jobs/{job}/versions", list_versions, is_shared=True),
    Route("jobs/{job}/versions/{version}/revert", ask_revert),
    Route("jobs/{job}/versions/{version}/revert", revert_job, method="POST"),
)
