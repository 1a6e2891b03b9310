"""What the pages of jobs show of runs: their steps, the runs of a flow, and the forms that change a run."""

from typing import Final

from wharf.contract.client.errors import InvalidRequest, RequestRefused
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import RefusalCode
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.pages.lists import fetch_list
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.runs import (
    MAX_RUNS,
    RunRow,
    RunSection,
    RunsView,
    build_retry_view,
    build_run_row,
    build_run_section,
)


async def read_runs(request: PageRequest, job: Job) -> tuple[RunSection | None, tuple[RunRow, ...]]:
    """Return the steps of a run, or the newest runs of a flow. Other jobs have neither."""
    if not job.has_steps:
        return None, ()
    flows = request.client.flows
    if not job.is_run:
        reply = await flows.list_runs(flow=job.id, namespace=job.namespace, per_page=MAX_RUNS, reverse=True)
        return None, tuple(build_run_row(each, request.now_ns) for each in reply.value)
    try:
        run = (await flows.read_run(job.id, namespace=job.namespace)).value
    except RequestRefused:
        return None, ()  # It was deleted meanwhile. The page shows the rest.
    has_policies = any(step.gate is not None and step.gate.is_open and step.gate.policy for step in run.steps)
    policies = await _list_own_policies(request) if has_policies else None
    return build_run_section(run, request.query.get("namespace", ""), request.now_ns, policies=policies), ()


async def _list_own_policies(request: PageRequest) -> frozenset[str] | None:
    """Return the names of the policies of the person's token; `None` for a person who may do everything."""
    if not request.visitor.can_sign_in:
        return None
    try:
        policies = (await request.client.acl.policies.read_own()).value
    except RequestRefused:
        return frozenset()  # The person is not signed in.
    return None if policies is None else frozenset(each.name for each in policies)  # `None` for a management token.


async def list_runs(request: PageRequest) -> Page | Redirect:
    """Show one page of the runs of a flow."""
    job_id, namespace = request.path_values["job"], request.namespace
    view = await fetch_list(
        request,
        ("jobs", job_id, "runs"),
        request.client.flows.list_runs,
        lambda run: build_run_row(run, request.now_ns),
        namespace=namespace,
        flow=job_id,
    )
    if isinstance(view, Redirect):
        return view
    option = f" -namespace {namespace}" if namespace != DEFAULT_NAMESPACE else ""
    return Page(
        "runs.html",
        f"Runs of {job_id}",
        RunsView(job_id, build_link("jobs", job_id, namespace=request.query.get("namespace")), view),
        section="jobs",
        topics=("Job", "Allocation:*rows", "Evaluation:*rows"),
        command=f"wharf flow list{option} {job_id}",
        api_path=f"/v1/runs?flow={quote_segment(job_id)}&namespace={quote_segment(namespace)}",
    )


async def cancel_run(request: PageRequest) -> Page | Redirect:
    """Cancel a run."""
    job_id = request.path_values["job"]
    result = await request.client.flows.cancel(job_id, text=request.form.get("text", ""), namespace=request.namespace)
    text = "is stopped, with its final steps" if result.is_stopped else "is being canceled"
    return Redirect(_link_to_job(request), f"{job_id} {text}.")


async def answer_gate(request: PageRequest) -> Page | Redirect:
    """Approve or reject the gate of a step."""
    job_id, form = request.path_values["job"], request.form
    step, answer = form.get("step", ""), form.get("answer", "")
    await request.client.flows.answer(job_id, step, answer, text=form.get("text", ""), namespace=request.namespace)
    return Redirect(_link_to_job(request), f"{step} is {'rejected' if answer == 'reject' else 'approved'}.")


async def ask_retry(request: PageRequest) -> Page | Redirect:
    """Show what a retry runs again and what it keeps, with the form that does it."""
    job_id, step = request.path_values["job"], request.query.get("step", "")
    plan = await request.client.flows.retry(
        job_id, steps=[step] if step else (), plan=True, namespace=request.namespace
    )
    return Page(
        "retry.html",
        f"Run steps of {job_id} again",
        build_retry_view(job_id, request.query.get("namespace", ""), step, plan),
        section="jobs",
        command=f"wharf flow retry {f'--from {step} ' if step else ''}{job_id}",
    )


async def retry_run(request: PageRequest) -> Page | Redirect:
    """Run steps of a run again."""
    job_id, step = request.path_values["job"], request.form.get("step", "")
    result = await request.client.flows.retry(job_id, steps=[step] if step else (), namespace=request.namespace)
    if not result.attempt:
        raise InvalidRequest(RefusalCode.INVALID, f"No step of {job_id} has to run again.", 400)
    count = "1 step" if len(result.steps) == 1 else f"{len(result.steps)} steps"
    return Redirect(_link_to_job(request), f"Running {count} again, as attempt {result.attempt}.")


def _link_to_job(request: PageRequest) -> str:
    return build_link("jobs", request.path_values["job"], namespace=request.query.get("namespace"))


ROUTES: Final = (
    Route("jobs/{job}/runs", list_runs, is_shared=True),
    Route("jobs/{job}/cancel", cancel_run, method="POST"),
    Route("jobs/{job}/answer", answer_gate, method="POST"),
    Route("jobs/{job}/retry", ask_retry),
    Route("jobs/{job}/retry", retry_run, method="POST"),
)
