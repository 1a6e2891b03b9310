"""Sending of replies: compression, CORS headers, streams, and Nomad's header names."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from wharf.cluster.api.asgi import HeaderList, Receive, Send
from wharf.cluster.api.connection import HttpConnection
from wharf.cluster.api.replies.cors import build_cors_headers
from wharf.cluster.api.replies.encoding import (
    BODY_CHUNK_BYTES,
    EMPTY_REPLY_BODY,
    ReplyBody,
    StreamCompressor,
    negotiate_encoding,
)
from wharf.cluster.api.requests.body import wait_for_disconnect
from wharf.cluster.api.results import StreamedBody
from wharf.cluster.server.loop_slots import LoopSlots
from wharf.contract.model.message_texts import format_message
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.errors import CODE_HEADER, DETAIL_HEADER, REASON_HEADER, STATUS_BY_CODE, encode_detail
from wharf.world import World
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

JSON_HEADER: Final = (b"content-type", b"application/json")
TEXT_HEADER: Final = (b"content-type", b"text/plain; charset=utf-8")
VARY_HEADER: Final = (b"vary", b"Accept-Encoding")

HEADER_PREFIX: Final = b"x-cluster-"
NOMAD_HEADER_PREFIX: Final = b"x-nomad-"
NO_CONTENT_STATUS: Final = 204
DUPLICATED_REPLY_HEADERS: Final = frozenset(
    HEADER_PREFIX + name for name in (b"index", b"knownleader", b"lastcontact", b"nexttoken")
)
DEFAULT_RETRY_AFTER_S: Final = 1
"""The `Retry-After` of a reply with status 503 if no better one is known: a process restarts within one or two seconds."""


class HttpReply(msgspec.Struct, frozen=True):
    """A reply before it is compressed and the headers that all replies have are added."""

    status: int
    headers: HeaderList
    body: ReplyBody | StreamedBody = EMPTY_REPLY_BODY


def build_text_reply(status: int, text: str, *headers: tuple[bytes, bytes]) -> HttpReply:
    return HttpReply(status, [TEXT_HEADER, *headers], ReplyBody((format_message(text).encode(),)))


def build_extra_headers(extra_headers: Mapping[str, str]) -> HeaderList:
    """Return the headers that all replies have: `Vary`, and those of the configuration."""
    return [VARY_HEADER, *((name.lower().encode(), value.encode()) for name, value in extra_headers.items())]


def build_refusal_headers(refusal: Refusal) -> HeaderList:
    """Return the headers of a refusal: content type, error code, reason if it has one, and seconds until a retry."""
    headers: HeaderList = [TEXT_HEADER, (CODE_HEADER.encode(), refusal.code.value.encode())]
    if refusal.reason:
        headers.append((REASON_HEADER.encode(), refusal.reason.value.encode()))
    if refusal.detail:
        headers.append((DETAIL_HEADER.encode(), encode_detail(refusal.detail).encode()))
    retry_after_s = refusal.retry_after_s
    if refusal.code is RefusalCode.UNAVAILABLE:
        retry_after_s = retry_after_s or DEFAULT_RETRY_AFTER_S
    if retry_after_s:
        headers.append((b"retry-after", b"%d" % math.ceil(retry_after_s)))
    return headers


def build_refusal_reply(refusal: Refusal, *headers: tuple[bytes, bytes]) -> HttpReply:
    """Return the reply of a refusal: its status, headers and text. `headers`: further headers."""
    return HttpReply(
        STATUS_BY_CODE[refusal.code],
        [*build_refusal_headers(refusal), *headers],
        ReplyBody((format_message(refusal.text).encode(),)),
    )


class ReplyContext(msgspec.Struct, frozen=True):
    """The request that a reply belongs to, as far as sending the reply needs it, and where to send the reply."""

    headers: Mapping[bytes, bytes]
    is_cors_allowed: bool
    """Whether browsers may read the reply from pages of another origin (CORS)."""
    receive: Receive
    send: Send
    connection: HttpConnection | None = None


class ReplySender:
    """Sends replies with the headers that all replies have.

    With `is_nomad_compatible`, Nomad's header names are accepted too, and sent in addition to Wharf's.
    """

    def __init__(
        self, world: World, loop_slots: LoopSlots, *, extra_headers: Mapping[str, str], is_nomad_compatible: bool
    ) -> None:
        """The parts of large bodies are compressed and sent in `loop_slots`."""
        self._world = world
        self._loop_slots = loop_slots
        self.extra_headers = build_extra_headers(extra_headers)
        self.is_nomad_compatible = is_nomad_compatible
        self._closing = asyncio.Event()

    def parse_headers(self, raw_headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        """Return the headers by name; the last value wins, except for `Accept-Encoding`."""
        headers = dict(raw_headers)
        if len(headers) < len(raw_headers):
            accepted = [value for name, value in raw_headers if name == b"accept-encoding"]
            if len(accepted) > 1:
                headers[b"accept-encoding"] = b",".join(accepted)  # A list may be sent in several headers.
        return headers

    async def send(self, reply: HttpReply, context: "ReplyContext") -> None:
        """Send the reply, compressed if the client accepts that."""
        headers = context.headers
        reply_headers = [*reply.headers, *self.extra_headers]
        if self.is_nomad_compatible:
            reply_headers += [
                (NOMAD_HEADER_PREFIX + name[len(HEADER_PREFIX) :], value)
                for name, value in reply.headers
                if name in DUPLICATED_REPLY_HEADERS
            ]
        has_body = reply.status != NO_CONTENT_STATUS  # After its head, clients read any byte as the next reply.
        if context.is_cors_allowed and has_body:  # Preflight replies (204) already have their CORS headers.
            reply_headers += build_cors_headers(headers)
        encoding = b""
        if has_body and b"accept-encoding" in headers and b"upgrade" not in headers:
            encoding = negotiate_encoding(headers[b"accept-encoding"])
        if isinstance(reply.body, StreamedBody):
            encoding = encoding if reply.body.can_compress else b""
            await self._stream(reply.status, reply_headers, reply.body, encoding, context)
            return
        chunks = await reply.body.get_encoded_chunks(encoding, self._loop_slots)
        if encoding:
            reply_headers.append((b"content-encoding", encoding))
        is_short = len(chunks) == 1 and len(chunks[0]) <= BODY_CHUNK_BYTES
        connection = context.connection if has_body and is_short else None
        if connection is not None and connection.try_write_reply(reply.status, reply_headers, chunks[0]):
            return
        if has_body:
            reply_headers.append((b"content-length", str(sum(map(len, chunks))).encode()))
        await context.send({"type": "http.response.start", "status": reply.status, "headers": reply_headers})
        await _send_chunks(chunks, context.send, self._loop_slots)

    async def _stream(
        self, status: int, headers: HeaderList, body: StreamedBody, encoding: bytes, context: "ReplyContext"
    ) -> None:
        """Send the parts of a streamed body until it ends, the client disconnects or loses access, or this server stops.

        A body that raises `Refusal` is cut off.
        """
        send = context.send
        compressor = StreamCompressor(encoding) if encoding else None
        encoding_header = [(b"content-encoding", encoding)] if encoding else []
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", body.content_type.encode()), *body.headers, *encoding_header, *headers],
            }
        )
        sending = self._world.start_task(_send_parts(send, body, compressor, self._loop_slots), name="stream")
        disconnect = self._world.start_task(wait_for_disconnect(context.receive), name="caller")
        closing = self._world.start_task(self._closing.wait(), name="closing")
        tasks = [sending, disconnect, closing]
        if body.wait_until_access_lost is not None:
            tasks.append(self._world.start_task(_wait_for(body.wait_until_access_lost), name="access"))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_tasks(*tasks)
            if body.slot is not None:
                body.slot.release()
        if not sending.cancelled():
            try:
                sending.result()
            except Refusal as refusal:
                # The status is sent. Without its end the reply is cut off, so the caller notices that it is incomplete.
                # Callers can cause this as often as they like, so it is no warning.
                log.debug("streamed reply cut off why=%s", refusal.text)
        elif self._closing.is_set() and not body.is_cut_now:
            # Ends the reply properly instead of cutting it off.
            await send({"type": "http.response.body", "body": compressor.end() if compressor is not None else b""})

    def close(self) -> None:
        """End all streams because this server stops."""
        self._closing.set()


async def _wait_for(wait: Callable[[], Awaitable[object]]) -> None:
    """Wait as `wait` does."""
    await wait()


async def _send_chunks(chunks: Sequence[bytes], send: Send, loop_slots: LoopSlots) -> None:
    """Send the chunks of a body in pieces of limited size.

    Between the pieces the ASGI server can wait for a slow client, other requests continue, and the end of the
    connection is noticed.
    """
    pieces = list(_split_chunks(chunks))
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        await send({"type": "http.response.body", "body": piece, "more_body": number < last})
        if number < last:
            await loop_slots.wait()


def _split_chunks(chunks: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the chunks, large ones in pieces."""
    for chunk in chunks:
        if len(chunk) <= 2 * BODY_CHUNK_BYTES:
            yield chunk
        else:
            for start in range(0, len(chunk), BODY_CHUNK_BYTES):
                yield chunk[start : start + BODY_CHUNK_BYTES]


async def _send_parts(
    send: Send, body: StreamedBody, compressor: StreamCompressor | None, loop_slots: LoopSlots
) -> None:
    """Send the parts of a streamed body as they arrive, compressed if there is a compressor, then its end.

    Stops without the end if the client takes longer than `write_timeout_s` to read a part.
    """
    try:
        if compressor is not None:
            await send({"type": "http.response.body", "body": compressor.begin(), "more_body": True})
        async for part in body.parts:
            for piece in _split_chunks((part,)) if compressor is not None else (part,):
                encoded = compressor.compress(piece) if compressor is not None else piece
                try:
                    async with asyncio.timeout(body.write_timeout_s):
                        await send({"type": "http.response.body", "body": encoded, "more_body": True})
                except TimeoutError:
                    return  # The caller reads nothing. The reply stays incomplete, so the server closes the connection.
                # Parts may be ready without a wait; the end of the connection must be noticed.
                await loop_slots.wait()
    finally:
        if isinstance(body.parts, AsyncGenerator):
            await body.parts.aclose()  # Release its resources now, not at garbage collection.
    await send({"type": "http.response.body", "body": compressor.end() if compressor is not None else b""})
