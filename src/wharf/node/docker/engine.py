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

from wharf.node.docker import shapes
from wharf.node.docker.attached import Attached, open_attached
from wharf.node.docker.errors import EngineAway, EngineRefused, NotThere
from wharf.node.docker.frames import Chunk, Frames

T = TypeVar("T")

# Older engines than this are not spoken to; newer ones understand it.
API_VERSION: Final = "v1.40"
ANSWER_S: Final = 60.0
CONNECT_S: Final = 5.0


class Auth(NamedTuple):
    """Who one is at a registry."""

    username: str = ""
    password: str = ""
    email: str = ""
    server_address: str = ""

    def header(self) -> str:
        names = {"username": self.username, "password": self.password, "email": self.email}
        data = msgspec.json.encode({**names, "serveraddress": self.server_address})
        return base64.urlsafe_b64encode(data).decode()


class Exit(NamedTuple):
    code: int
    error: str  # Of the engine, not of the task.


class Engine:
    """One engine, by the path of its socket. `close` it, or use it as an async context."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                uds=str(socket), limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8)
            ),
            base_url=f"http://engine/{API_VERSION}",
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
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

    async def version(self) -> shapes.Version:
        return await self._json("GET", "/version", shapes.Version)

    async def info(self) -> shapes.Info:
        return await self._json("GET", "/info", shapes.Info)

    # -- images

    async def image(self, name: str) -> shapes.Image | None:
        try:
            return await self._json("GET", f"/images/{name}/json", shapes.Image)
        except NotThere:
            return None

    async def pull(self, name: str, *, auth: Auth | None, tell: Callable[[shapes.PullLine], None]) -> None:
        """`tell` hears each line of progress. The name has a tag or a digest. Silence is the caller's to bound."""
        headers = {"x-registry-auth": auth.header()} if auth else {}
        options = {
            "params": {"fromImage": name},
            "headers": headers,
            "timeout": httpx2.Timeout(None, connect=CONNECT_S),
        }
        async with self._streamed("POST", "/images/create", **options) as answer:
            async for line in _lines(answer):
                said = _decoded(line, shapes.PullLine)
                if said.error:
                    raise EngineRefused(500, said.error)
                tell(said)

    async def load(self, archive: Path) -> None:
        """An image from an archive of the task's folder."""

        async def pieces() -> AsyncIterator[bytes]:
            with archive.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, 1 << 20):
                    yield piece

        headers = {"content-type": "application/x-tar"}
        async with self._streamed("POST", "/images/load", content=pieces(), headers=headers) as answer:
            async for line in _lines(answer):
                said = _decoded(line, shapes.PullLine)
                if said.error:
                    raise EngineRefused(500, said.error)

    async def remove_image(self, name: str) -> None:
        with contextlib.suppress(NotThere):
            await self._plain("DELETE", f"/images/{name}")

    # -- containers

    async def create(self, name: str, body: Mapping[str, Any]) -> shapes.Created:  # The body is JSON, made in `config`.
        return await self._json("POST", "/containers/create", shapes.Created, params={"name": name}, json=body)

    async def start(self, container: str) -> None:
        """One that runs already is fine."""
        await self._plain("POST", f"/containers/{container}/start")

    async def kill(self, container: str, signal: str) -> None:
        """Raises EngineRefused with 409 where it does not run."""
        await self._plain("POST", f"/containers/{container}/kill", params={"signal": signal})

    async def remove(self, container: str) -> None:
        """With its volumes, running or not. One that is gone is fine."""
        with contextlib.suppress(NotThere):
            await self._plain("DELETE", f"/containers/{container}", params={"force": "true", "v": "true"})

    async def container(self, container: str) -> shapes.Container | None:
        try:
            return await self._json("GET", f"/containers/{container}/json", shapes.Container)
        except NotThere:
            return None

    async def containers(self, label: str) -> list[shapes.Listed]:
        """All that carry the label, running or not."""
        filters = msgspec.json.encode({"label": [label]}).decode()
        return await self._json(
            "GET", "/containers/json", list[shapes.Listed], params={"all": "true", "filters": filters}
        )

    async def wait(self, container: str) -> Exit:
        """Until it does not run."""
        timeout = httpx2.Timeout(None, connect=CONNECT_S)
        waited = await self._json("POST", f"/containers/{container}/wait", shapes.Waited, timeout=timeout)
        return Exit(waited.status_code, waited.error.message if waited.error else "")

    async def logs(
        self, container: str, *, is_tty: bool, follow: bool, since: str = "", timestamps: bool = False
    ) -> AsyncGenerator[Chunk, None]:
        """What it wrote, by stream, as it comes. `since` is a moment as seconds and nanoseconds of the Unix clock."""
        params = {"stdout": "true", "stderr": "true", "follow": str(follow).lower()}
        params |= {"timestamps": str(timestamps).lower(), **({"since": since} if since else {})}
        timeout = httpx2.Timeout(None if follow else ANSWER_S, connect=CONNECT_S)
        frames = Frames(is_tty=is_tty)
        async with self._streamed("GET", f"/containers/{container}/logs", params=params, timeout=timeout) as answer:
            async for piece in answer.aiter_raw():
                for chunk in frames.feed(piece):
                    yield chunk

    async def stats(self, container: str) -> shapes.Stats:
        params = {"stream": "false", "one-shot": "true"}
        return await self._json("GET", f"/containers/{container}/stats", shapes.Stats, params=params)

    # -- exec

    async def make_exec(self, container: str, command: list[str], *, is_tty: bool, user: str = "") -> str:
        body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": is_tty, "Cmd": command}
        made = await self._json(
            "POST", f"/containers/{container}/exec", shapes.Created, json={**body, **({"User": user} if user else {})}
        )
        return made.id

    async def start_exec(self, exec_id: str, *, is_tty: bool) -> Attached:
        """Its input and output, both ways, until it ends."""
        body = msgspec.json.encode({"Detach": False, "Tty": is_tty})
        return await open_attached(self._socket, f"/{API_VERSION}/exec/{exec_id}/start", body, is_tty=is_tty)

    async def resize_exec(self, exec_id: str, *, height: int, width: int) -> None:
        await self._plain("POST", f"/exec/{exec_id}/resize", params={"h": str(height), "w": str(width)})

    async def exec_state(self, exec_id: str) -> shapes.Exec:
        return await self._json("GET", f"/exec/{exec_id}/json", shapes.Exec)

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
            raise EngineAway(f"the container engine at {self._socket} does not answer: {told}") from error


def _refusal(status: int, body: bytes) -> EngineRefused:
    try:
        said = msgspec.json.decode(body, type=shapes.Refused)
        told = said.message or said.cause
    except msgspec.MsgspecError:
        told = body[:500].decode(errors="replace").strip()
    kind = NotThere if status == 404 else EngineRefused
    return kind(status, told or f"the container engine answers {status}")


def _decoded(data: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=shape)
    except msgspec.MsgspecError as error:
        raise EngineAway(f"the container engine answers what cannot be read: {error}") from error


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
