"""The page on which a person pastes a job file, sees its mistakes and the plan, and submits it."""

from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from wharf.contract.client.errors import Conflict, InvalidRequest, NotFound, RequestRefused
from wharf.contract.model.refusal import RefusalCode
from wharf.job_files.hcl_writer import Markers, format_expression
from wharf.job_files.job_file import JobFile, detect_format, open_job_text, read_opened_file
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import parse_values
from wharf.languages.hcl.variables import VariableInputs
from wharf.web.page import ALL_NAMESPACES, DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.pages.lists import find_sign_in
from wharf.web.rendering import build_link
from wharf.web.views.plans import build_plan_view, list_warnings
from wharf.web.views.run import FILE_NAME, VALUES_NAME, RunPageView, list_problems
from wharf.world import World

MAX_SOURCE_CHARS: Final = 256 * 1024
"""The largest job file that a page reads: it is read in the process that serves the API. `wharf job run` takes larger ones."""
RIGHTS_CHECK: Final = 'job "rights" {}'
"""A job file that the API parses for anybody who may submit job files."""
MAX_INDEX_DIGITS: Final = 19


async def show_form(request: PageRequest) -> Page | Redirect:
    """Show the form; with `job`, filled with the source of that job."""
    if sign_in := find_sign_in(request, has_rows=False):
        return sign_in
    job_id = request.query.get("job", "")
    return _build_page(await _read_source(request, job_id) if job_id else RunPageView())


async def _read_source(request: PageRequest, job_id: str) -> RunPageView:
    """Return the form with the stored source of a job."""
    namespace = request.namespace
    version = (await request.client.jobs.read(job_id, namespace=namespace)).value.version
    try:
        stored = (await request.client.jobs.submission(job_id, version=version, namespace=namespace)).value
    except NotFound:
        return RunPageView(
            note=f"The servers have no source text of version {version} of {job_id}, because it was submitted without one."
        )
    flags = "".join(
        f"{name} = {format_expression(value, markers=Markers.ESCAPE)}\n"
        for name, value in (stored.variable_flags or {}).items()
    )
    return RunPageView(
        source=stored.source, variables=flags + stored.variables, note=f"The source of version {version} of {job_id}."
    )


async def check_file(request: PageRequest) -> Page | Redirect:
    """Show the mistakes of the file that was sent, or the plan."""
    view, file = await _read_file(request)
    if file is None:
        return _build_page(view)
    return _build_page(await _plan(request, view, file))


async def submit_file(request: PageRequest) -> Page | Redirect:
    """Register the job of the file that was sent, unless the job has changed since the plan was shown."""
    view, file = await _read_file(request)
    if file is None:
        return _build_page(view)
    if request.form.get("checked") != view.checksum:
        changed = msgspec.structs.replace(view, note="The text has changed since the plan. Here is the new plan.")
        return _build_page(await _plan(request, changed, file))
    try:
        await request.client.jobs.register(
            file.document,
            enforce_index=_read_index(request),
            submission=file.build_submission(),
            namespace=view.namespace,
        )
    except Conflict as refusal:
        return _build_page(await _plan(request, msgspec.structs.replace(view, note=refusal.text), file))
    except InvalidRequest as refusal:
        # The refusal of an index is among them: the plan that follows has the new one.
        planned = await _plan(request, view, file)
        if planned.plan is not None:
            planned = msgspec.structs.replace(planned, note=f"Not submitted: {refusal.text}")
        return _build_page(planned)
    url = build_link("jobs", file.id, namespace="" if view.namespace == DEFAULT_NAMESPACE else view.namespace)
    return Redirect(url, f"Submitted {file.id}.")


async def _read_file(request: PageRequest) -> tuple[RunPageView, JobFile | None]:
    """Return the page with the text that was sent, and its job; `None` if the text has mistakes. Raises `RequestRefused`."""
    # Browsers send line breaks as CR and LF.
    source, variables = (request.form.get(name, "").replace("\r\n", "\n") for name in ("source", "variables"))
    if len(source) + len(variables) > MAX_SOURCE_CHARS:
        text = f"The text has more than {MAX_SOURCE_CHARS // 1024} kB. Use wharf job run for this file."
        raise InvalidRequest(RefusalCode.INVALID, text, 413)
    await request.client.jobs.parse(RIGHTS_CHECK)  # Reading a file takes processor time, so it needs the same right.
    format = detect_format(FILE_NAME, source)
    view = RunPageView(source=source, variables=variables, format=format)
    if not source.strip():
        return msgspec.structs.replace(view, format="", problems=list_problems("paste a job file first")), None
    try:
        file = await request.world.run_off_loop(partial(read_text, source, variables, format, request.world))
    except DocumentErrors as errors:
        return msgspec.structs.replace(view, problems=list_problems(errors.text)), None
    namespace = str(file.document.get("Namespace") or request.namespace)
    warnings = tuple(file.parsed.hidden.hide(warning) for warning in file.list_warnings())
    return msgspec.structs.replace(view, job_id=file.id, namespace=namespace, warnings=warnings), file


def read_text(source: str, variables: str, format: str, world: World) -> JobFile:
    """Return the job of a text, with the values for its variables. Raises `DocumentErrors`."""

    def read_inputs(declared_names: Mapping[str, bool], _can_use: bool) -> VariableInputs:
        values = (parse_values(variables, VALUES_NAME, declared_names),) if variables.strip() else ()
        return VariableInputs(files=values)

    opened = open_job_text(
        source,
        FILE_NAME,
        format,
        FunctionPorts(_WorldRandom(world)),
        read_inputs,
        has_values=bool(variables.strip()),
    )
    return read_opened_file(opened)


class _WorldRandom:
    """The random bytes of functions of job files."""

    def __init__(self, world: World) -> None:
        self._world = world

    def draw_bytes(self, count: int) -> bytes:
        return self._world.token_bytes(count)


async def _plan(request: PageRequest, view: RunPageView, file: JobFile) -> RunPageView:
    """Return the page with the plan of a job, or with what the servers refuse about it."""
    try:
        plan = await request.client.jobs.plan(
            file.id, file.document, sensitive_fields=file.sensitive_fields or None, namespace=view.namespace
        )
    except InvalidRequest as refusal:
        return msgspec.structs.replace(view, problems=list_problems(file.format_errors(refusal.text)))
    hidden = file.parsed.hidden
    warnings = tuple(hidden.hide(file.format_warning(text)) for text in list_warnings(plan.warnings))
    shown = msgspec.structs.replace(build_plan_view(plan, hidden), warnings=())
    return msgspec.structs.replace(view, plan=shown, warnings=tuple(dict.fromkeys((*view.warnings, *warnings))))


def _read_index(request: PageRequest) -> int:
    """Return the index of the plan that the person has seen. Raises `RequestRefused`."""
    text = request.form.get("index", "")
    if text.isascii() and text.isdigit() and len(text) <= MAX_INDEX_DIGITS:
        return int(text)
    raise RequestRefused(RefusalCode.INVALID, "Check the file first: the form has no index of a plan.", 400)


def _build_page(view: RunPageView) -> Page:
    # A job file names its namespace, so a person who may plan jobs in any namespace gets the form.
    return Page(
        "run.html",
        "Run a job",
        view,
        section="jobs",
        namespace=view.namespace if view.plan is not None else ALL_NAMESPACES,
        command="wharf job run FILE",
    )


ROUTES: Final = (
    Route("run", show_form),
    Route("run", check_file, method="POST"),
    Route("run/submit", submit_file, method="POST"),
)
