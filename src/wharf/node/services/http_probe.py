"""Sends the HTTP request of a check and reads the beginning of the reply.

A client library reads any number of informational replies, decompresses bodies, and follows what a reply says about the
connection. A check needs none of that, and the service may be hostile: everything that is read has a limit.
"""

import asyncio
import ssl
from typing import Final, NamedTuple
from urllib.parse import quote

from wharf.node.services.checks import MAX_OUTPUT_BYTES, CheckSpec
from wharf.world.tls_contexts import NO_VERIFICATION, SYSTEM_TRUST, load_client_context

HTTP_PROTOCOLS: Final = ("http/1.1",)
MAX_HEAD_BYTES: Final = 65_536
"""Limit of the head of a reply, and of a line in a chunked body; protects the memory of the node."""
MAX_INFORMATIONAL_REPLIES: Final = 10
"""Replies with a status from 100 to 199 that are skipped; protects the event loop from a service that sends no other."""
SWITCHING_PROTOCOLS: Final = 101
STATUSES_WITHOUT_BODY: Final = frozenset({204, 304, SWITCHING_PROTOCOLS})
METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
CONNECTION_HEADERS: Final = frozenset({"connection", "content-length", "transfer-encoding"})
"""Headers that the node sets itself, because they must match what it sends."""
DEFAULT_PORTS: Final = {False: 80, True: 443}
"""The port that the header `Host` leaves out, by whether TLS is used."""
URL_CHARACTERS: Final = "!$&'()*+,/:;=?@[]~%"
"""Characters of a path and query that are sent as they are, besides letters, digits and `_.-`."""


class InvalidReply(Exception):
    """The error of a reply that is not HTTP, or exceeds a limit."""


class CheckReply(NamedTuple):
    """The status of a reply, and the beginning of its body as it was sent."""

    status: int
    body: bytes


class _Head(NamedTuple):
    """The head of a reply."""

    status: int
    headers: dict[str, str]  # With names in lower case.


async def send_request(spec: CheckSpec) -> CheckReply:
    """Send the request of a check and return the reply; the body is left out if the status is 200.

    The connection is closed afterwards. Raises InvalidReply and OSError.
    """
    reader, writer = await asyncio.open_connection(
        spec.host,
        spec.port,
        limit=MAX_HEAD_BYTES,
        ssl=await load_check_context(spec, HTTP_PROTOCOLS) if spec.is_tls else None,
        server_hostname=(spec.server_name or spec.host) if spec.is_tls else None,
    )
    try:
        writer.write(build_request(spec))
        await writer.drain()
        return await _read_reply(reader, spec.method)
    except asyncio.IncompleteReadError:
        raise InvalidReply("the service closed the connection before its reply was complete") from None
    except (asyncio.LimitOverrunError, ValueError):
        raise InvalidReply(f"a line of the reply or its head has more than {MAX_HEAD_BYTES} bytes") from None
    finally:
        writer.transport.abort()  # At once: the service may send for ever.


async def load_check_context(spec: CheckSpec, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Return the settings of TLS for a check, with the protocols that the node offers. Raises OSError."""
    trust = NO_VERIFICATION if spec.should_skip_tls_verify else SYSTEM_TRUST
    return await load_client_context(trust._replace(protocols=protocols))


def build_request(spec: CheckSpec) -> bytes:
    """Return the bytes of the request. Texts of the check are sent as UTF-8."""
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    if spec.port != DEFAULT_PORTS[spec.is_tls]:
        host = f"{host}:{spec.port}"
    body = spec.body.encode()
    default_headers = {"Host": host, "User-Agent": "wharf", "Accept": "*/*", "Accept-Encoding": "identity"}
    own_names = {name.lower() for name, _ in spec.headers}
    headers = [(name, value) for name, value in default_headers.items() if name.lower() not in own_names]
    headers += [(name, value) for name, value in spec.headers if name.lower() not in CONNECTION_HEADERS]
    if body or spec.method.upper() in METHODS_WITH_BODY:
        headers.append(("Content-Length", str(len(body))))
    headers.append(("Connection", "close"))
    path = spec.path.partition("#")[0]
    target = quote(path if path.startswith("/") else f"/{path}", safe=URL_CHARACTERS)
    lines = [f"{spec.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode() + body


async def _read_reply(reader: asyncio.StreamReader, method: str) -> CheckReply:
    """Read the final reply, up to the limit of a check's output."""
    for _ in range(MAX_INFORMATIONAL_REPLIES + 1):
        head = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        if head.status >= 200 or head.status == SWITCHING_PROTOCOLS:
            break
    else:
        raise InvalidReply(f"the service sent more than {MAX_INFORMATIONAL_REPLIES} informational replies")
    if head.status == 200 or head.status in STATUSES_WITHOUT_BODY or method.upper() == "HEAD":
        return CheckReply(head.status, b"")
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        return CheckReply(head.status, await _read_chunked_body(reader))
    length = head.headers.get("content-length", "")
    max_bytes = min(int(length), MAX_OUTPUT_BYTES) if length.isdecimal() and len(length) < 20 else MAX_OUTPUT_BYTES
    return CheckReply(head.status, await _read_up_to(reader, max_bytes))


def _parse_head(head: bytes) -> _Head:
    """Return the status and the headers of a reply. Raises InvalidReply."""
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdecimal() and len(code) == 3):
        raise InvalidReply(f"the service does not speak HTTP: its reply begins with {first[:50]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return _Head(int(code), headers)


async def _read_up_to(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """Return the next `max_bytes` of the connection, or less if it ends."""
    data = b""
    while len(data) < max_bytes and (chunk := await reader.read(max_bytes - len(data))):
        data += chunk
    return data


async def _read_chunked_body(reader: asyncio.StreamReader) -> bytes:
    """Return the beginning of a chunked body. Raises InvalidReply."""
    body = b""
    while len(body) < MAX_OUTPUT_BYTES:
        size_text = (await reader.readuntil(b"\r\n"))[:-2].partition(b";")[0].strip()
        try:
            size = int(size_text, 16) if len(size_text) <= 16 else -1
        except ValueError:
            size = -1
        if size < 0:
            raise InvalidReply(f"the reply has a chunk of the size {size_text[:50]!r}")
        if size == 0:
            break
        piece = await _read_up_to(reader, min(size, MAX_OUTPUT_BYTES - len(body)))
        body += piece
        if len(piece) < size:
            break
        await reader.readexactly(2)
    return body
