"""Sending a reply: what is true of every one of them, whatever it holds. Encodings, pages from elsewhere, other names."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from wharf.api.answers import Streamed
from wharf.api.bodies import Receive, until_gone
from wharf.api.compression import negotiated
from wharf.api.connection import Connection
from wharf.api.cors import headers_for_pages
from wharf.api.encoding import CHUNK_BYTES, EMPTY, Body
from wharf.model.refusal import Refusal
from wharf.wire.errors import CODE_HEADER, STATUS_OF
from wharf.world import World

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
VARY: Final = (b"vary", b"Accept-Encoding")

OURS: Final = b"x-cluster-"
PEERS: Final = b"x-nomad-"
NO_CONTENT: Final = 204
TOLD_TWICE: Final = frozenset(OURS + name for name in (b"index", b"knownleader", b"lastcontact", b"nexttoken"))
READ_TWICE: Final = (b"token",)


class Reply(msgspec.Struct, frozen=True):
    status: int
    headers: Headers
    body: Body | Streamed = EMPTY


def text_reply(status: int, text: str, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(status, [TEXT, *headers], Body((text.encode(),)))


def headers_of(refusal: Refusal) -> Headers:
    """What stands before the sentence of a refusal, however it is sent."""
    return [TEXT, (CODE_HEADER.encode(), refusal.code.value.encode())]


def refusal_reply(refusal: Refusal, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(STATUS_OF[refusal.code], [*headers_of(refusal), *headers], Body((refusal.text.encode(),)))


class Exchange(msgspec.Struct, frozen=True):
    """What a reply must know of its request, and where it goes."""

    headers: Mapping[bytes, bytes]
    is_for_pages: bool
    """Whether pages from elsewhere may ask for it too."""
    receive: Receive
    send: Send
    connection: Connection | None = None


class Replies:
    """`more_headers` go out with every reply. `compat`: the peer's names of headers are given beside ours, and taken."""

    def __init__(self, world: World, *, more_headers: Mapping[str, str], compat: bool) -> None:
        self._world = world
        self._more = [VARY, *((name.lower().encode(), value.encode()) for name, value in more_headers.items())]
        self._compat = compat
        self._closing = asyncio.Event()

    def read_headers(self, given: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        """The last of each name counts, but of names that the peer has otherwise ours go before."""
        headers = dict(given)
        if self._compat:
            for name in READ_TWICE:
                if not headers.get(OURS + name, b"").strip() and PEERS + name in headers:
                    headers[OURS + name] = headers[PEERS + name]
        return headers

    async def send(self, reply: Reply, exchange: "Exchange") -> None:
        headers = exchange.headers
        told = [*reply.headers, *self._more]
        if self._compat:
            told += [(PEERS + name[len(OURS) :], value) for name, value in reply.headers if name in TOLD_TWICE]
        if exchange.is_for_pages and reply.status != NO_CONTENT:  # A preflight has said it all.
            told += headers_for_pages(headers)
        if isinstance(reply.body, Streamed):
            await self._stream(reply.status, told, reply.body, exchange.receive, exchange.send)
            return
        encoding = b""
        if b"accept-encoding" in headers and b"upgrade" not in headers:
            encoding = negotiated(headers[b"accept-encoding"])
        chunks = await reply.body.as_encoded(encoding)
        if encoding:
            told.append((b"content-encoding", encoding))
        connection = exchange.connection if len(chunks) == 1 and len(chunks[0]) <= CHUNK_BYTES else None
        if connection is not None and connection.write_whole(reply.status, told, chunks[0]):
            return
        told.append((b"content-length", str(sum(map(len, chunks))).encode()))
        await exchange.send({"type": "http.response.start", "status": reply.status, "headers": told})
        await _send_chunks(chunks, exchange.send)

    async def _stream(self, status: int, headers: Headers, body: Streamed, receive: Receive, send: Send) -> None:
        """Part by part, until the parts or the caller's patience end."""
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", body.content_type.encode()), *body.headers, *headers],
            }
        )
        sending = self._world.start(_send_parts(send, body), name="stream")
        leaving = self._world.start(until_gone(receive), name="caller")
        closing = self._world.start(self._closing.wait(), name="closing")
        try:
            await asyncio.wait([sending, leaving, closing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            closing.cancel()
            sending.cancel()
            await asyncio.wait([sending])
        if not sending.cancelled():
            sending.result()
        elif self._closing.is_set():
            await send({"type": "http.response.body", "body": b""})  # The caller sees an end, not a broken reply.

    def close(self) -> None:
        """This server stops: streams end."""
        self._closing.set()


async def _send_chunks(chunks: Sequence[bytes], send: Send) -> None:
    """Each when the one before is on its way: a caller that does not read holds up nobody else."""
    last = len(chunks) - 1
    for number, chunk in enumerate(chunks):
        if len(chunk) <= 2 * CHUNK_BYTES:
            await send({"type": "http.response.body", "body": chunk, "more_body": number < last})
            continue
        for start in range(0, len(chunk), CHUNK_BYTES):
            more = number < last or start + CHUNK_BYTES < len(chunk)
            await send({"type": "http.response.body", "body": chunk[start : start + CHUNK_BYTES], "more_body": more})


async def _send_parts(send: Send, body: Streamed) -> None:
    try:
        async for part in body.parts:
            try:
                async with asyncio.timeout(body.write_within_s):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except TimeoutError:
                return  # It reads nothing: without an end to the reply its connection is closed.
    finally:
        if isinstance(body.parts, AsyncGenerator):
            await body.parts.aclose()  # What it holds is let go now, not when the collector comes by.
    await send({"type": "http.response.body", "body": b""})
