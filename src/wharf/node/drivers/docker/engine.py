"""HTTP requests to the container engine.

Every call returns the decoded response or raises one of the errors of `errors`.
"""

import base64
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, Self, TypeVar

import httpx2
import msgspec

from wharf.node.drivers.docker import responses
from wharf.node.drivers.docker.errors import EngineNotFound, EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.exec_connection import ExecConnection, open_exec_connection
from wharf.node.drivers.docker.output_stream import ContainerOutput, OutputFrameDecoder
from wharf.node.threads import ThreadGroup, run_in_thread
from wharf.world.http_clients import build_async_client
from wharf.world.lines import LineSplitter, LineTooLong

T = TypeVar("T")

API_VERSION: Final = "v1.40"
"""The oldest supported version of the API; newer engines accept it."""
VERSION_HEADERS: Final = ("server", "api-version", "libpod-api-version")
"""Headers of the response to a ping that change when the engine is replaced by another version."""
MAX_LINE_BYTES: Final = 1 << 20
"""Limit of one event or progress message of the engine, which may pass on text of a registry; protects memory."""
RESPONSE_TIMEOUT_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 5.0


class RegistryAuth(NamedTuple):
    """The credentials for a registry."""

    username: str = ""
    password: str = ""
    email: str = ""
    server_address: str = ""

    def encode_header(self) -> str:
        """Return the credentials as the value of the header `x-registry-auth`: JSON in URL-safe base64."""
        names = {"username": self.username, "password": self.password, "email": self.email}
        data = msgspec.json.encode({**names, "serveraddress": self.server_address})
        return base64.urlsafe_b64encode(data).decode()


class ContainerEngine:
    """The client of one container engine.

    Close it with `close`, or use it as an async context manager. All requests raise EngineUnreachable, EngineRejected
    or EngineNotFound.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._http = build_async_client(
            socket_path=str(socket),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8),
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

    async def ping(self) -> tuple[str, ...]:
        """Return what identifies the version of the engine in its response headers. Costs the engine next to nothing.

        Raises EngineUnreachable and EngineRejected.
        """
        async with self._open_stream("GET", "/_ping") as response:
            await response.aread()
            return tuple(response.headers.get(name, "") for name in VERSION_HEADERS)

    async def read_version(self) -> responses.EngineVersion:
        return await self._request_json("GET", "/version", responses.EngineVersion)

    async def read_info(self) -> responses.EngineInfo:
        return await self._request_json("GET", "/info", responses.EngineInfo)

    # -- images

    async def find_image(self, name: str) -> responses.ImageInfo | None:
        """Return the image; None if the engine does not have it."""
        try:
            return await self._request_json("GET", f"/images/{name}/json", responses.ImageInfo)
        except EngineNotFound:
            return None

    async def pull_image(
        self, name: str, *, auth: RegistryAuth | None, on_progress: Callable[[responses.PullProgressLine], None]
    ) -> None:
        """Pull the image `name`, which has a tag or a digest, from its registry.

        `on_progress` is called with each line of progress. There is no timeout: the caller limits the time without
        progress. Raises EngineRejected if the pull fails, and EngineUnreachable.
        """
        headers = {"x-registry-auth": auth.encode_header()} if auth else {}
        options = {
            "params": {"fromImage": name},
            "headers": headers,
            "timeout": httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
        }
        async with self._open_stream("POST", "/images/create", **options) as response:
            async for line in _split_lines(response):
                progress = _decode(line, responses.PullProgressLine)
                if progress.error:
                    raise EngineRejected(500, progress.error)
                on_progress(progress)

    async def load_image(self, archive: BinaryIO) -> None:
        """Load an image from a tar archive. Raises EngineRejected and EngineUnreachable."""

        async def read_chunks() -> AsyncIterator[bytes]:
            """Yield the bytes of the archive."""
            while chunk := await run_in_thread(ThreadGroup.IMAGES, archive.read, 1 << 20):
                yield chunk

        headers = {"content-type": "application/x-tar"}
        async with self._open_stream("POST", "/images/load", content=read_chunks(), headers=headers) as response:
            async for line in _split_lines(response):
                progress = _decode(line, responses.PullProgressLine)
                if progress.error:
                    raise EngineRejected(500, progress.error)

    async def remove_image(self, name: str) -> None:
        with contextlib.suppress(EngineNotFound):
            await self._request("DELETE", f"/images/{name}")

    # -- containers

    async def create_container(self, name: str, body: Mapping[str, Any]) -> responses.CreatedObject:
        """Create a container with this name and return its id. `body` is the JSON of the engine's API."""
        return await self._request_json(
            "POST", "/containers/create", responses.CreatedObject, params={"name": name}, json=body
        )

    async def start_container(self, container: str) -> None:
        """Start a container; no effect if it already runs."""
        await self._request("POST", f"/containers/{container}/start")

    async def signal_container(self, container: str, signal: str) -> None:
        """Send a signal. Raises EngineRejected with status 409 if the container does not run."""
        await self._request("POST", f"/containers/{container}/kill", params={"signal": signal})

    async def remove_container(self, container: str) -> None:
        """Remove the container with its volumes, even while it runs. No effect if it does not exist."""
        with contextlib.suppress(EngineNotFound):
            await self._request("DELETE", f"/containers/{container}", params={"force": "true", "v": "true"})

    async def find_container(self, container: str) -> responses.ContainerInfo | None:
        """Return the container's details; None if it does not exist."""
        try:
            return await self._request_json("GET", f"/containers/{container}/json", responses.ContainerInfo)
        except EngineNotFound:
            return None

    async def list_containers(self, label: str) -> list[responses.ContainerListItem]:
        """Return all containers with this label, running or not."""
        filters = msgspec.json.encode({"label": [label]}).decode()
        return await self._request_json(
            "GET", "/containers/json", list[responses.ContainerListItem], params={"all": "true", "filters": filters}
        )

    @contextlib.asynccontextmanager
    async def open_events(self) -> AsyncIterator[AsyncIterator[responses.EngineEvent]]:
        """Open the stream of events of containers, and yield it once the engine has accepted the request.

        Podman answers a request to wait for one container by polling it as fast as it can, so this is not used.
        """
        filters = msgspec.json.encode({"type": ["container"]}).decode()
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S)
        async with self._open_stream("GET", "/events", params={"filters": filters}, timeout=timeout) as response:
            yield (_decode(line, responses.EngineEvent) async for line in _split_lines(response))

    async def stream_logs(
        self, container: str, *, is_tty: bool, follow: bool, since: str = "", timestamps: bool = False
    ) -> AsyncGenerator[Sequence[ContainerOutput], None]:
        """Yield the container's output as it arrives; with `follow` until it ends, otherwise what exists now.

        `since` is Unix time as `seconds.nanoseconds`; empty: from the start. With `timestamps`, each entry begins with
        its time.
        """
        params = {"stdout": "true", "stderr": "true", "follow": str(follow).lower()}
        params |= {"timestamps": str(timestamps).lower(), **({"since": since} if since else {})}
        timeout = httpx2.Timeout(None if follow else RESPONSE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        frames = OutputFrameDecoder(is_tty=is_tty)
        async with self._open_stream(
            "GET", f"/containers/{container}/logs", params=params, timeout=timeout
        ) as response:
            async for piece in response.aiter_raw():
                yield list(frames.feed(piece))

    async def read_stats(self, container: str) -> responses.ContainerStats:
        """Return the container's resource usage, measured once."""
        params = {"stream": "false", "one-shot": "true"}
        return await self._request_json(
            "GET", f"/containers/{container}/stats", responses.ContainerStats, params=params
        )

    # -- exec

    async def create_exec(self, container: str, command: list[str], *, is_tty: bool, user: str = "") -> str:
        """Prepare a command in the container and return its id; `start_exec` starts it."""
        body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": is_tty, "Cmd": command}
        created = await self._request_json(
            "POST",
            f"/containers/{container}/exec",
            responses.CreatedObject,
            json={**body, **({"User": user} if user else {})},
        )
        return created.id

    async def start_exec(self, exec_id: str, *, is_tty: bool) -> ExecConnection:
        """Start a prepared command and return the connection to its input and output."""
        body = msgspec.json.encode({"Detach": False, "Tty": is_tty})
        return await open_exec_connection(self._socket, f"/{API_VERSION}/exec/{exec_id}/start", body, is_tty=is_tty)

    async def resize_exec(self, exec_id: str, *, height: int, width: int) -> None:
        await self._request("POST", f"/exec/{exec_id}/resize", params={"h": str(height), "w": str(width)})

    async def read_exec_state(self, exec_id: str) -> responses.ExecState:
        return await self._request_json("GET", f"/exec/{exec_id}/json", responses.ExecState)

    # -- HTTP

    async def _request_json(self, method: str, path: str, response_type: type[T], **options: Any) -> T:
        """Send a request and return the response, decoded as `response_type`.

        `options` are passed to httpx2. Raises EngineUnreachable and EngineRejected.
        """
        async with self._open_stream(method, path, **options) as response:
            return _decode(await response.aread(), response_type)

    async def _request(self, method: str, path: str, **options: Any) -> None:
        """Send a request and ignore the body of the response. Raises EngineUnreachable and EngineRejected."""
        async with self._open_stream(method, path, **options) as response:
            await response.aread()

    @contextlib.asynccontextmanager
    async def _open_stream(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield the response while it is open.

        Raises EngineRejected for an error status, and EngineUnreachable if the engine does not answer.
        """
        try:
            async with self._http.stream(method, path, **options) as response:
                if response.status_code >= 400:
                    raise _build_rejection(response.status_code, await response.aread())
                yield response
        except httpx2.TransportError as error:
            message = str(error) or type(error).__name__
            raise EngineUnreachable(f"the container engine at {self._socket} does not answer: {message}") from error


def _build_rejection(status: int, body: bytes) -> EngineRejected:
    """Return the error for a response with an error status: EngineNotFound for 404, otherwise EngineRejected."""
    try:
        error = msgspec.json.decode(body, type=responses.ErrorResponse)
        message = error.message or error.cause
    except msgspec.MsgspecError:
        message = body[:500].decode(errors="replace").strip()
    kind = EngineNotFound if status == 404 else EngineRejected
    return kind(status, message or f"the container engine returned HTTP status {status}")


def _decode(data: bytes, response_type: type[T]) -> T:
    """Return the JSON body, decoded as `response_type`. Raises EngineUnreachable if it is invalid."""
    try:
        return msgspec.json.decode(data, type=response_type)
    except msgspec.MsgspecError as error:
        raise EngineUnreachable(f"the container engine returned an invalid response: {error}") from error


async def _split_lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the non-empty lines of a streamed response, without their line feeds."""
    splitter = LineSplitter(MAX_LINE_BYTES)
    try:
        async for piece in response.aiter_raw():
            for line in splitter.feed(piece):
                if line.strip():
                    yield line
    except LineTooLong as error:
        raise EngineUnreachable(f"the container engine returned an invalid response: {error}") from error
    if rest := splitter.take_rest().strip():
        yield rest
