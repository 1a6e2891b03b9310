"""A sink that posts batches of records to an HTTP receiver: as lines, as a JSON array, or as logs of OpenTelemetry.

A receiver accepts a batch with a 2xx status. A batch that is sent again has the same `wharf-batch` header.
"""

import gzip
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx2

from wharf.sinks.otlp import build_logs_request, count_rejected
from wharf.sinks.port import RecordsRejected, SinkBatch, SinkUnavailable
from wharf.sinks.settings import HttpFormat
from wharf.world.http_clients import build_async_client, read_body
from wharf.world.tls_contexts import ClientTls, load_client_context

REJECTING_STATUSES: Final = frozenset({400, 413, 422})
"""The receiver refuses the content of the batch. Other statuses are problems of the receiver or of its configuration."""
MAX_REPLY_BYTES: Final = 64 * 1024
"""At most this much of a reply is read; protects memory."""
MAX_REASON_CHARACTERS: Final = 200
GZIP_LEVEL: Final = 3
"""A batch takes a few milliseconds; higher levels save little."""


class HttpBody(NamedTuple):
    """How batches become bodies of requests."""

    content_type: str
    encode: Callable[[Sequence[bytes]], bytes]
    count_rejected: Callable[[bytes], int] = lambda _reply: 0
    """Returns how many records of an accepted batch a reply says were rejected."""


BODIES: Final[Mapping[HttpFormat, HttpBody]] = {
    HttpFormat.LINES: HttpBody("application/x-ndjson", lambda lines: b"".join(line + b"\n" for line in lines)),
    HttpFormat.ARRAY: HttpBody("application/json", lambda lines: b"[" + b",".join(lines) + b"]"),
}
OTLP_BODY: Final = HttpBody("application/json", build_logs_request, count_rejected)


class HttpSender:
    """Sends requests to one receiver over connections that stay open, and reads its answers."""

    def __init__(self, *, timeout_s: float, ca_file: str = "") -> None:
        self._timeout_s = timeout_s
        self._tls = ClientTls(ca_file=ca_file)
        self._client: Any = None  # A client of the HTTP library, as `http_clients` builds it.
        self._context: ssl.SSLContext | None = None

    async def send(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Send a request and return the body of the 2xx reply. Raises `SinkUnavailable` or `RecordsRejected`."""
        place = url.partition("?")[0]  # The query may be a secret, and messages are logged.
        try:
            client = await self._get_client()
            async with client.stream(method, url, content=body, headers=dict(headers)) as reply:
                text = await read_body(reply, timeout_s=self._timeout_s, max_bytes=MAX_REPLY_BYTES)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            raise SinkUnavailable(f"{place}: {str(error) or type(error).__name__}") from error
        if 200 <= reply.status_code < 300:
            return text
        reason = f"{place} replied {reply.status_code} {_shorten(text)}".rstrip()
        if reply.status_code in REJECTING_STATUSES:
            raise RecordsRejected(reason)
        raise SinkUnavailable(reason, retry_after_s=_read_retry_after_s(reply.headers.get("retry-after", "")))

    async def _get_client(self) -> Any:  # As `_client`.
        """Return the client, with the certificates as they are now. Raises `OSError` or `ValueError`."""
        context = await load_client_context(self._tls)
        if self._client is None or context is not self._context:
            await self.close()
            self._client, self._context = build_async_client(timeout=self._timeout_s, verify=context), context
        return self._client

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


class HttpSink:
    """Posts batches to one URL."""

    def __init__(
        self, sender: HttpSender, url: str, body: HttpBody, *, headers: Mapping[str, str], is_compressed: bool = False
    ) -> None:
        self._sender = sender
        self._url = url
        self._body = body
        self._headers = {**headers, "content-type": body.content_type}
        self._is_compressed = is_compressed
        if is_compressed:
            self._headers["content-encoding"] = "gzip"

    async def send(self, batch: SinkBatch) -> int:
        """Post one batch. Raises `SinkUnavailable` or `RecordsRejected`."""
        try:
            body = self._body.encode(batch.lines)
        except ValueError as error:  # Of msgspec too: a line of the spool is not a record.
            raise RecordsRejected(f"not a record: {error}") from None
        if self._is_compressed:
            body = gzip.compress(body, GZIP_LEVEL, mtime=0)
        reply = await self._sender.send("POST", self._url, body, {**self._headers, "wharf-batch": batch.name})
        return min(len(batch.lines), self._body.count_rejected(reply))

    async def close(self) -> None:
        await self._sender.close()


def _shorten(text: bytes) -> str:
    """Return the start of a reply as one line of printable text, for messages."""
    line = " ".join(text[: 4 * MAX_REASON_CHARACTERS].decode("utf-8", "replace").split())
    return "".join(sign for sign in line if sign.isprintable())[:MAX_REASON_CHARACTERS]


def _read_retry_after_s(text: str) -> float | None:
    """Return the seconds of a `Retry-After` header; `None` for a date or any other text."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
