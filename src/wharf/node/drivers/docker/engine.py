"""Requests to the engine. Every call either gives what it says, or raises `EngineAway`, `EngineRefused` or `NotThere`."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import httpx2
import msgspec

from wharf.node.drivers.docker import responses
from wharf.node.drivers.docker.errors import EngineNotFound, EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.exec_connection import ExecConnection, open_exec_connection
from wharf.node.drivers.docker.output_stream import FrameDecoder, OutputChunk

T = TypeVar("T")

# Older engines than this are not spoken to; newer ones understand it.
API_VERSION: Final = "v1.40"
RESPONSE_TIMEOUT_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 5.0


class RegistryAuth(NamedTuple):
    """Who one is at a registry."""

    username: str = ""
    password: str = ""
    email: str = ""
    server_address: str = ""

    def encode_header(self) -> str:
        names = {"username": self.username, "password": self.password, "email": self.email}
        data = msgspec.json.encode({**names, "serveraddress": self.server_address})
        return base64.urlsafe_b64encode(data).decode()


class ContainerExit(NamedTuple):
    code: int
    error: str  # Of the engine, not of the task.


class ContainerEngine:
    """One engine, by the path of its socket. `close` it, or use it as an async context."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                uds=str(socket), limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8)
            ),
            base_url=f"http://engine/{API_VERSION}",
            timeout=httpx2.Timeout(RESPONSE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # -- the engine itself

    async def read_version(self) -> responses.EngineVersion:
        return await self._json("GET", "/version", responses.EngineVersion)

    async def read_info(self) -> responses.EngineInfo:
        return await self._json("GET", "/info", responses.EngineInfo)

    # -- images

    async def find_image(self, name: str) -> responses.ImageInfo | None:
        try:
            return await self._json("GET", f"/images/{name}/json", responses.ImageInfo)
        except EngineNotFound:
            return None

    async def pull_image(
        self, name: str, *, auth: RegistryAuth | None, on_progress: Callable[[responses.PullProgressLine], None]
    ) -> None:
        """`tell` hears each line of progress. The name has a tag or a digest. Silence is the caller's to bound."""
        headers = {"x-registry-auth": auth.encode_header()} if auth else {}
        options = {
            "params": {"fromImage": name},
            "headers": headers,
            "timeout": httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
        }
        async with self._streamed("POST", "/images/create", **options) as answer:
            async for line in _lines(answer):
                said = _decoded(line, responses.PullProgressLine)
                if said.error:
                    raise EngineRejected(500, said.error)
                on_progress(said)

    async def load_image(self, archive: Path) -> None:
        """An image from an archive of the task's folder."""

        async def pieces() -> AsyncIterator[bytes]:
            with archive.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, 1 << 20):
                    yield piece

        headers = {"content-type": "application/x-tar"}
        async with self._streamed("POST", "/images/load", content=pieces(), headers=headers) as answer:
            async for line in _lines(answer):
                said = _decoded(line, responses.PullProgressLine)
                if said.error:
                    raise EngineRejected(500, said.error)

    async def remove_image(self, name: str) -> None:
        with contextlib.suppress(EngineNotFound):
            await self._plain("DELETE", f"/images/{name}")

    # -- containers

    async def create_container(
        self, name: str, body: Mapping[str, Any]
    ) -> responses.CreatedObject:  # The body is JSON, made in `config`.
        return await self._json("POST", "/containers/create", responses.CreatedObject, params={"name": name}, json=body)

    async def start_container(self, container: str) -> None:
        """One that runs already is fine."""
        await self._plain("POST", f"/containers/{container}/start")

    async def signal_container(self, container: str, signal: str) -> None:
        """Raises EngineRejected with 409 where it does not run."""
        await self._plain("POST", f"/containers/{container}/kill", params={"signal": signal})

    async def remove_container(self, container: str) -> None:
        """With its volumes, running or not. One that is gone is fine."""
        with contextlib.suppress(EngineNotFound):
            await self._plain("DELETE", f"/containers/{container}", params={"force": "true", "v": "true"})

    async def find_container(self, container: str) -> responses.ContainerInfo | None:
        try:
            return await self._json("GET", f"/containers/{container}/json", responses.ContainerInfo)
        except EngineNotFound:
            return None

    async def list_containers(self, label: str) -> list[responses.ContainerListItem]:
        """All that carry the label, running or not."""
        filters = msgspec.json.encode({"label": [label]}).decode()
        return await self._json(
            "GET", "/containers/json", list[responses.ContainerListItem], params={"all": "true", "filters": filters}
        )

    async def wait_for_exit(self, container: str) -> ContainerExit:
        """Until it does not run."""
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S)
        waited = await self._json("POST", f"/containers/{container}/wait", responses.WaitResult, timeout=timeout)
        return ContainerExit(waited.status_code, waited.error.message if waited.error else "")

    async def stream_logs(
        self, container: str, *, is_tty: bool, follow: bool, since: str = "", timestamps: bool = False
    ) -> AsyncGenerator[OutputChunk, None]:
        """What it wrote, by stream, as it comes. `since` is a moment as seconds and nanoseconds of the Unix clock."""
        params = {"stdout": "true", "stderr": "true", "follow": str(follow).lower()}
        params |= {"timestamps": str(timestamps).lower(), **({"since": since} if since else {})}
        timeout = httpx2.Timeout(None if follow else RESPONSE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        frames = FrameDecoder(is_tty=is_tty)
        async with self._streamed("GET", f"/containers/{container}/logs", params=params, timeout=timeout) as answer:
            async for piece in answer.aiter_raw():
                for chunk in frames.feed(piece):
                    yield chunk

    async def read_stats(self, container: str) -> responses.ContainerStats:
        params = {"stream": "false", "one-shot": "true"}
        return await self._json("GET", f"/containers/{container}/stats", responses.ContainerStats, params=params)

    # -- exec

    async def create_exec(self, container: str, command: list[str], *, is_tty: bool, user: str = "") -> str:
        body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": is_tty, "Cmd": command}
        made = await self._json(
            "POST",
            f"/containers/{container}/exec",
            responses.CreatedObject,
            json={**body, **({"User": user} if user else {})},
        )
        return made.id

    async def start_exec(self, exec_id: str, *, is_tty: bool) -> ExecConnection:
        """Its input and output, both ways, until it ends."""
        body = msgspec.json.encode({"Detach": False, "Tty": is_tty})
        return await open_exec_connection(self._socket, f"/{API_VERSION}/exec/{exec_id}/start", body, is_tty=is_tty)

    async def resize_exec(self, exec_id: str, *, height: int, width: int) -> None:
        await self._plain("POST", f"/exec/{exec_id}/resize", params={"h": str(height), "w": str(width)})

    async def read_exec_state(self, exec_id: str) -> responses.ExecState:
        return await self._json("GET", f"/exec/{exec_id}/json", responses.ExecState)

    # -- how it is said

    async def _json(self, method: str, path: str, shape: type[T], **options: Any) -> T:  # The library's options.
        async with self._streamed(method, path, **options) as answer:
            return _decoded(await answer.aread(), shape)

    async def _plain(self, method: str, path: str, **options: Any) -> None:
        async with self._streamed(method, path, **options) as answer:
            await answer.aread()

    @contextlib.asynccontextmanager
    async def _streamed(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx2.Response]:
        try:
            async with self._http.stream(method, path, **options) as answer:
                if answer.status_code >= 400:
                    raise _refusal(answer.status_code, await answer.aread())
                yield answer
        except httpx2.TransportError as error:
            told = str(error) or type(error).__name__
            raise EngineUnreachable(f"the container engine at {self._socket} does not answer: {told}") from error


def _refusal(status: int, body: bytes) -> EngineRejected:
    try:
        said = msgspec.json.decode(body, type=responses.ErrorResponse)
        told = said.message or said.cause
    except msgspec.MsgspecError:
        told = body[:500].decode(errors="replace").strip()
    kind = EngineNotFound if status == 404 else EngineRejected
    return kind(status, told or f"the container engine answers {status}")


def _decoded(data: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=shape)
    except msgspec.MsgspecError as error:
        raise EngineUnreachable(f"the container engine answers what cannot be read: {error}") from error


async def _lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """Lines of JSON, one object each."""
    rest = b""
    async for piece in answer.aiter_raw():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
    if rest.strip():
        yield rest
