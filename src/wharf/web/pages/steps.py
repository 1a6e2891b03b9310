"""The page of one step of a run, and the outputs of steps on the page of their run."""

import asyncio
from collections.abc import Mapping
from typing import Final

from wharf.contract.client.errors import NotFound, RequestRefused
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.run_views import RunView
from wharf.contract.model.jobs.step_outputs import StepOutputsView, list_output_names
from wharf.contract.model.refusal import RefusalCode
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.rendering import quote_segment
from wharf.web.views.allocations import build_allocation_row
from wharf.web.views.steps import build_step_page

MAX_OUTPUT_STEPS: Final = 12
"""Steps whose outputs the page of a run reads, the first ones that have ended. Each is a read of at most 64 KiB."""
MAX_READ_ALLOCATIONS: Final = 1_000
"""Allocations of a run, the newest ones, among which those of a step are searched."""
MAX_ALLOCATIONS: Final = 50
"""Allocations of a step that its page shows."""
MAX_INDEX_DIGITS: Final = 6


async def read_outputs(request: PageRequest, job: Job, run: RunView) -> Mapping[str, StepOutputsView]:
    """Return the outputs of the first steps of a run that have some, by their names. A step that was deleted has none."""
    declaring = {group.name for group in job.groups if list_output_names(group)}
    names = [each.name for each in run.steps if each.name in declaring and each.counts.succeeded + each.counts.failed]
    found = await asyncio.gather(*(_read_step_outputs(request, job, name) for name in names[:MAX_OUTPUT_STEPS]))
    return {each.group: each for each in found if each is not None}


async def _read_step_outputs(request: PageRequest, job: Job, name: str) -> StepOutputsView | None:
    try:
        reply = await request.client.jobs.outputs(job.id, group=name, namespace=job.namespace)
    except RequestRefused:
        return None
    return next(iter(reply.value.steps), None)


async def show_step(request: PageRequest) -> Page | Redirect:
    """Show one step of a run: its state, what it waits for, and the texts and files that it left."""
    job_id, name, namespace = request.path_values["job"], request.path_values["step"], request.namespace
    job, run = await asyncio.gather(
        request.client.jobs.read(job_id, namespace=namespace),
        request.client.flows.read_run(job_id, namespace=namespace),
    )
    group = job.value.find_group(name)
    step = next((each for each in run.value.steps if each.name == name), None)
    if group is None or step is None:
        raise NotFound(RefusalCode.NOT_FOUND, f'The run {job_id} has no step "{name}".', 404)
    outputs, allocations = await asyncio.gather(
        _read_step_outputs(request, job.value, name),
        request.client.jobs.allocations(job_id, namespace=namespace, newest=MAX_READ_ALLOCATIONS),
    )
    own = [each for each in allocations.value if each.task_group == name][:MAX_ALLOCATIONS]
    view = build_step_page(
        run.value,
        step,
        group,
        outputs,
        [build_allocation_row(each, request.now_ns) for each in own],
        request.query.get("namespace", ""),
        _read_index(request.query.get("element", "")),
        request.now_ns,
    )
    option = f" -namespace {namespace}" if namespace != DEFAULT_NAMESPACE else ""
    read = f"outputs?group={quote_segment(name)}&" if view.declares_texts else "run?"
    return Page(
        "step.html",
        f"{name} of {job_id}",
        view,
        section="jobs",
        topics=(f"Job:{job_id}", f"Allocation:{job_id}", f"Evaluation:{job_id}"),
        command=f"wharf {'job' if view.declares_texts else 'flow'} status{option} {job_id}",
        api_path=f"/v1/job/{quote_segment(job_id)}/{read}namespace={quote_segment(namespace)}",
    )


def _read_index(text: str) -> int:
    """Return the index of the first element whose outputs are shown; 0 for a text that is no index."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_INDEX_DIGITS else 0


ROUTES: Final = (Route("jobs/{job}/steps/{step}", show_step, is_shared=True),)
