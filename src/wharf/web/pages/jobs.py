"""The pages of jobs."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from wharf.contract.client.errors import RequestRefused
from wharf.contract.model.explanations import JobExplanation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.services import ServiceRegistration
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.last_lines import read_last_lines, read_last_output
from wharf.web.pages.lists import build_list_command, build_list_path, fetch_list
from wharf.web.pages.runs import read_runs
from wharf.web.rendering import build_link, count_noun, quote_for_filter, quote_segment
from wharf.web.views.arrays import JobArraysView, build_arrays_view, find_failed_elements
from wharf.web.views.jobs import MAX_ALLOCATIONS, build_job_row, build_job_view, find_failed
from wharf.web.views.timeline import build_timeline_view, read_timeline_size

WITHOUT_CHILDREN: Final = 'ParentID == ""'

MAX_READ_FAILURES: Final = 100
"""How many of the newest failed allocations of a job with arrays are read. Some of their elements may run again."""
MAX_PRINTED_ELEMENTS: Final = 5
"""How many failed elements are shown with what they printed last."""
MAX_ELEMENT_LINES: Final = 3
MAX_ELEMENT_LOGS: Final = 2
"""Logs that are read of each of these elements. Each is a request to a node."""
MAX_SERVICES: Final = 5
"""How many services of a job its page shows; each is one read."""
MAX_SERVICE_INSTANCES: Final = 10
"""How many instances of each service the page of a job shows."""

SEARCHED: Final = ("ID", "Name")
"""The fields in which a filter without an operator is searched."""


async def list_jobs(request: PageRequest) -> Page | Redirect:
    """Show one page of the jobs. Without a filter, the runs of periodic and parameterized jobs are left out."""
    narrowed: dict[str, Any] = {} if request.query.get("filter") else {"filter": WITHOUT_CHILDREN}
    view = await fetch_list(
        request,
        ("jobs",),
        request.client.jobs.list,
        lambda job: build_job_row(job, request.now_ns),
        searched=SEARCHED,
        progress=True,
        sort="changed" if request.query.get("sort") == "changed" else "",
        namespace=request.listed_namespace,
        **narrowed,
    )
    if isinstance(view, Redirect):
        return view
    return Page(
        "jobs.html",
        "Jobs",
        view,
        section="jobs",
        namespace=request.listed_namespace,
        topics=("Job", "Allocation:*rows", "Evaluation:*rows"),
        command=build_list_command("wharf job status", request, SEARCHED),
        api_path=build_list_path("/v1/jobs", request, SEARCHED, has_namespace=True),
    )


async def show_job(request: PageRequest) -> Page | Redirect:
    """Show why a job is as it is, its groups, its rollout, and its newest allocations."""
    job_id, namespace, jobs = request.path_values["job"], request.namespace, request.client.jobs
    job = (await jobs.read(job_id, namespace=namespace)).value
    stubs, explanation, deployment, allocations, services, (arrays, (run, newest_runs)) = await asyncio.gather(
        jobs.list(prefix=job_id, namespace=namespace, per_page=1, progress=True),
        _explain(request, job_id, namespace),
        jobs.deployment(job_id, namespace=namespace),
        jobs.allocations(job_id, namespace=namespace, newest=MAX_ALLOCATIONS + 1),
        _list_instances(request, job),
        asyncio.gather(_read_arrays(request, job), read_runs(request, job)),
    )
    failed = find_failed(each for each in allocations.value if arrays.find(each.task_group) is None)
    last_lines, problem = await read_last_output(request.client, failed) if failed is not None else ((), "")
    view = build_job_view(
        job,
        stubs.value[0],
        explanation,
        deployment.value,
        services,
        allocations.value,
        failed,
        last_lines,
        arrays,
        run,
        newest_runs,
        request.now_ns,
        last_lines_problem=problem,
    )
    return Page(
        "job.html",
        job_id,
        view,
        section="jobs",
        topics=(f"Job:{job_id}", f"Deployment:{job_id}", f"Allocation:{job_id}", f"Evaluation:{job_id}"),
        command=f"wharf {'flow status' if run is not None else 'job explain'}{build_namespace_option(namespace)} {job_id}",
        api_path=f"/v1/job/{quote_segment(job_id)}/{'run' if run is not None else 'explain'}?namespace={quote_segment(namespace)}",
    )


async def show_timeline(request: PageRequest) -> Page | Redirect:
    """Show when the allocations of a job waited, started and ended."""
    job_id, namespace = request.path_values["job"], request.namespace
    reply = await request.client.jobs.timeline(
        job_id,
        namespace=namespace,
        limit=read_timeline_size(request.query.get("rows", "")),
        before=request.query.get("before", ""),
    )
    view = build_timeline_view(reply.value, job_id, namespace, request.query, request.now_ns)
    return Page(
        "timeline.html",
        f"Timeline of {job_id}",
        view,
        section="jobs",
        topics=(f"Allocation:{job_id}", f"Evaluation:{job_id}"),
        command=f"wharf job allocs{build_namespace_option(namespace)} {job_id}",
        api_path=f"/v1/job/{quote_segment(job_id)}/timeline?namespace={quote_segment(namespace)}",
    )


def build_namespace_option(namespace: str) -> str:
    """Return the option of commands that names the namespace; empty for the default one."""
    return f" -namespace {namespace}" if namespace != DEFAULT_NAMESPACE else ""


async def _explain(request: PageRequest, job_id: str, namespace: str) -> JobExplanation | None:
    """Return the explanation of a job, or `None` if the scheduler cannot give one now: the page shows the rest."""
    try:
        return (await request.client.jobs.explain(job_id, namespace=namespace)).value
    except RequestRefused:
        return None


async def _list_instances(request: PageRequest, job: Job) -> Sequence[ServiceRegistration]:
    """Return the first instances of the first services of a job; none if the visitor may not read them."""
    services = [
        service
        for group in job.groups
        for services in (group.services, *(task.services for task in group.tasks or ()))
        for service in services or ()
    ]
    names = list(dict.fromkeys(service.name for service in services if "${" not in service.name))
    only_job = f"JobID == {quote_for_filter(job.id)}"
    try:
        replies = [
            await request.client.services.read(
                name, namespace=job.namespace, filter=only_job, per_page=MAX_SERVICE_INSTANCES
            )
            for name in ([] if job.stop else names[:MAX_SERVICES])
        ]
    except RequestRefused:
        return ()
    return [instance for reply in replies for instance in reply.value]


async def _read_arrays(request: PageRequest, job: Job) -> JobArraysView:
    """Return the arrays of a job, with the last lines of the elements that failed last.

    Steps of one element are left out: the steps of the run show them.
    """
    if all(group.array is None for group in job.groups):
        return JobArraysView()
    jobs = request.client.jobs
    reply, allocations = await asyncio.gather(
        jobs.arrays(job.id, namespace=job.namespace),
        jobs.allocations(job.id, namespace=job.namespace, newest=MAX_READ_FAILURES, failed=True),
    )
    arrays = [each for each in reply.value.arrays if each.size > 1 or not job.has_steps]
    failed = find_failed_elements(arrays, allocations.value)
    shown = failed[:MAX_PRINTED_ELEMENTS]
    lines = await asyncio.gather(
        *(
            read_last_lines(request.client, each, max_lines=MAX_ELEMENT_LINES, max_logs=MAX_ELEMENT_LOGS)
            for each in shown
        )
    )
    last_lines = {each.id: printed for each, printed in zip(shown, lines, strict=True)}
    return build_arrays_view(arrays, failed, last_lines, request.now_ns)


async def rerun_failed(request: PageRequest) -> Page | Redirect:
    """Run the elements of a job's arrays again that failed or were canceled."""
    job_id = request.path_values["job"]
    started = await request.client.jobs.rerun(job_id, failed=True, namespace=request.namespace)
    number = count_noun(started.element_count, "element runs", "elements run")
    notice = (
        f"{number} again, as attempt {started.attempt}." if started.attempt else "No element failed or was canceled."
    )
    return Redirect(_link_to_job(request), notice)


async def stop_job(request: PageRequest) -> Page | Redirect:
    """Stop a job, and show it."""
    job_id = request.path_values["job"]
    if not is_confirmed(request):
        text = "Its tasks end. The job stays, and can be started again until the servers delete it."
        return ask_first(request, f"Stop {job_id}?", text, button=f"Stop {job_id}", cancel_url=_link_to_job(request))
    await request.client.jobs.deregister(job_id, namespace=request.namespace)
    return Redirect(_link_to_job(request), f"{job_id} is being stopped.")


async def promote_job(request: PageRequest) -> Page | Redirect:
    """Promote the new version of a job."""
    await request.client.deployments.promote(request.form.get("deployment", ""), namespace=request.namespace)
    return Redirect(_link_to_job(request), "The new version is promoted.")


async def fail_job(request: PageRequest) -> Page | Redirect:
    """End the rollout of a job as failed."""
    if not is_confirmed(request):
        question = f"End the rollout of {request.path_values['job']} as failed?"
        text = "Nothing more of the new version is placed. A job with auto-revert returns to its stable version."
        return ask_first(request, question, text, button="End as failed", cancel_url=_link_to_job(request))
    await request.client.deployments.fail(request.form.get("deployment", ""), namespace=request.namespace)
    return Redirect(_link_to_job(request), "The rollout is ended as failed.")


async def pause_job(request: PageRequest) -> Page | Redirect:
    """Pause the rollout of a job, or let it go on."""
    is_paused = request.form.get("resume") != "yes"
    await request.client.deployments.pause(
        request.form.get("deployment", ""), pause=is_paused, namespace=request.namespace
    )
    return Redirect(_link_to_job(request), "The rollout is paused." if is_paused else "The rollout goes on.")


def _link_to_job(request: PageRequest) -> str:
    return build_link("jobs", request.path_values["job"], namespace=request.query.get("namespace"))


ROUTES: Final = (
    Route("jobs", list_jobs, is_shared=True),
    Route("jobs/{job}", show_job, is_shared=True),
    Route("jobs/{job}/timeline", show_timeline, is_shared=True),
    Route("jobs/{job}/stop", stop_job, method="POST"),
    Route("jobs/{job}/rerun", rerun_failed, method="POST"),
    Route("jobs/{job}/promote", promote_job, method="POST"),
    Route("jobs/{job}/pause", pause_job, method="POST"),
    Route("jobs/{job}/fail", fail_job, method="POST"),
)
