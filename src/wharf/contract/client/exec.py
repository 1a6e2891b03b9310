"""Commands beside a task, over a websocket: what the caller types goes in, what the command says comes out, and its exit
code at the end.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from wharf.contract.client.connection import build_headers, build_tls_context
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import (
    CLOSE_POLICY_VIOLATION,
    HandshakeRefused,
    SocketRelay,
    WebSocket,
    WebSocketRelay,
)
from wharf.contract.client.settings import ClientSettings, read_settings
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.refusal import Refusal, invalid_request
from wharf.contract.wire.allocations.exec import ExecOutput, encode_input, encode_input_close, encode_terminal_size
from wharf.contract.wire.errors import CODE_HEADER, build_refusal

MAX_INPUT_CHUNK_BYTES: Final = 2048
HEARTBEAT_MESSAGE: Final = "{}"
SERVER_ERROR_STATUS: Final = 500


class OutputChunk(NamedTuple):
    stream: Literal["stdout", "stderr"]
    data: bytes


class CommandResult(NamedTuple):
    exit_code: int
    stdout: bytes
    stderr: bytes


class RunningCommand:
    """`exit_code` is known when `said` is over."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.exit_code: int | None = None

    async def read_output(self) -> AsyncIterator[OutputChunk]:
        """Raises Refusal where it cannot be run, and `Unreachable` where the connection broke off before its end."""
        while (message := await self._socket.receive()) is not None:
            told = msgspec.json.decode(message, type=ExecOutput)
            if told.stdout is not None and told.stdout.data:
                yield OutputChunk("stdout", base64.b64decode(told.stdout.data))
            if told.stderr is not None and told.stderr.data:
                yield OutputChunk("stderr", base64.b64decode(told.stderr.data))
            if told.exited:
                self.exit_code = told.result.exit_code if told.result is not None else 0
                return
        reason = self._socket.close_reason
        if self._socket.close_code == CLOSE_POLICY_VIOLATION:
            raise invalid_request(reason)
        if reason:  # The server's own word.
            raise build_refusal(SERVER_ERROR_STATUS, reason)
        raise Unreachable("the connection broke off before the command ended", is_sent=True)

    async def write(self, data: bytes) -> None:
        for begin in range(0, len(data), MAX_INPUT_CHUNK_BYTES):
            await self._socket.send(encode_input(data[begin : begin + MAX_INPUT_CHUNK_BYTES]).decode())

    async def close_input(self) -> None:
        await self._socket.send(encode_input_close().decode())

    async def resize(self, height: int, width: int) -> None:
        await self._socket.send(encode_terminal_size(height, width).decode())

    async def send_heartbeat(self) -> None:
        """That the caller is still there; every ten seconds or so."""
        await self._socket.send(HEARTBEAT_MESSAGE)


def _passages(settings: ClientSettings) -> list[SocketRelay]:
    return [
        WebSocketRelay(address, tls=build_tls_context(settings) if address.startswith("https://") else None)
        for address in settings.addresses
    ]


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
    """The command as it runs; when the context is left it is ended. Raises Refusal and `Unreachable`.

    `passages`: the ways to servers, in the place of those that the settings tell.
    """
    given = {"task": task, "command": msgspec.json.encode(list(command)).decode()}
    path = f"/v1/client/allocation/{quote(alloc_id, safe='')}/exec"
    async with _running(settings, path, given, is_tty=is_tty, passages=relays) as running:
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
    """The same with a command that the job offers, by its name: beside the allocation, or the newest that runs and has it."""
    given = {"action": action, "namespace": namespace, "allocID": alloc_id, "group": group, "task": task}
    path = f"/v1/job/{quote(job_id, safe='')}/action"
    async with _running(settings, path, given, is_tty=is_tty, passages=relays) as running:
        yield running


@asynccontextmanager
async def _running(
    settings: ClientSettings,
    path: str,
    parameters: Mapping[str, str],
    *,
    is_tty: bool,
    passages: Sequence[SocketRelay],
) -> AsyncIterator[RunningCommand]:
    given = {name: value for name, value in parameters.items() if value}
    given |= {"tty": "true"} if is_tty else {}
    given |= {"region": settings.region} if settings.region else {}
    target = f"{path}?{urlencode(given)}"
    headers = [(name.encode(), value.encode()) for name, value in build_headers(settings).items()]
    outgoing = RelayRequest("GET", target.encode(), headers)
    failed: Unreachable | None = None
    for passage in passages or _passages(settings):
        opening = passage.open_socket(outgoing)
        try:
            socket = await opening.__aenter__()
        except HandshakeRefused as refused:
            code = next((value for name, value in refused.headers if name.decode().lower() == CODE_HEADER), b"")
            raise build_refusal(refused.status, refused.body.decode(errors="replace"), code=code.decode()) from refused
        except Unreachable as error:
            failed = error
            continue
        try:
            yield RunningCommand(socket)
        finally:
            await opening.__aexit__(None, None, None)
        return
    raise failed or Unreachable("no server is known", is_sent=False)


async def run_command(
    alloc_id: str,
    task: str,
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    settings: ClientSettings | None = None,
    relays: Sequence[SocketRelay] = (),
) -> CommandResult:
    """To its end. Raises Refusal and `Unreachable`."""
    said: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    opening = open_command(settings or read_settings(), alloc_id, task, command, relays=relays)
    async with opening as running:
        await running.write(stdin)
        await running.close_input()
        async for stream, data in running.read_output():
            said[stream].append(data)
    assert running.exit_code is not None, "it is over"
    return CommandResult(running.exit_code, b"".join(said["stdout"]), b"".join(said["stderr"]))


def run_command_blocking(
    alloc_id: str, task: str, command: Sequence[str], *, stdin: bytes = b"", settings: ClientSettings | None = None
) -> CommandResult:
    """The same, with a thread that waits."""
    return asyncio.run(run_command(alloc_id, task, command, stdin=stdin, settings=settings))


__all__ = [
    "CommandResult",
    "OutputChunk",
    "Refusal",
    "RunningCommand",
    "open_command",
    "run_command",
    "run_command_blocking",
]
