"""Commands next to a running task, over a websocket: messages are forwarded between the caller and the node.

The websocket is accepted first and closed with a code and a reason if access is refused: existing clients expect this.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from wharf.cluster.api.access_control import RequestAuthorizer
from wharf.cluster.api.audit import AuditWriter
from wharf.cluster.api.browser_gate import build_page_refusal
from wharf.cluster.api.caller_slots import CallerSlots
from wharf.cluster.api.continued_access import AccessWatcher
from wharf.cluster.api.handlers.allocations.command_audit import CommandAudit
from wharf.cluster.api.handlers.allocations.node_calls import (
    NodeCaller,
    build_node_call,
    check_task,
    find_task_driver,
)
from wharf.cluster.api.handlers.jobs.actions import JobActionResolver
from wharf.cluster.api.relay.members import build_relayed_request, find_node_holder
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.api.websockets.sockets import (
    GOING_AWAY_CODE,
    NORMAL_CLOSE_CODE,
    POLICY_VIOLATION_CODE,
    STOPPING_TEXT,
    CallerSocket,
    WebSocketHandlers,
)
from wharf.cluster.server.node_channels.port import NodeStream, NoNodePath
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.client.relay.websockets import HandshakeRefused, WebSocket
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.acl.permissions import EXEC_ON_NODE
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.wire.allocations.exec import WEBSOCKET_REQUIRED_TEXT, decode_exit_code
from wharf.contract.wire.credentials import TOKEN_HEADER, read_credentials, read_token
from wharf.world.tasks import run_until_first

HANDSHAKE_VERSION: Final = 1
BEGIN_MESSAGE: Final = "{}"
"""The first message to the caller: the node has begun to run the command, which may write nothing for hours. Clients take a
message without content as a heartbeat."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
"""How long a client may take to send its token as the first message. Until then, it may be anyone."""
MAX_SESSIONS: Final = 512
"""Commands that callers run through one api process at a time. Protects its memory: each session takes up to 3 MB while its
program does not read or its caller does not."""
MAX_SESSIONS_PER_CALLER: Final = 128
"""Commands that one token, or one allocation's tasks, run through one api process at a time. Protects other callers: no token
uses up all sessions. While access control is off, all callers count as one, and only `MAX_SESSIONS` applies."""
UNISOLATED_DRIVERS: Final = frozenset({"raw_exec"})
"""Drivers whose tasks can access the files of the node. Commands next to them need the right `EXEC_ON_NODE`.

It is also needed if the driver is unknown, because the job was purged.
"""


class ExecActions:
    """Finds the allocation of an exec request (a command in a running task), and opens its stream to the node."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._nodes = NodeCaller(server)

    async def find_exec_allocation(self, request: Request, audit: CommandAudit | None = None) -> Allocation:
        """Return the allocation to run the command in. Raises `Refusal` if the request is invalid or not allowed.

        `audit` gets the command before the access check, so that the record of a denial has it.
        """
        task = request.get_text("task")
        if not task:
            raise invalid_request("must provide task name")
        command = _parse_command(request.get_text("command"))
        if not command:
            raise invalid_request("command is not present")
        if audit is not None and (
            allocation := self._server.replica.get(ALLOCATIONS, request.get_path_value("alloc_id"))
        ):
            audit.set_command(allocation, task, command)

        def check(allocation: Allocation, job: Job | None) -> None:
            check_task(allocation, job, task)
            if job is None or find_task_driver(allocation, job, task) in UNISOLATED_DRIVERS:
                request.require_permission(EXEC_ON_NODE, namespace=allocation.namespace)

        return await self._nodes.require_allocation(request, check)

    async def open_exec(self, request: Request, allocation: Allocation) -> NodeStream:
        """Start the command on the node and return its stream.

        Raises `NoNodePath` if this process has no connection to the node, or another `Refusal`.
        """
        channel = self._server.node_channels.channel_to(allocation.node_id)
        return await channel.open_stream(build_node_call(request, allocation.id))

    async def reject_plain_exec(self, request: Request) -> ActionResult:
        """Refuse an exec request that is not a websocket. Errors of the request itself are reported first."""
        allocation = await self.find_exec_allocation(request)
        try:
            self._server.node_channels.channel_to(allocation.node_id)
        except NoNodePath:
            await find_node_holder(self._server, allocation.node_id)
        raise invalid_request(WEBSOCKET_REQUIRED_TEXT)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"client.exec": ExecActions(server).reject_plain_exec}


class ExecHandshake(msgspec.Struct):
    """The first message of a client that cannot set headers, such as a browser. It contains the token."""

    version: int = 0
    auth_token: str = ""


class ExecWebSocketHandlers:
    """Handles exec requests over websockets. Sessions end when `access` is lost. `audit` gets a record of each command."""

    def __init__(
        self, server: Server, authorizer: RequestAuthorizer, access: AccessWatcher, audit: AuditWriter
    ) -> None:
        self._server = server
        self._access = access
        self._sessions = CallerSlots(
            MAX_SESSIONS,
            MAX_SESSIONS_PER_CALLER,
            process_full_text=f"this server process runs {MAX_SESSIONS} commands",
            caller_full_text=f"this token runs through this server process {MAX_SESSIONS_PER_CALLER} commands",
        )
        self._exec = ExecActions(server)
        self._job_actions = JobActionResolver(server)
        self._authorizer = authorizer
        self._audit = audit

    async def serve_exec(self, request: Request, socket: CallerSocket) -> None:
        """Run a command in a running task."""
        await self._serve(request, socket)

    async def serve_action(self, request: Request, socket: CallerSocket) -> None:
        """Run the command of a job action in a running allocation of the job."""
        await self._serve(request, socket, is_action=True)

    async def _serve(self, request: Request, socket: CallerSocket, *, is_action: bool = False) -> None:
        """Check the caller and run its command, and write the audit records."""
        audit = CommandAudit(self._server, self._audit, request, path=socket.path, source=socket.source)
        try:
            await self._accept(request, socket, audit)
            authorized = audit.request
            with self._sessions.take(authorized.caller):
                if is_action:
                    await self._server.reader.catch_up()
                    authorized = await self._job_actions.build_exec_request(authorized)
                await self._run_command(authorized, socket, audit)
        except Refusal as refusal:
            audit.record_refusal(refusal)
            raise
        except BaseException:
            audit.record_failure()
            raise
        audit.record_end()

    async def _accept(self, request: Request, socket: CallerSocket, audit: CommandAudit) -> None:
        """Accept the websocket and set the request with its caller in `audit`. Raises `Refusal` without access."""
        await socket.accept()
        if request.get_flag("ws_handshake"):
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    first_message = await socket.receive()
            except TimeoutError:
                raise invalid_request(
                    f"the handshake message did not arrive within {HANDSHAKE_TIMEOUT_S:g} s"
                ) from None
            request = _add_handshake_token(request, first_message)
        if socket.needs_token and not read_token(request.headers):
            raise build_page_refusal(request.headers)
        audit.request = await self._authorizer.add_caller(request)
        self._authorizer.check(audit.request)

    async def _run_command(self, request: Request, socket: CallerSocket, audit: CommandAudit) -> None:
        """Run the command on the node and forward its streams, through another server process if that holds the node's
        connection.
        """
        allocation = await self._exec.find_exec_allocation(request, audit)
        try:
            async with AsyncExitStack() as exit_stack:
                try:
                    stream = await self._exec.open_exec(request, allocation)
                    exit_stack.push_async_callback(stream.parts.aclose)
                    audit.record_begin()
                    await socket.send(BEGIN_MESSAGE)
                except NoNodePath:
                    stream = _RelayedStream(await self._open_relayed_socket(request, allocation.node_id, exit_stack))
                    exit_stack.push_async_callback(stream.parts.aclose)
                    audit.record_begin()
                await self._relay(request, socket, stream, audit)
        except Unreachable as error:  # The other process does not reply any more.
            raise Refusal(RefusalCode.UNAVAILABLE, str(error)) from error

    async def _open_relayed_socket(self, request: Request, node_id: str, exit_stack: AsyncExitStack) -> WebSocket:
        """Open the same websocket at the process that holds the node's connection.

        `exit_stack` closes it. Raises `Refusal`.
        """
        holder = await find_node_holder(self._server, node_id)
        relayed_request = build_relayed_request(request, excluded_parameters=("ws_handshake",))
        opening = self._server.relay.open_socket_to_member(holder.address, relayed_request, hop=holder.hop)
        try:
            return await exit_stack.enter_async_context(opening)
        except HandshakeRefused as error:
            raise Refusal(RefusalCode.UNAVAILABLE, error.body.decode(errors="replace")) from error

    async def _relay(self, request: Request, socket: CallerSocket, stream: NodeStream, audit: CommandAudit) -> None:
        """Forward messages in both directions until the command ends or the client closes.

        Also ends when the caller loses access, the allocation ends, or this server stops. Raises `Refusal`.
        """
        exec_input, exec_output, access, closing, _ = await run_until_first(
            self._server.world,
            exec_input=self._forward_input(socket, stream),
            exec_output=self._forward_output(socket, stream, audit),
            access=self._access.wait_until_lost(request, lambda: self._check_running(request)),
            closing=socket.closing_event.wait(),
            disconnected=socket.wait_disconnected(),
        )
        if not closing.cancelled():
            audit.end_text = STOPPING_TEXT
            await socket.close(GOING_AWAY_CODE, STOPPING_TEXT)
        for forwarding in (exec_output, exec_input):
            if not forwarding.cancelled():
                forwarding.result()
        if not access.cancelled():
            refusal = access.result()
            why = "its token no longer permits it" if refusal.code is RefusalCode.FORBIDDEN else refusal.text
            raise Refusal(RefusalCode.FORBIDDEN, f"the session was ended: {why}", refusal.reason)

    def _check_running(self, request: Request) -> None:
        """Raise a `Refusal` if the allocation of the request has ended."""
        allocation = self._server.replica.get(ALLOCATIONS, request.get_path_value("alloc_id"))
        if allocation is not None and allocation.is_client_terminal:
            raise invalid_request(f"allocation {allocation.id} has ended")

    @staticmethod
    async def _forward_input(socket: CallerSocket, stream: NodeStream) -> None:
        while (message := await socket.receive()) is not None:
            data, message = message.encode() if isinstance(message, str) else message, b""  # Free the text.
            await stream.send(data)

    @staticmethod
    async def _forward_output(socket: CallerSocket, stream: NodeStream, audit: CommandAudit) -> None:
        async for part in stream.parts:
            if (exit_code := decode_exit_code(part)) is not None:
                audit.exit_code = exit_code
            await socket.send(part.decode())
        await socket.close(NORMAL_CLOSE_CODE)


class _RelayedStream:
    """A `NodeStream` over a websocket to the process that holds the node's connection."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.parts = self._iterate_output()

    async def _iterate_output(self) -> AsyncGenerator[bytes, None]:
        """Yield the output. Raises `Refusal` if the websocket was closed with an error."""
        while (message := await self._socket.receive()) is not None:
            yield message.encode() if isinstance(message, str) else message
        if self._socket.close_code == POLICY_VIOLATION_CODE:
            raise invalid_request(self._socket.close_reason)
        if self._socket.close_code not in (NORMAL_CLOSE_CODE, GOING_AWAY_CODE):
            raise Refusal(
                RefusalCode.UNAVAILABLE, self._socket.close_reason or "the other server closed the connection"
            )

    async def send(self, data: bytes) -> None:
        await self._socket.send(data.decode())


def _add_handshake_token(request: Request, first_message: str | bytes | None) -> Request:
    """Return the request with the token from the first websocket message.

    Raises `Refusal` if that message is invalid.
    """
    try:
        handshake = msgspec.json.decode(first_message or b"{}", type=ExecHandshake)
    except msgspec.MsgspecError:
        handshake = ExecHandshake()
    if handshake.version != HANDSHAKE_VERSION:
        raise invalid_request('the first message must be a handshake: {"version": 1, "auth_token": "..."}')
    credentials = read_credentials([(TOKEN_HEADER, handshake.auth_token.encode(errors="surrogatepass"))])
    if read_token(request.headers) not in ("", read_token(credentials)):
        raise invalid_request("the token of the handshake is not that of the header")
    return msgspec.structs.replace(request, headers={**request.headers, **credentials})


def _parse_command(text: str) -> list[str]:
    """Return the words of a command such as `["/bin/sh", "-c", "ls"]`. Raises `Refusal` for other JSON."""
    if not text:
        return []
    try:
        words = msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        raise invalid_request('command must be a list of texts as JSON, such as ["/bin/ls", "-l"]') from None
    if any("\0" in word for word in words):
        raise invalid_request("command contains a zero byte, which no program can receive: remove it")
    return words


def build_websocket_handlers(
    server: Server, authorizer: RequestAuthorizer, access: AccessWatcher, audit: AuditWriter
) -> WebSocketHandlers:
    handlers = ExecWebSocketHandlers(server, authorizer, access, audit)
    return {"client.exec": handlers.serve_exec, "job.action": handlers.serve_action}
