"""Sends the bytes of a generated request over a socket and reads the reply, without an HTTP library that corrects them."""

import asyncio
import contextlib
import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from tests.fuzz.generated_requests import HOST, FuzzRequest, SendMode
from wharf.contract.wire.endpoint_table import ENDPOINTS

ANSWER_WITHIN_S: Final = 60.0
"""Limit for complete requests that do not block. Only a hanging server reaches it."""
LISTEN_S: Final = 0.05
"""Limit for requests that may get no reply, and for streams."""
PAUSE_S: Final = 0.02
GZIP_FORMAT: Final = 16 + zlib.MAX_WBITS
"""Selects the format of gzip."""
STREAMS: Final = frozenset(endpoint.name for endpoint in ENDPOINTS if endpoint.has_endless_reply)
AMBIGUOUS_HEADERS: Final = frozenset(("content-length", "transfer-encoding", "expect", "upgrade"))


class Answer(msgspec.Struct, frozen=True):
    """The reply to a request; `status` 0 means that none arrived."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""


def is_complete(request: FuzzRequest) -> bool:
    """Return whether the bytes are a complete HTTP request, which must get a reply."""
    own_length = str(len(request.body)) if request.body else None
    for name, value in request.headers:
        if name.lower() in AMBIGUOUS_HEADERS and not (name == "Content-Length" and value == own_length):
            return False
        if any(ord(char) < 32 for char in value):
            return False
    return not request.is_garbled and request.method.isupper()


def may_have_been_read(request: FuzzRequest) -> bool:
    """Return whether the server may have received enough to act on the request."""
    return not (request.send_mode in (SendMode.CUT, SendMode.HALF) and is_complete(request))


async def send_request(request: FuzzRequest, port: int) -> Answer:
    """Send the bytes of a request as its send mode requires. Return the reply, or an empty `Answer` if none arrived."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        with contextlib.suppress(ConnectionError):
            await _send(request, writer)
            if request.send_mode in (SendMode.CUT, SendMode.DEAF):
                return Answer()
            if request.send_mode is SendMode.HALF:
                writer.write_eof()
        must_reply = (
            request.send_mode in (SendMode.WHOLE, SendMode.SLOW)
            and is_complete(request)
            and b"index" not in request.target
        )
        try:
            return await _answer(reader, request, ANSWER_WITHIN_S if must_reply else LISTEN_S)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            return Answer()
    finally:
        writer.transport.abort()


async def _send(request: FuzzRequest, writer: asyncio.StreamWriter) -> None:
    size = max(1, -(-len(request.data) // request.pieces))
    for start in range(0, len(request.data), size):
        if start:
            await asyncio.sleep(PAUSE_S)
        writer.write(request.data[start : start + size])
        await writer.drain()


async def _answer(reader: asyncio.StreamReader, request: FuzzRequest, within_s: float) -> Answer:
    """Read a reply. Streams are read for `LISTEN_S`."""
    async with asyncio.timeout(within_s):
        status, headers = 100, dict[str, str]()
        while 100 <= status < 200:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            status = int(first.split()[1])
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        if request.method == "HEAD":
            return Answer(status, headers)
        length = headers.get("content-length")
        if length is not None:
            return Answer(status, headers, _decompress(headers, await reader.readexactly(int(length))))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LISTEN_S if request.endpoint in STREAMS else within_s):
            return Answer(status, headers, _decompress(headers, await reader.read()))
    return Answer(status, headers)


def _decompress(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a body, or the part of it that arrived, as it was before it was compressed."""
    return zlib.decompressobj(GZIP_FORMAT).decompress(body) if headers.get("content-encoding") == "gzip" else body
