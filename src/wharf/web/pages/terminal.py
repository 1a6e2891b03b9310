"""The page with a terminal in a task of an allocation. Its script opens the websocket, after a press of a button."""

from typing import Final

import msgspec

from wharf.contract.client.errors import RequestRefused, build_error
from wharf.contract.client.transport import ClientRequest
from wharf.contract.wire.allocations.exec import WEBSOCKET_REQUIRED_TEXT
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.rendering import build_link, quote_segment

DEFAULT_COMMAND: Final = "/bin/sh"
EXEC_ADVICE: Final = (
    "Commands in tasks need the capability alloc-exec, and also alloc-node-exec if the task can access the files of its node, as "
    "with raw_exec."
)


class TerminalView(msgspec.Struct, frozen=True):
    """The terminal of an allocation, before it is connected."""

    id: str
    name: str
    job_id: str
    job_url: str
    tasks: tuple[str, ...]
    """The running tasks."""
    task: str
    """The chosen one; empty if none runs."""
    command: str
    advice: str
    """What a person needs whose rights do not suffice for another task."""


async def show_terminal(request: PageRequest) -> Page | Redirect:
    """Show the form of a terminal.

    The command is never taken from the address, so that no link runs one. Raises `Forbidden` if the person may run
    no command in the task.
    """
    alloc_id = request.path_values["allocation"]
    allocation = (await request.client.allocations.read(alloc_id)).value
    tasks = tuple(name for name, state in (allocation.task_states or {}).items() if state.state == "running")
    task = request.query.get("task", "")
    if task not in tasks:
        task = tasks[0] if tasks else ""
    if task:
        await _require_exec(request, alloc_id, task)
    view = TerminalView(
        id=alloc_id,
        name=allocation.name,
        job_id=allocation.job_id,
        job_url=build_link("jobs", allocation.job_id, namespace=allocation.namespace),
        tasks=tasks,
        task=task,
        command=DEFAULT_COMMAND,
        advice=EXEC_ADVICE,
    )
    option = f"--task {task} " if len(tasks) > 1 else ""
    return Page(
        "terminal.html",
        f"Terminal of {allocation.name}",
        view,
        section="jobs",
        command=f"wharf alloc exec {option}-it {alloc_id[:8]} {DEFAULT_COMMAND}",
        has_inline_styles=True,
    )


async def _require_exec(request: PageRequest, alloc_id: str, task: str) -> None:
    """Raise `RequestRefused` if the person may not run a command in the task, or its node cannot be reached.

    The API checks a request without a websocket in the same way, and then refuses it for that.
    """
    path = f"/v1/client/allocation/{quote_segment(alloc_id)}/exec"
    command = msgspec.json.encode([DEFAULT_COMMAND]).decode()
    reply = await request.client.send(ClientRequest("GET", path, query=(("task", task), ("command", command))))
    refusal: RequestRefused = build_error(reply)
    if refusal.text != WEBSOCKET_REQUIRED_TEXT:
        raise refusal


ROUTES: Final = (Route("allocations/{allocation}/terminal", show_terminal),)
