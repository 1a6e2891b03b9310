"""Reading the body of a request, within its bound."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from wharf.model.refusal import Code, Refusal

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

BODY_DIGITS: Final = 18


PART_WITHIN_S: Final = 30.0
"""How long the next part of a body may take."""


class Gone(Exception):
    """The caller went away before its body was here."""


class TooSlow(Exception):
    """The caller sends its body too slowly, or not at all."""


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], body_max_bytes: int) -> bytes:
    told = headers.get(b"content-length", b"")
    if told.isdigit() and (len(told) > BODY_DIGITS or int(told) > body_max_bytes):
        raise body_too_large(body_max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await _next(receive)
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size > body_max_bytes:
            raise body_too_large(body_max_bytes)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _next(receive: Receive) -> MutableMapping[str, Any]:
    try:
        async with asyncio.timeout(PART_WITHIN_S):
            return await receive()
    except TimeoutError:
        raise TooSlow from None


async def body_parts(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it comes, for those who may take one of any size. Raises `Gone` where it breaks off."""
    more = True
    while more:
        message = await receive()
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
