"""Reading and decompression of request bodies, with limits on size and time."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from wharf.cluster.api.asgi import Message, Receive
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request

MAX_LENGTH_DIGITS: Final = 18
PART_TIMEOUT_S: Final = 30.0
"""Timeout for the next part of a body; protects against stalled callers."""
MIN_BYTES_PER_S: Final = 1_000
"""Minimum average rate of a body after the first `PART_TIMEOUT_S` seconds. Without it, a caller that sends single bytes
could hold a request open for days."""

MIN_STREAMED_BYTES_PER_S: Final = 20_000
"""The same for a body that is read in parts, such as a snapshot. It is large, and no other one is received meanwhile."""

DECOMPRESSION_STEP_BYTES: Final = 256 * 1024
"""Bytes that are decompressed at a time, about a millisecond. Other tasks run in between."""
GZIP_WINDOW_BITS: Final = 16 + zlib.MAX_WBITS


class ClientDisconnected(Exception):
    """The caller disconnected before its body was complete."""


class BodyTimeout(Exception):
    """The caller sent its body too slowly, or not at all."""


class HeldBody(Protocol):
    """Counts the memory of one body until its request has its reply."""

    def grow(self, size: int) -> None:
        """Count more bytes. Raises `Refusal` if all bodies together take too much memory."""


class BodyLimit(NamedTuple):
    """The largest body that an endpoint accepts."""

    max_bytes: int
    origin: str
    """What sets the limit, for the caller, such as a setting of the server."""


async def read_body(
    receive: Receive,
    headers: Mapping[bytes, bytes],
    limit: BodyLimit,
    held: HeldBody,
    require_access: Callable[[], Awaitable[None]],
) -> bytes:
    """Return the whole request body.

    Raises `Refusal` if it is too large, `ClientDisconnected` if it is incomplete, `BodyTimeout` if it arrives too
    slowly. A request without a body is complete even if its caller has disconnected: a heartbeat that waited for too
    long on a slow server counts all the same. `require_access` is awaited before more than the first part is read, and
    raises `Refusal` if the caller may not use the endpoint.
    """
    content_length = headers.get(b"content-length", b"")
    if content_length == b"0":
        return b""
    if content_length.isdigit() and (len(content_length) > MAX_LENGTH_DIGITS or int(content_length) > limit.max_bytes):
        raise build_too_large_refusal(limit)
    first = await _receive_part(receive)
    if first["type"] == "http.disconnect":
        raise ClientDisconnected
    part: bytes = first.get("body", b"")
    if len(part) > limit.max_bytes:
        raise build_too_large_refusal(limit)
    if not first.get("more_body"):
        return part
    await require_access()
    return await _read_remaining_parts(receive, part, limit, held)


async def _read_remaining_parts(receive: Receive, first: bytes, limit: BodyLimit, held: HeldBody) -> bytes:
    """Return the whole body, of which `first` is the first part. Raises `ClientDisconnected`, `BodyTimeout` or
    `Refusal`.

    All parts go into one buffer: a list of many small parts would take more memory than the data.
    """
    body = bytearray(first)
    held.grow(len(first))
    try:
        async with asyncio.timeout(PART_TIMEOUT_S + len(first) / MIN_BYTES_PER_S) as time_limit:
            while True:
                message = await _receive_part(receive)
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                part = message.get("body", b"")
                held.grow(len(part))
                body += part
                if len(body) > limit.max_bytes:
                    raise build_too_large_refusal(limit)
                if not message.get("more_body"):
                    return bytes(body)
                if not part:
                    # Otherwise parts that are always ready would hold the event loop, and no time limit could end the loop.
                    await asyncio.sleep(0)
                time_limit.reschedule((time_limit.when() or 0) + len(part) / MIN_BYTES_PER_S)
    except TimeoutError:
        raise BodyTimeout from None


async def _receive_part(receive: Receive) -> Message:
    """Return the next ASGI message of the client. Raises `BodyTimeout` after `PART_TIMEOUT_S`."""
    try:
        async with asyncio.timeout(PART_TIMEOUT_S):
            return await receive()
    except TimeoutError:
        raise BodyTimeout from None


async def iterate_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the parts of a body of any size as they arrive. Raises `ClientDisconnected` or `BodyTimeout`.

    The time limit counts only the time in which the caller is waited for, not that in which its parts are stored.
    """
    loop = asyncio.get_running_loop()
    received, waited_s = 0, 0.0
    more = True
    while more:
        began_s = loop.time()
        message = await _receive_part(receive)
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part: bytes = message.get("body", b"")
        received += len(part)
        waited_s += loop.time() - began_s
        if waited_s > PART_TIMEOUT_S + received / MIN_STREAMED_BYTES_PER_S:
            raise BodyTimeout
        if part:
            yield part
        else:
            await asyncio.sleep(0)  # The next part may be ready at once.
        more = bool(message.get("more_body"))


def get_content_encoding(headers: Mapping[bytes, bytes]) -> str:
    """Return the encoding of the request body: "gzip" or "". Raises `Refusal` with its name for any other encoding."""
    encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    if encoding in ("", "identity"):
        return ""
    if encoding in ("gzip", "x-gzip"):
        return "gzip"
    raise Refusal(
        RefusalCode.UNSUPPORTED,
        f'the content encoding "{cut_echo(encoding)}" of the request body is not supported: use gzip or none',
    )


async def decompress_body(body: bytes, limit: BodyLimit, held: HeldBody) -> bytes:
    """Return the content of a gzip body. Raises `Refusal` if it is not gzip, or larger than the limit of a body.

    At most `limit.max_bytes` are decompressed, and other tasks run between two steps.
    """
    decompressor = zlib.decompressobj(GZIP_WINDOW_BITS)
    content, rest = bytearray(), body
    try:
        while not decompressor.eof:
            part = decompressor.decompress(rest, DECOMPRESSION_STEP_BYTES)
            held.grow(len(part))
            content += part
            if len(content) > limit.max_bytes:
                raise build_too_large_refusal(limit)
            rest = decompressor.unconsumed_tail
            if not part and not rest:
                break
            await asyncio.sleep(0)
    except zlib.error:
        raise invalid_request("the request body is not gzip, which its Content-Encoding promises") from None
    if not decompressor.eof or decompressor.unused_data:
        raise invalid_request("the gzip request body ends too early or has data after its end")
    return bytes(content)


def build_too_large_refusal(limit: BodyLimit) -> Refusal:
    """Return the refusal of a body that is too large. It names the limit and what sets it."""
    return Refusal(
        RefusalCode.TOO_LARGE, f"the request's body is larger than {limit.max_bytes} bytes, the limit of {limit.origin}"
    )


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects. Further parts of its body are dropped.

    A message after the end of the body counts as a disconnect. By the ASGI specification no such message exists, and an
    HTTP server or middleware whose `receive` always returns one at once would otherwise hold the event loop for ever.
    """
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        if not message.get("more_body"):
            break
        await asyncio.sleep(0)  # The next part may be ready at once.
    await receive()
