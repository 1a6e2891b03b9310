"""Runs commands inside a task over a websocket: input to the command, its output, and its exit code at the end."""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from wharf.contract.client.connection import build_headers, build_tls_context, connect_async
from wharf.contract.client.errors import RequestRefused, build_error
from wharf.contract.client.flow import NO_RETRIES
from wharf.contract.client.liveness import PROBE_PATH, PROBE_TIMEOUT_S, log_failed_probe, wait_until_silent
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import (
    CLOSE_POLICY_VIOLATION,
    HandshakeRefused,
    SocketRelay,
    WebSocket,
    WebSocketRelay,
)
from wharf.contract.client.settings import ClientSettings, read_settings
from wharf.contract.client.transport import ClientReply, ClientRequest, Unreachable
from wharf.contract.wire.allocations.exec import ExecOutput, encode_input, encode_input_close, encode_terminal_size
from wharf.world import RealWorld
from wharf.world.tasks import cancel_tasks

MAX_INPUT_CHUNK_BYTES: Final = 2048
"""Bytes of input in one websocket message."""
HEARTBEAT_MESSAGE: Final = "{}"
"""Message without content, which shows that the client is alive."""
BAD_REQUEST_STATUS: Final = 400
SERVER_ERROR_STATUS: Final = 500


class OutputChunk(NamedTuple):
    """A part of the output of a command."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class CommandResult(NamedTuple):
    """The exit code and the complete output of a command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class RunningCommand:
    """A command that runs inside a task, connected by a websocket.

    `exit_code` is None until `read_output` has ended.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.exit_code: int | None = None
        self.begun_event = asyncio.Event()
        """Set by `read_output` when the first message has arrived: the node has begun to run the command."""

    async def read_output(self) -> AsyncIterator[OutputChunk]:
        """Yield the output until the command ends, then set `exit_code`.

        Raises `RequestRefused` if the command cannot be run, and `Unreachable` if the connection breaks before its end.
        """
        while (message := await self._socket.receive()) is not None:
            self.begun_event.set()
            output = msgspec.json.decode(message, type=ExecOutput)
            if output.stdout is not None and output.stdout.data:
                yield OutputChunk("stdout", base64.b64decode(output.stdout.data))
            if output.stderr is not None and output.stderr.data:
                yield OutputChunk("stderr", base64.b64decode(output.stderr.data))
            if output.exited:
                self.exit_code = output.result.exit_code if output.result is not None else 0
                return
        reason = self._socket.close_reason
        if self._socket.close_code == CLOSE_POLICY_VIOLATION:
            raise build_error(ClientReply(BAD_REQUEST_STATUS, {}, reason.encode()))
        if reason:  # The error text of the server.
            raise build_error(ClientReply(SERVER_ERROR_STATUS, {}, reason.encode()))
        raise Unreachable("the connection broke before the command ended", is_sent=True)

    async def write(self, data: bytes) -> None:
        """Send input to the command, in messages of limited size."""
        for begin in range(0, len(data), MAX_INPUT_CHUNK_BYTES):
            await self._socket.send(encode_input(data[begin : begin + MAX_INPUT_CHUNK_BYTES]).decode())

    async def close_input(self) -> None:
        """Signal the end of the input to the command."""
        await self._socket.send(encode_input_close().decode())

    async def resize(self, height: int, width: int) -> None:
        """Send the new size of the caller's terminal, in rows and columns."""
        await self._socket.send(encode_terminal_size(height, width).decode())

    async def send_heartbeat(self) -> None:
        """Send a heartbeat: the caller is alive. Call it about every ten seconds."""
        await self._socket.send(HEARTBEAT_MESSAGE)


async def _list_live_addresses(settings: ClientSettings) -> list[str]:
    """Return the addresses of all servers of the settings, beginning with one that replies.

    A frozen server is found by a request that may be repeated, because a repeated handshake could run the command twice.
    """
    if len(settings.addresses) < 2:
        return list(settings.addresses)
    async with connect_async(settings, retry_policy=NO_RETRIES) as client:
        with suppress(RequestRefused, Unreachable):
            await client.status.leader()
        return [settings.addresses[position] for position in client.servers.list_order()]


def _build_relay(settings: ClientSettings, address: str) -> SocketRelay:
    """Return a websocket relay for a server of the settings."""
    return WebSocketRelay(address, tls=build_tls_context(settings) if address.startswith("https://") else None)


@asynccontextmanager
async def _abort_if_silent(settings: ClientSettings, address: str, socket: WebSocket) -> AsyncIterator[None]:
    """Return a context manager that drops the websocket when its server does not answer a probe.

    A command may be silent for hours, so the silence of the websocket itself proves nothing. `address` is empty if it is
    unknown; then no probes are sent.
    """
    if not address:
        yield
        return
    world = RealWorld()
    probe = ClientRequest("GET", PROBE_PATH, timeout_s=PROBE_TIMEOUT_S, connect_timeout_s=PROBE_TIMEOUT_S)
    one_server = msgspec.structs.replace(settings, addresses=(address,))
    async with connect_async(one_server, world=world, retry_policy=NO_RETRIES) as client:

        async def abort_when_silent() -> None:
            try:
                await wait_until_silent(lambda: client.send(probe))
                socket.abort()
            except Exception:
                log_failed_probe()

        probing = world.start_task(abort_when_silent(), name=f"probes of {address}")
        try:
            yield
        finally:
            await cancel_tasks(probing)


@asynccontextmanager
async def open_command(
    settings: ClientSettings,
    alloc_id: str,
    task: str,
    command: Sequence[str],
    *,
    is_tty: bool = False,
    relays: Sequence[SocketRelay] = (),
) -> AsyncIterator[RunningCommand]:
    """Run a command inside a task; as a context manager, yield the running command and kill it at the end.

    `relays` are connections to use instead of the servers in the settings. Raises `RequestRefused` and `Unreachable`.
    """
    parameters = {"task": task, "command": msgspec.json.encode(list(command)).decode()}
    path = f"/v1/client/allocation/{quote(alloc_id, safe='')}/exec"
    async with _open_websocket(settings, path, parameters, is_tty=is_tty, relays=relays) as running:
        yield running


@asynccontextmanager
async def open_action(
    settings: ClientSettings,
    job_id: str,
    action: str,
    *,
    namespace: str = "default",
    alloc_id: str = "",
    group: str = "",
    task: str = "",
    is_tty: bool = False,
    relays: Sequence[SocketRelay] = (),
) -> AsyncIterator[RunningCommand]:
    """Run an action of a job inside a task; as a context manager, yield the running command and kill it at the end.

    Without `alloc_id`, the newest running allocation that has the action is used. `relays` are connections to use
    instead of the servers in the settings. Raises `RequestRefused` and `Unreachable`.
    """
    parameters = {"action": action, "namespace": namespace, "allocID": alloc_id, "group": group, "task": task}
    path = f"/v1/job/{quote(job_id, safe='')}/action"
    async with _open_websocket(settings, path, parameters, is_tty=is_tty, relays=relays) as running:
        yield running


@asynccontextmanager
async def _open_websocket(
    settings: ClientSettings,
    path: str,
    parameters: Mapping[str, str],
    *,
    is_tty: bool,
    relays: Sequence[SocketRelay],
) -> AsyncIterator[RunningCommand]:
    """Open a websocket at the first reachable server; as a context manager, yield the running command.

    Parameters with an empty value are not sent. Raises `RequestRefused` if a server refuses the request, and `Unreachable` if
    no server can be reached.
    """
    query = {name: value for name, value in parameters.items() if value}
    query |= {"tty": "true"} if is_tty else {}
    query |= {"region": settings.region} if settings.region else {}
    target = f"{path}?{urlencode(query)}"
    headers = [(name.encode(), value.encode()) for name, value in build_headers(settings).items()]
    outgoing = RelayRequest("GET", target.encode(), headers)
    last_error: Unreachable | None = None
    candidates = [("", relay) for relay in relays] or [
        (address, _build_relay(settings, address)) for address in await _list_live_addresses(settings)
    ]
    for address, relay in candidates:
        opening = relay.open_socket(outgoing)
        try:
            socket = await opening.__aenter__()
        except HandshakeRefused as refused:
            reply_headers = {name.decode().lower(): value.decode() for name, value in refused.headers}
            raise build_error(ClientReply(refused.status, reply_headers, refused.body)) from refused
        except Unreachable as error:
            last_error = error
            continue
        try:
            async with _abort_if_silent(settings, address, socket):
                yield RunningCommand(socket)
        finally:
            await opening.__aexit__(None, None, None)
        return
    raise last_error or Unreachable("no server address is configured", is_sent=False)


async def run_command(
    alloc_id: str,
    task: str,
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    settings: ClientSettings | None = None,
    relays: Sequence[SocketRelay] = (),
) -> CommandResult:
    """Run a command inside a task to its end and return its exit code and output.

    `relays` are connections to use instead of the servers in the settings. Raises `RequestRefused` and `Unreachable`.
    """
    output: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    opening = open_command(settings or read_settings(), alloc_id, task, command, relays=relays)
    async with opening as running:

        async def write_input() -> None:
            await running.write(stdin)
            await running.close_input()

        # Output is read meanwhile: a command may read no more input until its output is read.
        writing = RealWorld().start_task(write_input(), name="input of a command")
        try:
            async for stream, data in running.read_output():
                output[stream].append(data)
        finally:
            await cancel_tasks(writing)
    assert running.exit_code is not None, "read_output sets it at its end"
    return CommandResult(running.exit_code, b"".join(output["stdout"]), b"".join(output["stderr"]))


def run_command_blocking(
    alloc_id: str, task: str, command: Sequence[str], *, stdin: bytes = b"", settings: ClientSettings | None = None
) -> CommandResult:
    """Run a command inside a task to its end and return its exit code and output. Not for use in an event loop.

    Raises `RequestRefused` and `Unreachable`.
    """
    return asyncio.run(run_command(alloc_id, task, command, stdin=stdin, settings=settings))


__all__ = [
    "CommandResult",
    "OutputChunk",
    "RequestRefused",
    "RunningCommand",
    "open_command",
    "run_command",
    "run_command_blocking",
]
