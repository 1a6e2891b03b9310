"""Execution of actions: every endpoint that is not a read of the replica. Handlers themselves are in `handlers`."""

from typing import Final

import msgspec

from wharf.cluster.api.asgi import HeaderList, Scope
from wharf.cluster.api.handler_table import build_action_handlers
from wharf.cluster.api.handlers.jobs.versions import reverts_to_large_job
from wharf.cluster.api.idempotency import IDEMPOTENCY_HEADER, IdempotentExecutor
from wharf.cluster.api.node_callers import require_node_rights
from wharf.cluster.api.off_loop import OffLoopExecutor, needs_worker
from wharf.cluster.api.relay.authoritative import relay_to_authoritative_region, should_relay_write
from wharf.cluster.api.relay.region_slots import RegionSlots
from wharf.cluster.api.replies.encoding import ReplyBody
from wharf.cluster.api.replies.pieces import encode_in_slices
from wharf.cluster.api.replies.sender import JSON_HEADER, HttpReply
from wharf.cluster.api.requests.parameters import is_pretty
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionResult, EncodedBody, StreamedBody
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.server import Server
from wharf.contract.wire.endpoint_table import EndpointKind, takes_idempotency_key

LARGE_RECORD_TESTS: Final = {"job.revert": reverts_to_large_job}
"""By the name of an endpoint, whether a request with a small body takes long because of a stored record."""
WRITE_KINDS: Final = (EndpointKind.WRITE, EndpointKind.LEADER_WRITE)


class ActionExecutor:
    """Executes the endpoints that do more than read the replica, here or in the authoritative region.

    A write with an idempotency key is executed once; repeated requests get the stored reply. A worker executes requests
    with large bodies.
    """

    def __init__(self, server: Server, off_loop: OffLoopExecutor, region_slots: RegionSlots) -> None:
        self._server = server
        self._region_slots = region_slots
        self._off_loop = off_loop
        self._idempotency = IdempotentExecutor(server)
        self.handlers = build_action_handlers(server)

    async def execute(self, scope: Scope, request: Request) -> HttpReply:
        """Return the reply of an action. The caller's access was checked already. Raises `Refusal`.

        A write to global records is relayed to the authoritative region. A write with an idempotency key is executed
        once.
        """
        handler = self.handlers[request.endpoint.name]
        has_large_record = LARGE_RECORD_TESTS.get(request.endpoint.name)
        is_large = needs_worker(request) or (
            has_large_record is not None and has_large_record(self._server.replica, request)
        )
        if is_large:
            await require_node_rights(self._server, request)
        if should_relay_write(self._server, request):
            with self._region_slots.hold(self._server.access.settings.authoritative_region, scope):
                result = await relay_to_authoritative_region(self._server, request, method=scope["method"])
        elif IDEMPOTENCY_HEADER in request.headers and takes_idempotency_key(request.endpoint):
            query = scope["query_string"].decode("latin-1")
            target = f"{scope['path']}?{query}" if query else scope["path"]
            result = await self._idempotency.execute(
                request,
                handler,
                method=scope["method"],
                target=target,
                off_loop=self._off_loop if is_large else None,
            )
        elif is_large:
            result = await self._off_loop.run_action(request, lambda: handler(request))
        else:
            result = await handler(request)
        work = self._server.make_list_work(request.caller.owner_key)
        return await build_action_reply(result, work, is_pretty=is_pretty(request.query))


async def build_action_reply(result: ActionResult, work: SlicedWork, *, is_pretty: bool) -> HttpReply:
    """Return the HTTP reply of a handler's result, with the log index as a header if the result has one."""
    headers: HeaderList = [*result.headers]
    if result.index:
        headers.append((b"x-cluster-index", str(result.index).encode()))
    match result.body:
        case None:
            return HttpReply(result.status, headers)
        case EncodedBody(data, content_type, is_indented):
            content_header = (b"content-type", content_type.encode())
            body = ReplyBody((data,))
            if content_type == "application/json" and is_pretty and not is_indented:
                body = await encode_in_slices(msgspec.Raw(data), work, is_pretty=True)
            return HttpReply(result.status, [content_header, *headers], body)
        case StreamedBody():
            return HttpReply(result.status, headers, result.body)
        case value:
            body = await encode_in_slices(value, work, is_pretty=is_pretty)
            return HttpReply(result.status, [JSON_HEADER, *headers], body)
