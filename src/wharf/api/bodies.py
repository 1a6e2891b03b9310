"""Reading the body of a request, within its bound."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from wharf.model.refusal import Code, Refusal

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

BODY_DIGITS: Final = 18


PART_WITHIN_S: Final = 30.0
"""How long the next part of a body may take."""
BYTES_A_SECOND_LEAST: Final = 1_000
"""How fast a body must come on the whole, after a first `PART_WITHIN_S`: else a byte now and then would hold it open for
days."""


class Gone(Exception):
    """The caller went away before its body was here."""


class TooSlow(Exception):
    """The caller sends its body too slowly, or not at all."""


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], body_max_bytes: int) -> bytes:
    told = headers.get(b"content-length", b"")
    if told.isdigit() and (len(told) > BODY_DIGITS or int(told) > body_max_bytes):
        raise body_too_large(body_max_bytes)
    first = await _next(receive)
    if first["type"] == "http.disconnect":
        raise Gone
    part: bytes = first.get("body", b"")
    if len(part) > body_max_bytes:
        raise body_too_large(body_max_bytes)
    return part if not first.get("more_body") else await _rest(receive, part, body_max_bytes)


async def _rest(receive: Receive, first: bytes, body_max_bytes: int) -> bytes:
    """The whole body in one piece as it grows: of many small parts each alone would take more room than what it holds."""
    body = bytearray(first)
    try:
        async with asyncio.timeout(PART_WITHIN_S + len(first) / BYTES_A_SECOND_LEAST) as bound:
            while True:
                message = await _next(receive)
                if message["type"] == "http.disconnect":
                    raise Gone
                part = message.get("body", b"")
                body += part
                if len(body) > body_max_bytes:
                    raise body_too_large(body_max_bytes)
                if not message.get("more_body"):
                    return bytes(body)
                bound.reschedule((bound.when() or 0) + len(part) / BYTES_A_SECOND_LEAST)
    except TimeoutError:
        raise TooSlow from None


async def _next(receive: Receive) -> MutableMapping[str, Any]:
    try:
        async with asyncio.timeout(PART_WITHIN_S):
            return await receive()
    except TimeoutError:
        raise TooSlow from None


async def body_parts(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it comes, for those who may take one of any size. Raises `Gone` where it breaks off, and
    `TooSlow` where nothing comes."""
    more = True
    while more:
        message = await _next(receive)
        if message["type"] == "http.disconnect":
            raise Gone
        if part := message.get("body", b""):
            yield part
        more = bool(message.get("more_body"))


def body_too_large(limit_bytes: int) -> Refusal:
    return Refusal(Code.TOO_LARGE, f"the request's body is larger than {limit_bytes} bytes")


async def until_gone(receive: Receive) -> None:
    """Until the caller hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
