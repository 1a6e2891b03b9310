"""Calls of the HTTP API by its pages, in the same process: requests reach the API as from the network, without a socket."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import unquote, urlencode

import msgspec

from wharf.contract.client.errors import is_by_limiter
from wharf.contract.client.transport import ClientReply, ClientRequest, StreamedReply, Unreachable
from wharf.world import World
from wharf.world.tasks import cancel_tasks

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

MAX_WAITING_CHUNKS: Final = 16
"""How many chunks of a streamed reply wait to be read. Protects the memory of the process if the reader is slow."""
FIRST_ERROR_STATUS: Final = 400
BROKEN_TEXT: Final = "the API ended its reply early"


class PageCaller(msgspec.Struct, frozen=True):
    """The person on whose behalf a page calls the API."""

    headers: tuple[tuple[bytes, bytes], ...] = ()
    """The headers with the caller's credentials."""
    address: tuple[str, int] | None = None
    """The address and the port of the caller's browser, for audit records and limits."""
    scheme: str = "http"


class LimiterRefusals:
    """Whether the rate limiter refused requests of a page, because of a limit or a ban of its person."""

    def __init__(self) -> None:
        self.has_any = False

    def observe(self, status: int, headers: Mapping[str, str]) -> None:
        """Take a reply of the API."""
        self.has_any = self.has_any or (status >= FIRST_ERROR_STATUS and is_by_limiter(headers))


class ApiTransport:
    """A `Transport` of the client that calls an ASGI application instead of a server."""

    def __init__(self, world: World, api: App, caller: PageCaller, refusals: LimiterRefusals | None = None) -> None:
        self._world = world
        self._api = api
        self._caller = caller
        self._refusals = refusals or LimiterRefusals()

    async def send(self, request: ClientRequest) -> ClientReply:
        """Call the API and return its complete reply. Raises `Unreachable` if it takes too long or breaks."""
        collected = _CollectedReply()
        try:
            async with asyncio.timeout(request.timeout_s):
                await self._api(self._build_scope(request), _build_receive(request.body), collected.receive_message)
        except TimeoutError:
            raise Unreachable(f"the API did not answer within {request.timeout_s:g} s", is_sent=True) from None
        if not collected.is_complete:
            raise Unreachable(BROKEN_TEXT, is_sent=True)
        self._refusals.observe(collected.status, collected.headers)
        return ClientReply(collected.status, collected.headers, b"".join(collected.chunks))

    async def open(self, request: ClientRequest) -> StreamedReply:
        """Call the API and return its reply as soon as its head is there. Raises `Unreachable`."""
        reply = _StreamedReply()
        answering = self._api(self._build_scope(request), _build_receive(request.body), reply.receive_message)
        reply.follow(self._world.start_task(reply.answer(answering), name="page stream"))
        try:
            async with asyncio.timeout(request.timeout_s):
                await reply.wait_for_head()
        except BaseException as error:
            await reply.close()
            if isinstance(error, TimeoutError):
                raise Unreachable(f"the API did not answer within {request.timeout_s:g} s", is_sent=True) from None
            raise
        return reply

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _build_scope(self, request: ClientRequest) -> Message:
        """Return the request as an ASGI scope."""
        sent = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
        if request.body:
            sent.append((b"content-length", b"%d" % len(request.body)))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": self._caller.scheme,
            "path": unquote(request.path),
            "raw_path": request.path.encode("ascii"),
            "query_string": urlencode(request.query).encode("ascii"),
            "root_path": "",
            "headers": [*sent, *self._caller.headers],
            "client": self._caller.address,
            "server": None,
        }


def _build_receive(body: bytes) -> Callable[[], Awaitable[Message]]:
    """Return the ASGI function from which the API receives the body, and then waits: the caller does not disconnect."""
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await asyncio.get_running_loop().create_future()  # Ends when the task of the request is cancelled.
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _decode_headers(message: Message) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}


class _CollectedReply:
    """A reply that is collected until it is complete."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.chunks: list[bytes] = []
        self.is_complete = False

    async def receive_message(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], _decode_headers(message)
        else:
            self.chunks.append(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)


class _StreamedReply:
    """A reply that is read in chunks while the API sends it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._chunks: deque[bytes] = deque()
        self._is_complete = False
        self._has_ended = False  # Whether the API sends nothing more, complete or not.
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def answer(self, answering: Awaitable[None]) -> None:
        """Let the API answer, and notice when it has ended."""
        try:
            await answering
        finally:
            self._has_ended = True
            async with self._changed:
                self._changed.notify_all()

    def follow(self, task: asyncio.Task[None]) -> None:
        """Set the task that runs `answer`."""
        self._task = task

    async def wait_for_head(self) -> None:
        """Wait for status and headers. Raises `Unreachable` if the API ends without them."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.status or self._has_ended)
        if not self.status:
            raise Unreachable(BROKEN_TEXT, is_sent=True)

    async def receive_message(self, message: Message) -> None:
        """Take a message of the API. Waits while many chunks are unread."""
        async with self._changed:
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], _decode_headers(message)
            else:
                await self._changed.wait_for(lambda: len(self._chunks) < MAX_WAITING_CHUNKS)
                if message.get("body"):
                    self._chunks.append(message["body"])
                self._is_complete = not message.get("more_body", False)
            self._changed.notify_all()

    async def read_chunk(self) -> bytes:
        """Return the next chunk; an empty one is the end. Raises `Unreachable` if the reply breaks off."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._chunks or self._is_complete or self._has_ended)
            if self._chunks:
                self._changed.notify_all()
                return self._chunks.popleft()
        if self._is_complete:
            return b""
        raise Unreachable(BROKEN_TEXT, is_sent=True)

    async def close(self) -> None:
        """End the request. The API then stops to send."""
        if self._task is not None:
            await cancel_tasks(self._task)
