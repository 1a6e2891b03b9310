"""The actions of a job: the page with their forms, and what the forms do."""

import asyncio
from typing import Final

import msgspec

from wharf.contract.client.errors import Forbidden, InvalidRequest, RequestRefused
from wharf.contract.model.allocations.allocation import AllocationStub, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import RefusalCode, RefusalReason
from wharf.contract.wire.jobs.states import describe_job_state
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.refusals import explain_refusal
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.actions import build_actions_view, find_repetition, has_rescheduling

MAX_RESTARTS: Final = 100
"""The allocations that one form restarts. Each is a request to a node while the person waits."""
CONCURRENT_RESTARTS: Final = 8
META_PREFIX: Final = "meta."
"""The names of the fields of metadata begin with it, so that a key such as `payload` is no other field."""
MAX_DIGITS: Final = 15


async def show_actions(request: PageRequest) -> Page | Redirect:
    """Show the forms of what a person can do with a job."""
    job_id, namespace = request.path_values["job"], request.namespace
    job = (await request.client.jobs.read(job_id, namespace=namespace)).value
    option = f" -namespace {namespace}" if namespace != DEFAULT_NAMESPACE else ""
    return Page(
        "actions.html",
        f"Actions of {job_id}",
        build_actions_view(job, request.world.new_id()),
        section="jobs",
        command=f"wharf job {_choose_command(job, option)}",
        api_path=f"/v1/job/{quote_segment(job_id)}?namespace={quote_segment(namespace)}",
    )


def _choose_command(job: Job, option: str) -> str:
    """Return the command, without `wharf job`, for what is most likely to be done with a job."""
    if job.stop:
        return f"start{option} {job.id}"
    if job.is_parameterized:
        return f"dispatch{option} {job.id}"
    if job.is_periodic:
        return f"periodic force{option} {job.id}"
    if job.task_groups and any(group.array is None for group in job.groups) and job.type == "service":
        return f"scale{option} {job.id} COUNT"
    return f"status{option} {job.id}"


async def scale_group(request: PageRequest) -> Page | Redirect:
    """Set the count of a group."""
    job_id, group = request.path_values["job"], request.form.get("group", "")
    count = _read_number(request, "count", "a number of allocations, such as 3")
    index = _read_number(request, "index", "an index")
    message = request.form.get("message", "")
    try:
        await request.client.jobs.scale(
            job_id, group, count, message=message, enforce_index=index, namespace=request.namespace
        )
    except RequestRefused as refusal:
        if refusal.reason is not RefusalReason.ACTIVE_DEPLOYMENT:
            raise
        text = f"{refusal.text}: wait until the rollout of {job_id} is complete, or promote or end it on the page of the job."
        raise InvalidRequest(refusal.code, text, refusal.status) from refusal
    return Redirect(_link_to_job(request), f"{group} of {job_id} is scaled to {count}.")


async def dispatch_job(request: PageRequest) -> Page | Redirect:
    """Create a child of a parameterized job, and show it."""
    job_id, form = request.path_values["job"], request.form
    meta = {
        name.removeprefix(META_PREFIX): value for name, value in form.items() if name.startswith(META_PREFIX) and value
    }
    payload = form.get("payload", "").encode()
    created = await request.client.jobs.dispatch(
        job_id,
        payload=payload or None,
        meta=meta or None,
        idempotency_token=form.get("once", ""),
        namespace=request.namespace,
    )
    url = build_link("jobs", created.dispatched_job_id, namespace=request.query.get("namespace"))
    return Redirect(url, f"Dispatched {job_id}.")


async def launch_job(request: PageRequest) -> Page | Redirect:
    """Launch a periodic job now."""
    job_id = request.path_values["job"]
    await request.client.jobs.force_periodic(job_id, namespace=request.namespace)
    return Redirect(_link_to_job(request), f"{job_id} is launched.")


async def evaluate_job(request: PageRequest) -> Page | Redirect:
    """Let the scheduler process a job again."""
    job_id = request.path_values["job"]
    is_forced = bool(request.form.get("force"))
    await request.client.jobs.evaluate(job_id, force_reschedule=is_forced, namespace=request.namespace)
    text = f"The scheduler processes {job_id} again."
    if not is_forced:
        return Redirect(_link_to_job(request), text)
    job = (await request.client.jobs.read(job_id, namespace=request.namespace)).value
    failed = (
        "Failed allocations of groups that are rescheduled are replaced at once."
        if has_rescheduling(job)
        else "Failed allocations are not replaced: no group of the job is rescheduled."
    )
    return Redirect(_link_to_job(request), f"{text} {failed}")


async def start_job(request: PageRequest) -> Page | Redirect:
    """Start a stopped job again."""
    await _start_stopped(request)
    return Redirect(_link_to_job(request), f"{request.path_values['job']} is started.")


async def _start_stopped(request: PageRequest) -> None:
    """Register a stopped job as a new version that runs. Raises `RequestRefused` if the job has changed meanwhile."""
    job_id, namespace = request.path_values["job"], request.namespace
    job = (await request.client.jobs.read(job_id, namespace=namespace)).value
    await request.client.jobs.register(
        msgspec.structs.replace(job, stop=False), enforce_index=job.job_modify_index, namespace=namespace
    )


async def repeat_job(request: PageRequest) -> Page | Redirect:
    """Run a failed batch job again: what failed, or all of it if its groups are not rescheduled."""
    job_id, namespace, jobs = request.path_values["job"], request.namespace, request.client.jobs
    index = _read_number(request, "index", "an index")
    job = (await jobs.read(job_id, namespace=namespace)).value
    stub = (await jobs.list(prefix=job_id, namespace=namespace, per_page=1)).value[0]
    repetition = find_repetition(job, describe_job_state(stub))
    if repetition is None or job.job_modify_index != index:
        text = f"{job_id} has changed since the page was shown, so nothing was done. Its page shows its state now."
        raise InvalidRequest(RefusalCode.CONFLICT, text, 409)
    if not is_confirmed(request):
        return ask_first(
            request,
            repetition.question,
            repetition.consequence,
            button=repetition.button,
            cancel_url=_link_to_job(request),
        )
    if not repetition.is_complete:
        await jobs.evaluate(job_id, force_reschedule=True, namespace=namespace)
        return Redirect(_link_to_job(request), f"What failed of {job_id} runs again.")
    await jobs.deregister(job_id, namespace=namespace)
    try:
        await _start_stopped(request)
    except RequestRefused as refusal:
        text = (
            f"{job_id} is stopped, and was not started again: {refusal.text}. Its actions have a button that starts it."
        )
        raise InvalidRequest(refusal.code, text, refusal.status) from refusal
    return Redirect(_link_to_job(request), f"All of {job_id} runs again, as a new version.")


async def restart_job(request: PageRequest) -> Page | Redirect:
    """Restart the tasks of all running allocations in place, some at a time."""
    job_id, namespace = request.path_values["job"], request.namespace
    if not is_confirmed(request):
        text = (
            f"The tasks of all running allocations restart on their nodes, {CONCURRENT_RESTARTS} allocations at a time."
        )
        return ask_first(
            request,
            f"Restart all tasks of {job_id}?",
            text,
            button="Restart all tasks",
            cancel_url=_link_to_job(request),
        )
    allocations = (await request.client.jobs.allocations(job_id, namespace=namespace)).value
    running = [
        each
        for each in allocations
        if each.client_status is ClientStatus.RUNNING and each.desired_status is DesiredStatus.RUN
    ]
    if not running:
        raise InvalidRequest(RefusalCode.INVALID, f"{job_id} has no running allocation.", 400)
    if len(running) > MAX_RESTARTS:
        text = f"{job_id} has {len(running)} running allocations, and a page restarts {MAX_RESTARTS}. Use wharf job restart {job_id}."
        raise InvalidRequest(RefusalCode.INVALID, text, 400)
    free = asyncio.Semaphore(CONCURRENT_RESTARTS)

    async def restart(allocation: AllocationStub) -> RequestRefused | None:
        async with free:
            try:
                await request.client.allocations.restart(allocation.id, namespace=namespace)
            except RequestRefused as refusal:
                return refusal
            return None

    refusals = await asyncio.gather(*(restart(each) for each in running))
    failed = [(each, refusal) for each, refusal in zip(running, refusals, strict=True) if refusal is not None]
    if not failed:
        return Redirect(_link_to_job(request), f"The tasks of {len(running)} allocations are being restarted.")
    allocation, first = failed[0]
    if isinstance(first, Forbidden):
        raise first
    text = (
        f"{len(running) - len(failed)} of {len(running)} allocations are being restarted. The others were not restarted, such as "
        f"{allocation.name} on {allocation.node_name or allocation.node_id}: {explain_refusal(first)}"
    )
    raise InvalidRequest(first.code, text, first.status)


def _read_number(request: PageRequest, name: str, expected: str) -> int:
    """Return a number of the form. Raises `InvalidRequest`."""
    text = request.form.get(name, "").strip()
    if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
        return int(text)
    raise InvalidRequest(RefusalCode.INVALID, f'{name}: expected {expected}, got "{text[:40]}"', 400)


def _link_to_job(request: PageRequest) -> str:
    return build_link("jobs", request.path_values["job"], namespace=request.query.get("namespace"))


ROUTES: Final = (
    Route("jobs/{job}/actions", show_actions),
    Route("jobs/{job}/scale", scale_group, method="POST"),
    Route("jobs/{job}/dispatch", dispatch_job, method="POST"),
    Route("jobs/{job}/launch", launch_job, method="POST"),
    Route("jobs/{job}/evaluate", evaluate_job, method="POST"),
    Route("jobs/{job}/repeat", repeat_job, method="POST"),
    Route("jobs/{job}/start", start_job, method="POST"),
    Route("jobs/{job}/restart", restart_job, method="POST"),
)
