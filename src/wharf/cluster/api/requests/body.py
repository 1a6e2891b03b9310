"""Reading the body of a request, within its bound."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from wharf.contract.model.refusal import Refusal, RefusalCode

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_LENGTH_DIGITS: Final = 18


PART_TIMEOUT_S: Final = 30.0
"""How long the next part of a body may take."""
MIN_BYTES_PER_S: Final = 1_000
"""How fast a body must come on the whole, after a first `PART_WITHIN_S`: else a byte now and then would hold it open for
days."""


class ClientDisconnected(Exception):
    """The caller went away before its body was here."""


class BodyTimeout(Exception):
    """The caller sends its body too slowly, or not at all."""


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_body_bytes: int) -> bytes:
    told = headers.get(b"content-length", b"")
    if told.isdigit() and (len(told) > MAX_LENGTH_DIGITS or int(told) > max_body_bytes):
        raise build_too_large_refusal(max_body_bytes)
    first = await _next(receive)
    if first["type"] == "http.disconnect":
        raise ClientDisconnected
    part: bytes = first.get("body", b"")
    if len(part) > max_body_bytes:
        raise build_too_large_refusal(max_body_bytes)
    return part if not first.get("more_body") else await _rest(receive, part, max_body_bytes)


async def _rest(receive: Receive, first: bytes, body_max_bytes: int) -> bytes:
    """The whole body in one piece as it grows: of many small parts each alone would take more room than what it holds."""
    body = bytearray(first)
    try:
        async with asyncio.timeout(PART_TIMEOUT_S + len(first) / MIN_BYTES_PER_S) as bound:
            while True:
                message = await _next(receive)
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                part = message.get("body", b"")
                body += part
                if len(body) > body_max_bytes:
                    raise build_too_large_refusal(body_max_bytes)
                if not message.get("more_body"):
                    return bytes(body)
                bound.reschedule((bound.when() or 0) + len(part) / MIN_BYTES_PER_S)
    except TimeoutError:
        raise BodyTimeout from None


async def _next(receive: Receive) -> MutableMapping[str, Any]:
    try:
        async with asyncio.timeout(PART_TIMEOUT_S):
            return await receive()
    except TimeoutError:
        raise BodyTimeout from None


async def iterate_body(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it comes, for those who may take one of any size. Raises `Gone` where it breaks off, and
    `TooSlow` where nothing comes."""
    more = True
    while more:
        message = await _next(receive)
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        if part := message.get("body", b""):
            yield part
        more = bool(message.get("more_body"))


def build_too_large_refusal(limit_bytes: int) -> Refusal:
    return Refusal(RefusalCode.TOO_LARGE, f"the request's body is larger than {limit_bytes} bytes")


async def wait_for_disconnect(receive: Receive) -> None:
    """Until the caller hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
