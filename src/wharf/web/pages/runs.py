"""Lists of runs, what the pages of jobs show of runs, and the forms that change a run."""

import asyncio
import shlex
from typing import Final
from urllib.parse import urlencode

from wharf.contract.client.errors import InvalidRequest, RequestRefused
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.flows import RunSort, RunState
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.pages.lists import expand_filter, fetch_list, find_sign_in
from wharf.web.pages.steps import read_outputs
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.runs import (
    MAX_FLOWS,
    MAX_RUNS,
    AllRunsView,
    FlowRow,
    RunRow,
    RunSection,
    RunsView,
    build_flow_row,
    build_retry_view,
    build_run_row,
    build_run_section,
)

ENDED_STATES: Final = frozenset(
    {RunState.SUCCEEDED.value, RunState.FAILED.value, RunState.CANCELED.value, RunState.SKIPPED.value}
)
SLOW_REFRESH_S: Final = 10
"""The pause between two updates of a list of runs that ended in one way: the servers read the steps of all runs for it."""
SEARCHED: Final = ("ID",)
"""The fields in which a filter without an operator is searched."""
NAME_SORT: Final = "name"
"""The order by namespace and ID, for which the API needs no parameter."""
SORTS: Final = {"": RunSort.NEWEST.value, RunSort.CHANGED.value: RunSort.CHANGED.value, NAME_SORT: ""}
"""The orders of the page, each with that of the API."""
MAX_DEADLINE_DIGITS: Final = 20
"""Digits of the deadline of a gate in a form; limits the time to read the number."""


async def read_runs(request: PageRequest, job: Job) -> tuple[RunSection | None, tuple[RunRow, ...]]:
    """Return the steps of a run, or the newest runs of a flow. Other jobs have neither."""
    if not job.has_steps:
        return None, ()
    flows = request.client.flows
    if not job.is_run:
        reply = await flows.list_runs(
            flow=job.id, namespace=job.namespace, per_page=MAX_RUNS, sort=RunSort.NEWEST.value
        )
        return None, tuple(build_run_row(each, request.now_ns) for each in reply.value)
    try:
        run = (await flows.read_run(job.id, namespace=job.namespace)).value
    except RequestRefused:
        return None, ()  # It was deleted meanwhile. The page shows the rest.
    outputs = await read_outputs(request, job, run)
    has_policies = any(step.gate is not None and step.gate.is_open and step.gate.policy for step in run.steps)
    policies = await _list_own_policies(request) if has_policies else None
    section = build_run_section(run, request.query.get("namespace", ""), request.now_ns, outputs, policies=policies)
    return section, ()


async def _list_own_policies(request: PageRequest) -> frozenset[str] | None:
    """Return the names of the policies of the person's token; `None` for a person who may do everything."""
    if not request.visitor.can_sign_in:
        return None
    try:
        policies = (await request.client.acl.policies.read_own()).value
    except RequestRefused:
        return frozenset()  # The person is not signed in.
    return None if policies is None else frozenset(each.name for each in policies)  # `None` for a management token.


async def list_all_runs(request: PageRequest) -> Page | Redirect:
    """Show one page of all runs, the newest first, and on the first page the flows that make runs."""
    query, namespace = request.query, request.listed_namespace
    sort = SORTS.get(query.get("sort", ""), RunSort.NEWEST.value)
    state = query.get("state", "")
    view, (flows, has_more_flows) = await asyncio.gather(
        fetch_list(
            request,
            ("flows",),
            request.client.flows.list_runs,
            lambda run: build_run_row(run, request.now_ns),
            searched=SEARCHED,
            namespace=namespace,
            sort=sort,
            state=state,
        ),
        _list_flows(request, is_shown=not any(query.get(name) for name in ("state", "filter", "token", "before"))),
    )
    if isinstance(view, Redirect):
        return view
    if (sign_in := find_sign_in(request, has_rows=bool(view.rows or view.error or flows))) is not None:
        return sign_in
    expression = expand_filter(query.get("filter", ""), SEARCHED)
    api_query = {"namespace": namespace, "sort": sort, "state": state, "filter": expression}
    options = (
        ("-namespace", query.get("namespace", "")),
        ("--state", state),
        ("--sort", "" if sort == RunSort.NEWEST else sort or NAME_SORT),
        ("--filter", expression),
    )
    return Page(
        "flows.html",
        "Runs",
        AllRunsView(view, flows, has_more_flows),
        section="jobs",
        namespace=namespace,
        topics=("Job", "Allocation:*rows", "Evaluation:*rows"),
        refresh_pause_s=SLOW_REFRESH_S if state in ENDED_STATES else 0,
        command=shlex.join(["wharf", "flow", "list", *(word for option in options if option[1] for word in option)]),
        api_path=f"/v1/runs?{urlencode({name: value for name, value in api_query.items() if value}, safe='*')}",
    )


async def _list_flows(request: PageRequest, *, is_shown: bool) -> tuple[tuple[FlowRow, ...], bool]:
    """Return the first flows, and whether there are more; none if the page does not show them."""
    if not is_shown:
        return (), False
    reply = await request.client.flows.list(namespace=request.listed_namespace, per_page=MAX_FLOWS)
    return tuple(build_flow_row(each, request.now_ns) for each in reply.value), bool(reply.next_token)


async def list_runs(request: PageRequest) -> Page | Redirect:
    """Show one page of the runs of a flow, the newest first."""
    job_id, namespace = request.path_values["job"], request.namespace
    view = await fetch_list(
        request,
        ("jobs", job_id, "runs"),
        request.client.flows.list_runs,
        lambda run: build_run_row(run, request.now_ns),
        namespace=namespace,
        flow=job_id,
        sort=RunSort.NEWEST.value,
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
        api_path=f"/v1/runs?flow={quote_segment(job_id)}&namespace={quote_segment(namespace)}&sort=newest",
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
    deadline = form.get("deadline", "")
    await request.client.flows.answer(
        job_id,
        step,
        answer,
        text=form.get("text", ""),
        deadline=int(deadline) if deadline.isdecimal() and len(deadline) <= MAX_DEADLINE_DIGITS else 0,
        namespace=request.namespace,
    )
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
    Route("flows", list_all_runs, is_shared=True),
    Route("jobs/{job}/runs", list_runs, is_shared=True),
    Route("jobs/{job}/cancel", cancel_run, method="POST"),
    Route("jobs/{job}/answer", answer_gate, method="POST"),
    Route("jobs/{job}/retry", ask_retry),
    Route("jobs/{job}/retry", retry_run, method="POST"),
)
