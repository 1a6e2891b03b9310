"""Endpoints that the node which runs a task answers: files, logs, commands, figures.

What can be judged without the node is judged here: what is asked for, of whom, and whether the caller may. The rest is the
node's, through its channel.

Logs of allocations that are over, when their node is gone or keeps them no more: their ends, as servers keep them.
"""

import base64
from collections.abc import Callable, Mapping
from hmac import compare_digest
from re import compile as pattern
from typing import Any, Final

import msgspec

from wharf.cluster.api.access_control import get_request_token
from wharf.cluster.api.relay.members import find_node_holder, relay_to_node_holder
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody, ReadHandler, StreamedBody
from wharf.cluster.server.node_channels.port import NodeCall, NodeStream, NoNodePath
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import ALLOCATIONS, JOB_VERSIONS, NODES
from wharf.contract.model.acl.permissions import EXEC_ON_NODE
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.logs import unpack_log_tails
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.model.secrets import make_migrate_token
from wharf.contract.wire.allocations.messages import AllocPauseRequest, AllocRestartRequest, AllocSignalRequest
from wharf.contract.wire.nodes.messages import NodeIdentityRequest, NodeMetaApplyRequest

RETAINED_LOG_FOLDER: Final = "kept-by-servers"
"""The name of the file that is told: offsets in it count from where the kept part begins."""


class RetainedLogFrame(msgspec.Struct, omit_defaults=True, rename={"offset": "Offset", "data": "Data", "file": "File"}):
    offset: int = 0
    data: str = ""
    file: str = ""


def read_retained_log(request: Request, allocation: Allocation) -> ActionResult | None:
    """What the request asks, of what is kept; None where nothing is."""
    if not allocation.is_client_terminal:
        return None
    task, stream = request.get_text("task"), request.get_text("type")
    text = unpack_log_tails(allocation.log_tails).get(task, {}).get(stream, b"")
    if not text:
        return None
    offset = request.get_number("offset")
    begin = max(0, len(text) - offset) if request.get_text("origin") == "end" else min(offset, len(text))
    data = text[begin:]
    if request.get_flag("plain"):
        return ActionResult(EncodedBody(data, "text/plain"))
    frame = RetainedLogFrame(len(text), base64.b64encode(data).decode(), f"{RETAINED_LOG_FOLDER}/{task}.{stream}")
    return ActionResult(EncodedBody(msgspec.json.encode(frame) if data else b"", "application/json"))


META_KEY_PATTERN: Final = pattern(r"[a-zA-Z_][a-zA-Z0-9_-]*(?:\.[a-zA-Z_][a-zA-Z0-9_-]*)*")
PAUSE_STATES: Final = ("pause", "run", "scheduled")
LOG_TYPES: Final = ("stdout", "stderr")
FILE_ORIGINS: Final = ("", "start", "end")
UNISOLATED_DRIVERS: Final = frozenset({"raw_exec"})
"""Drivers that do not keep the files of a task apart from those of its node."""

LOGS_UNAVAILABLE_CODES: Final = frozenset({RefusalCode.NOT_FOUND, RefusalCode.UNAVAILABLE})
"""The node is not there, or has the files no more."""

READ_HANDLERS: Final[dict[str, ReadHandler]] = {}

AllocationCheck = Callable[[Allocation, Job | None], None]
"""Raises Refusal where what is asked cannot be done with this allocation."""


class NodeCallActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    # -- of a node ---------------------------------------------------------------------------------------------------

    async def call_node(self, request: Request) -> ActionResult:
        return await self._ask_node(request, request.get_text("node_id"))

    async def apply_metadata(self, request: Request) -> ActionResult:
        asked = request.decode_body(NodeMetaApplyRequest)
        if not asked.meta:
            raise invalid_request("missing required Meta object")
        wrong = [key for key in asked.meta if not META_KEY_PATTERN.fullmatch(key)]
        if wrong:
            raise invalid_request(
                f"invalid meta key {wrong[0]!r}: use names of letters, digits, `_` and `-`, joined by dots"
            )
        return await self._ask_node(request, request.get_text("node_id") or asked.node_id)

    async def renew_identity(self, request: Request) -> ActionResult:
        asked = request.decode_body(NodeIdentityRequest) if request.body else NodeIdentityRequest()
        return await self._ask_node(request, request.get_text("node_id") or asked.node_id)

    async def _ask_node(self, request: Request, node_id: str) -> ActionResult:
        node_id = node_id or self._server.agent.info.node_id
        if not node_id:
            raise invalid_request(
                "missing node ID: this server runs no tasks itself, so say with `node_id` whom you ask"
            )
        replica = self._server.replica
        if replica.get(NODES, node_id) is None:
            await self._server.reader.catch_up()
        if replica.get(NODES, node_id) is None:
            raise not_found(f"Unknown node {node_id}")
        return await self._ask(request, node_id, about="")

    # -- of an allocation --------------------------------------------------------------------------------------------

    async def call_allocation_node(self, request: Request) -> ActionResult:
        return await self._ask_about(request)

    async def restart_allocation(self, request: Request) -> ActionResult:
        asked = request.decode_body(AllocRestartRequest) if request.body else AllocRestartRequest()
        if asked.task_name and asked.all_tasks:
            raise invalid_request("restart one task or all of them: TaskName and AllTasks cannot both be set")

        def check(allocation: Allocation, job: Job | None) -> None:
            if allocation.is_terminal:
                raise invalid_request("restart of an alloc that should not run")
            _check_task(allocation, job, asked.task_name)

        return await self._ask_about(request, check)

    async def signal_task(self, request: Request) -> ActionResult:
        asked = request.decode_body(AllocSignalRequest)
        if not asked.signal:
            raise invalid_request("missing signal: name one, such as SIGHUP")
        return await self._ask_about(request, lambda allocation, job: _check_task(allocation, job, asked.task))

    async def set_schedule_state(self, request: Request) -> ActionResult:
        asked = request.decode_body(AllocPauseRequest)
        if asked.schedule_state not in PAUSE_STATES:
            raise invalid_request(
                f"invalid schedule state {asked.schedule_state!r}: use one of {', '.join(PAUSE_STATES)}"
            )
        return await self._ask_about(request, lambda allocation, job: _check_task(allocation, job, asked.task))

    async def download_allocation_data(self, request: Request) -> ActionResult:
        """For the node on which another allocation takes this one's place."""
        allocation = await self._allocation(request, None)
        if self._server.access.settings.is_enabled:
            node = self._server.replica.get(NODES, allocation.node_id)
            expected = make_migrate_token(allocation.id, node.secret_digest if node is not None else "")
            if not expected or not compare_digest(get_request_token(request.headers).encode(), expected.encode()):
                raise Refusal(RefusalCode.FORBIDDEN, "Permission denied")
        return await self._ask(request, allocation.node_id, about=allocation.id)

    async def reject_plain_exec(self, request: Request) -> ActionResult:
        """Without a websocket nothing runs; what is wrong with the question is told all the same."""
        allocation = await self.find_exec_allocation(request)
        try:
            self._server.node_channels.channel_to(allocation.node_id)
        except NoNodePath:
            await find_node_holder(self._server, allocation.node_id)
        raise invalid_request("commands run over a websocket: ask with an upgrade")

    async def open_exec(self, request: Request, allocation: Allocation) -> NodeStream:
        """A command beside a task of the allocation, and the way to talk with it. Raises Refusal."""
        return await self._server.node_channels.channel_to(allocation.node_id).open_stream(
            _question(request, allocation.id)
        )

    async def find_exec_allocation(self, request: Request) -> Allocation:
        """The allocation, if what is asked can be done and this caller may ask it. Raises Refusal."""
        task = request.get_text("task")
        if not task:
            raise invalid_request("must provide task name")
        if not _command(request.get_text("command")):
            raise invalid_request("command is not present")

        def check(allocation: Allocation, job: Job | None) -> None:
            _check_task(allocation, job, task)
            if _driver(allocation, job, task) in UNISOLATED_DRIVERS:
                request.require_permission(EXEC_ON_NODE, namespace=allocation.namespace)

        return await self._allocation(request, check)

    async def access_path(self, request: Request) -> ActionResult:
        if not request.get_text("path"):
            raise invalid_request("must provide a file name: give its `path`")
        return await self._ask_about(request)

    async def read_file_part(self, request: Request) -> ActionResult:
        if "offset" not in request.parameters:
            raise invalid_request("missing offset: say from which byte to read")
        if request.get_number("offset") < 0:
            raise invalid_request("offset cannot be negative")
        return await self.access_path(request)

    async def stream_file(self, request: Request) -> ActionResult:
        _check_origin(request)
        return await self.access_path(request)

    async def stream_logs(self, request: Request) -> ActionResult:
        if not request.get_text("task"):
            raise invalid_request("must provide task name")
        if request.get_text("type") not in LOG_TYPES:
            raise invalid_request('log type must be "stdout" or "stderr"')
        _check_origin(request)
        task = request.get_text("task")
        allocation = await self._allocation(request, lambda alloc, job: _check_logged(alloc, job, task))
        try:
            return await self._ask(request, allocation.node_id, about=allocation.id)
        except Refusal as refusal:
            if refusal.code not in LOGS_UNAVAILABLE_CODES or (kept := read_retained_log(request, allocation)) is None:
                raise
            return kept

    async def _ask_about(self, request: Request, check: AllocationCheck | None = None) -> ActionResult:
        allocation = await self._allocation(request, check)
        return await self._ask(request, allocation.node_id, about=allocation.id)

    async def _allocation(self, request: Request, check: AllocationCheck | None) -> Allocation:
        """The one that the path names, if the caller may do with it what is asked. Raises Refusal."""
        allocation_id = request.get_path_value("alloc_id")
        replica = self._server.replica
        allocation = replica.get(ALLOCATIONS, allocation_id)
        if allocation is None:
            await self._server.reader.catch_up()
            allocation = replica.get(ALLOCATIONS, allocation_id)
        if allocation is None:
            raise not_found(f'Unknown allocation "{allocation_id}"')
        request.require_permission(namespace=allocation.namespace)
        if check is not None:
            job = replica.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
            check(allocation, job)
        return allocation

    # -- the way to the node -----------------------------------------------------------------------------------------

    async def _ask(self, request: Request, node_id: str, *, about: str) -> ActionResult:
        try:
            channel = self._server.node_channels.channel_to(node_id)
        except NoNodePath:
            return await relay_to_node_holder(self._server, request, node_id)
        answer = await channel.call(_question(request, about))
        if answer.parts is not None:
            return ActionResult(StreamedBody(answer.parts, answer.content_type))
        return ActionResult(EncodedBody(answer.body, answer.content_type))


def _question(request: Request, about: str) -> NodeCall:
    verb = request.endpoint.name.removeprefix("client.")
    given = {name: value for name, value in request.parameters.items() if not isinstance(value, tuple)}
    return NodeCall(verb, about, given, request.body)


def _command(given: str) -> list[str]:
    """`["/bin/sh", "-c", "ls"]`"""
    if not given:
        return []
    try:
        return msgspec.json.decode(given, type=list[str])
    except msgspec.MsgspecError:
        raise invalid_request('command must be a list of texts as JSON, such as ["/bin/ls", "-l"]') from None


def _check_task(allocation: Allocation, job: Job | None, task: str) -> None:
    """Raises where the allocation's group has no such task. Empty means all of them."""
    if task and job is not None and _driver(allocation, job, task) is None:
        raise _no_such_task(task)


def _check_logged(allocation: Allocation, job: Job | None, task: str) -> None:
    """Raises where the allocation's group has no such task, or one whose output nobody keeps."""
    _check_task(allocation, job, task)
    group = job.find_group(allocation.task_group) if job is not None else None
    if any(each.name == task and each.log_config.disabled for each in (group.tasks if group else None) or ()):
        raise not_found(f'task "{task}" has no logs: its job disables them by LogConfig.Disabled')


def _no_such_task(task: str) -> Refusal:
    return invalid_request(f'unknown task name "{task}"')


def _driver(allocation: Allocation, job: Job | None, task: str) -> str | None:
    group = job.find_group(allocation.task_group) if job is not None else None
    found: Mapping[str, Any] = {each.name: each.driver for each in (group.tasks if group else None) or ()}
    return found.get(task)


def _check_origin(request: Request) -> None:
    if request.get_text("origin") not in FILE_ORIGINS:
        raise invalid_request("invalid origin: use `start` or `end`")
    if request.get_number("offset") < 0:
        raise invalid_request("offset cannot be negative")


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    agents = NodeCallActions(server)
    of_node = ("metadata", "stats", "gc", "gc_now", "identity")
    of_allocation = ("pause_state", "alloc_stats", "checks", "alloc_gc", "alloc_gc_now", "fs_list")
    return {
        **{f"client.{name}": agents.call_node for name in of_node},
        **{f"client.{name}": agents.call_allocation_node for name in of_allocation},
        "client.checks_by_allocation": agents.call_allocation_node,
        "client.metadata_apply": agents.apply_metadata,
        "client.identity_renew": agents.renew_identity,
        "client.restart": agents.restart_allocation,
        "client.signal": agents.signal_task,
        "client.pause": agents.set_schedule_state,
        "client.snapshot": agents.download_allocation_data,
        "client.exec": agents.reject_plain_exec,
        "client.fs_stat": agents.access_path,
        "client.fs_cat": agents.access_path,
        "client.fs_read_at": agents.read_file_part,
        "client.fs_stream": agents.stream_file,
        "client.fs_logs": agents.stream_logs,
    }
