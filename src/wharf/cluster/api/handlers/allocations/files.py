"""Endpoints of an allocation's files and logs, read on its node.

If the node cannot provide the logs of a finished allocation, the last lines stored by the servers are returned.
"""

import base64
from hmac import compare_digest
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.api.handlers.allocations.log_streamer import LogStreamer, is_relayed_within_region
from wharf.cluster.api.handlers.allocations.node_calls import NodeCaller, check_task
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody, StreamedBody
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.logs import unpack_log_tails
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found, permission_denied
from wharf.contract.model.secrets import make_migrate_token
from wharf.contract.wire.allocations.file_offsets import check_file_offset
from wharf.contract.wire.allocations.log_frames import ALL_LOGS, RETAINED_LOG_FOLDER, LogFrame
from wharf.contract.wire.allocations.log_search import LineSearch, check_search
from wharf.contract.wire.credentials import read_token

LOG_TYPES: Final = ("stdout", "stderr")
FILE_ORIGINS: Final = ("", "start", "end")
LOGS_UNAVAILABLE_CODES: Final = frozenset({RefusalCode.NOT_FOUND, RefusalCode.UNAVAILABLE})
"""The node cannot be reached, or no longer has the files."""


FILE_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; sandbox"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-xss-protection", b"1; mode=block"),
)
"""Headers of replies with content of tasks: a browser that opens such a file runs no script with the rights of the API."""
HTML_TYPES: Final = frozenset(("text/html", "application/xhtml+xml"))
"""Content types that are sent as `text/plain`, because a browser would render them as a page."""


class FileActions:
    """Checks requests for files and forwards them to the allocation's node."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._nodes = NodeCaller(server)
        self._logs = LogStreamer(server.world, self._nodes)

    async def list_folder(self, request: Request) -> ActionResult:
        return await self._nodes.call_allocation_node(request)

    async def access_path(self, request: Request) -> ActionResult:
        """Have the node read the file or folder `path` of the allocation. Raises `Refusal` if `path` is missing."""
        if not request.get_text("path"):
            raise invalid_request("must provide a file name: give its `path`")
        return _make_safe(await self._nodes.call_allocation_node(request))

    async def read_file_part(self, request: Request) -> ActionResult:
        """Have the node return a part of a file, from the byte `offset` on. Raises `Refusal` without a valid offset."""
        if "offset" not in request.parameters:
            raise invalid_request("missing offset: give the byte to read from as `offset`")
        check_file_offset(request.get_number("offset"))
        return await self.access_path(request)

    async def stream_file(self, request: Request) -> ActionResult:
        _check_origin(request)
        return _allow_compression(await self.access_path(request))

    async def stream_logs(self, request: Request) -> ActionResult:
        """Stream a log of a task from its node.

        If the node cannot provide it and the allocation is finished, send the last lines that the servers store. A
        followed log continues where it was when the node's agent restarts.
        """
        task = request.get_text("task")
        if not task:
            raise invalid_request("must provide task name")
        if request.get_text("type") not in (*LOG_TYPES, *(() if request.get_flag("follow") else (ALL_LOGS,))):
            raise invalid_request('log type must be "stdout" or "stderr"')
        _check_origin(request)
        allocation = await self._nodes.require_allocation(
            request, lambda allocation, job: _check_logs_enabled(allocation, job, task)
        )
        try:
            if request.get_flag("follow") and not is_relayed_within_region(request):
                result = await self._logs.follow(request, allocation)
            else:
                result = await self._nodes.call_node(request, allocation.node_id, allocation_id=allocation.id)
            return _allow_compression(_make_safe(result))
        except Refusal as refusal:
            is_resumed = bool(request.get_text("file"))  # The retained lines are not a part of that file.
            may_use_retained = refusal.code in LOGS_UNAVAILABLE_CODES and not is_resumed
            retained = read_retained_log(request, allocation) if may_use_retained else None
            if retained is None:
                raise
            return _make_safe(retained)

    async def search_logs(self, request: Request) -> ActionResult:
        """Have the node search a log of a task.

        If the node cannot provide the log and the allocation is finished, search the last lines that the servers store.
        """
        task, log_type, text = request.get_text("task"), request.get_text("type"), request.get_text("text")
        if not task:
            raise invalid_request("must provide task name")
        if log_type not in LOG_TYPES:
            raise invalid_request('log type must be "stdout" or "stderr"')
        max_lines = check_search(text, request.get_number("limit"))
        allocation = await self._nodes.require_allocation(
            request, lambda allocation, job: _check_logs_enabled(allocation, job, task)
        )
        try:
            return await self._nodes.call_node(request, allocation.node_id, allocation_id=allocation.id)
        except Refusal as refusal:
            tail = find_retained_log(allocation, task, log_type)
            if refusal.code not in LOGS_UNAVAILABLE_CODES or tail is None:
                raise
            search = LineSearch(text.encode(), max_lines=max_lines)
            search.search_block(tail, build_retained_file(task, log_type), 0, is_last=True)
            return ActionResult(search.build_reply())

    async def download_allocation_data(self, request: Request) -> ActionResult:
        """Send the data of an allocation to the node of its replacement.

        While access control is on, that node must present a token made from the node secret of the allocation's node.
        """
        allocation = await self._nodes.require_allocation(request)
        if self._server.access.settings.is_enabled:
            node = self._server.replica.get(NODES, allocation.node_id)
            expected = make_migrate_token(allocation.id, node.secret_digest if node is not None else "")
            if not expected or not compare_digest(read_token(request.headers).encode(), expected.encode()):
                raise permission_denied("only the node of the replacement may read the data of this allocation")
        return await self._nodes.call_node(request, allocation.node_id, allocation_id=allocation.id)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = FileActions(server)
    return {
        "client.fs_list": actions.list_folder,
        "client.fs_stat": actions.access_path,
        "client.fs_cat": actions.access_path,
        "client.fs_read_at": actions.read_file_part,
        "client.fs_stream": actions.stream_file,
        "client.fs_logs": actions.stream_logs,
        "client.fs_search": actions.search_logs,
        "client.snapshot": actions.download_allocation_data,
    }


def read_retained_log(request: Request, allocation: Allocation) -> ActionResult | None:
    """Return the requested part of the log that the servers store, or `None` if they store nothing."""
    if not allocation.is_client_terminal:
        return None
    task, log_type = request.get_text("task"), request.get_text("type")
    tails = unpack_log_tails(allocation.log_tails).get(task, {})
    chosen = [(each, text) for each in LOG_TYPES if log_type in (each, ALL_LOGS) and (text := tails.get(each))]
    if not chosen:
        return None
    pieces = [(stream, len(text), _select_part(text, request)) for stream, text in chosen]
    if request.get_flag("plain"):
        return ActionResult(EncodedBody(b"".join(data for _, _, data in pieces), "text/plain"))
    frames = (
        LogFrame(size, base64.b64encode(data).decode(), build_retained_file(task, stream))
        for stream, size, data in pieces
        if data
    )
    return ActionResult(EncodedBody(b"".join(map(msgspec.json.encode, frames)), "application/json"))


def find_retained_log(allocation: Allocation, task: str, log_type: str) -> bytes | None:
    """Return the last lines of a log of an ended allocation that the servers store, or `None` if they store none."""
    if not allocation.is_client_terminal:
        return None
    return unpack_log_tails(allocation.log_tails).get(task, {}).get(log_type)


def build_retained_file(task: str, log_type: str) -> str:
    """Return the name that stands for the file of a retained log."""
    return f"{RETAINED_LOG_FOLDER}/{task}.{log_type}"


def _select_part(text: bytes, request: Request) -> bytes:
    """Return the part of a retained log that begins at the `offset` of the request, counted from its `origin`."""
    offset = request.get_number("offset")
    return text[max(0, len(text) - offset) if request.get_text("origin") == "end" else min(offset, len(text)) :]


def _make_safe(result: ActionResult) -> ActionResult:
    """Return the result, which has content of a task, with headers and a content type that are safe for browsers."""
    body = result.body
    if isinstance(body, EncodedBody | StreamedBody) and body.content_type.partition(";")[0].strip() in HTML_TYPES:
        body = replace(body, content_type="text/plain; charset=utf-8")
    return replace(result, body=body, headers=(*result.headers, *FILE_HEADERS))


def _allow_compression(result: ActionResult) -> ActionResult:
    """Return the result of a stream of frames or lines, so that it is compressed for callers that accept it."""
    body = result.body
    return replace(result, body=replace(body, can_compress=True)) if isinstance(body, StreamedBody) else result


def _check_origin(request: Request) -> None:
    """Raise a `Refusal` unless `origin` is empty, `start` or `end` and `offset` is possible in a file."""
    if request.get_text("origin") not in FILE_ORIGINS:
        raise invalid_request("invalid origin: use `start` or `end`")
    check_file_offset(request.get_number("offset"))


def _check_logs_enabled(allocation: Allocation, job: Job | None, task: str) -> None:
    """Raise a `Refusal` if the allocation's group has no such task, or the task's logs are disabled."""
    check_task(allocation, job, task)
    group = job.find_group(allocation.task_group) if job is not None else None
    if any(each.name == task and each.log_config.disabled for each in (group.tasks if group else None) or ()):
        raise not_found(f'task "{task}" has no logs: its job disables them by LogConfig.Disabled')
