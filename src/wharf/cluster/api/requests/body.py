"""Reading of request bodies, with limits on size and time."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from wharf.cluster.api.asgi import Message, Receive
from wharf.contract.model.refusal import Refusal, RefusalCode

MAX_LENGTH_DIGITS: Final = 18
PART_TIMEOUT_S: Final = 30.0
"""Timeout for the next part of a body; protects against stalled callers."""
MIN_BYTES_PER_S: Final = 1_000
"""Minimum average rate of a body after the first `PART_TIMEOUT_S` seconds. Without it, a caller that sends single bytes
could hold a request open for days."""


class ClientDisconnected(Exception):
    """The caller disconnected before its body was complete."""


class BodyTimeout(Exception):
    """The caller sent its body too slowly, or not at all."""


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_body_bytes: int) -> bytes:
    """Return the whole request body.

    Raises `Refusal` if it is too large, `ClientDisconnected` if it is incomplete, `BodyTimeout` if it arrives too
    slowly.
    """
    content_length = headers.get(b"content-length", b"")
    if content_length.isdigit() and (len(content_length) > MAX_LENGTH_DIGITS or int(content_length) > max_body_bytes):
        raise build_too_large_refusal(max_body_bytes)
    first = await _receive_part(receive)
    if first["type"] == "http.disconnect":
        raise ClientDisconnected
    part: bytes = first.get("body", b"")
    if len(part) > max_body_bytes:
        raise build_too_large_refusal(max_body_bytes)
    return part if not first.get("more_body") else await _read_remaining_parts(receive, part, max_body_bytes)


async def _read_remaining_parts(receive: Receive, first: bytes, max_body_bytes: int) -> bytes:
    """Return the whole body, of which `first` is the first part. Raises `ClientDisconnected`, `BodyTimeout` or
    `Refusal`.

    All parts go into one buffer: a list of many small parts would take more memory than the data.
    """
    body = bytearray(first)
    try:
        async with asyncio.timeout(PART_TIMEOUT_S + len(first) / MIN_BYTES_PER_S) as time_limit:
            while True:
                message = await _receive_part(receive)
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                part = message.get("body", b"")
                body += part
                if len(body) > max_body_bytes:
                    raise build_too_large_refusal(max_body_bytes)
                if not message.get("more_body"):
                    return bytes(body)
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
    """Yield the parts of a body of any size as they arrive. Raises `ClientDisconnected` or `BodyTimeout`."""
    more = True
    while more:
        message = await _receive_part(receive)
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        if part := message.get("body", b""):
            yield part
        more = bool(message.get("more_body"))


def build_too_large_refusal(limit_bytes: int) -> Refusal:
    return Refusal(RefusalCode.TOO_LARGE, f"the request's body is larger than {limit_bytes} bytes")


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects; other messages are ignored."""
    while (await receive())["type"] != "http.disconnect":
        pass
