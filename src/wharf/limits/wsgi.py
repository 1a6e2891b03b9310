"""Middleware that puts limits in front of any WSGI application.

The desk lives on an event loop in a thread of its own, which the first request starts, so that servers may fork before.
The threads of the server ask it and wait. What a request costs is the CPU time of its thread.
"""

import asyncio
import io
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableMapping
from typing import Any, Final, TypeVar

from wharf.limits.decisions.headers import (
    CONTENT_MARK_HEADER,
    CPU_MARK_HEADER,
    EXPOSED_HEADERS,
    MARK_PREFIX,
    REPLACED_HEADERS,
    read_milliseconds,
)
from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply
from wharf.limits.decisions.service import MAX_BODY_BYTES, DecisionService
from wharf.limits.rate_limiter import RateLimiter

T = TypeVar("T")
Environ = MutableMapping[str, Any]  # As WSGI has it.
Headers = list[tuple[str, str]]
StartResponse = Callable[..., Callable[[bytes], object]]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found"}
OPEN_TIMEOUT_S: Final = 30.0


class LimitsMiddleware:
    """`make` builds the limiter in the process that serves; it is opened with the first request."""

    def __init__(
        self,
        application: Application,
        make_limiter: Callable[[], RateLimiter],
        *,
        has_pages: bool = True,
        read_cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._application = application
        self._make = make_limiter
        self._answers_pages = has_pages
        self._cpu_s = read_cpu_s
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._limits: RateLimiter | None = None

    def _desk(self) -> DecisionService:
        if self._limits is None:
            with self._lock:
                if self._limits is None:
                    self._open()
        assert self._limits is not None
        return self._limits.decision_service

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="limits", daemon=True)
        self._thread.start()
        limits = self._make()
        asyncio.run_coroutine_threadsafe(limits.open(), self._loop).result(OPEN_TIMEOUT_S)
        self._limits = limits

    def close(self) -> None:
        """Free what is held, save, and end the thread."""
        if self._limits is None or self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._limits.close(), self._loop).result(OPEN_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._limits = None

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        desk = self._desk()
        arrival = _arrival_of(environ)
        body = _read_before(environ) if desk.needs_body(arrival.method, arrival.path) else None
        told = self._ask(self._admit(desk, arrival, body))
        if isinstance(told, LocalReply):
            headers = [*told.headers, ("content-length", str(len(told.body)))]
            if "HTTP_ORIGIN" in environ:
                headers.append(("access-control-expose-headers", EXPOSED_HEADERS))
            start_response(_status_line(told.status), headers)
            return [b"" if arrival.method == "HEAD" else told.body]
        answering = _Answering(self, desk, told, start_response, self._cpu_s, has_origin="HTTP_ORIGIN" in environ)
        try:
            return answering.of(self._application(environ, answering.start))
        except BaseException:
            answering.close()
            raise

    async def _admit(
        self, desk: DecisionService, arrival: IncomingRequest, body: bytes | None
    ) -> AdmittedRequest | LocalReply:
        admitted = await desk.admit(arrival, body)
        if isinstance(admitted, LocalReply) or not self._answers_pages:
            return admitted
        page = await desk.render_page(arrival, admitted)
        if page is None:
            return admitted
        await desk.end_request(admitted)
        return page

    def settle_status(
        self, desk: DecisionService, passage: AdmittedRequest, status: int, *, is_content: bool
    ) -> list[tuple[bytes, bytes]]:
        """What a reply is told, when its status is known."""

        async def on_desk() -> list[tuple[bytes, bytes]]:
            await desk.on_status(passage, status)
            if is_content:
                await desk.on_content_created(passage)
            return desk.build_header_pairs(passage)

        if is_content or status == 304 or status >= 500:
            return self._ask(on_desk())
        return desk.build_header_pairs(passage)

    def end_request(self, desk: DecisionService, passage: AdmittedRequest) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(desk.end_request_later, passage)


class _Answering:
    """One reply of the application. It is over when the server closes it."""

    def __init__(
        self,
        middleware: LimitsMiddleware,
        desk: DecisionService,
        passage: AdmittedRequest,
        start_response: StartResponse,
        cpu_s: Callable[[], float],
        *,
        has_origin: bool,
    ) -> None:
        self._middleware = middleware
        self._desk = desk
        self._passage = passage
        self._start_response = start_response
        self._cpu_s = cpu_s
        self._began_s = cpu_s()
        self._has_origin = has_origin
        self._body: Iterable[bytes] = ()
        self._is_over = False

    def start(self, status: str, headers: Headers, *more: object) -> Callable[[bytes], object]:
        passage = self._passage
        kept, makes_content = [], False
        for name, value in headers:
            lower = name.lower().encode()
            if lower == CPU_MARK_HEADER:
                passage.measured_ms = read_milliseconds(value.encode("latin-1"))
            elif lower == CONTENT_MARK_HEADER:
                makes_content = value == "1"
            is_ours = passage.decision is not None and lower in REPLACED_HEADERS
            if not is_ours and not lower.startswith(MARK_PREFIX):
                kept.append((name, value))
        pairs = self._middleware.settle_status(self._desk, passage, int(status[:3]), is_content=makes_content)
        kept += [(name.decode(), value.decode()) for name, value in pairs]
        if self._has_origin:
            kept.append(("access-control-expose-headers", EXPOSED_HEADERS))
        return self._start_response(status, kept, *more)

    def of(self, body: Iterable[bytes]) -> "_Answering":
        self._body = body
        return self

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            if self._passage.measured_ms is None:
                self._passage.measured_ms = round((self._cpu_s() - self._began_s) * 1_000)
            self._middleware.end_request(self._desk, self._passage)


def _arrival_of(environ: Environ) -> IncomingRequest:
    path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")) or "/"
    lines = {name: environ.get(name) for name in ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED")}
    return IncomingRequest(
        method=environ["REQUEST_METHOD"],
        path=path,
        query=environ.get("QUERY_STRING", ""),
        peer=environ.get("REMOTE_ADDR") or "127.0.0.1",
        authorization=environ.get("HTTP_AUTHORIZATION"),
        is_conditional="HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MODIFIED_SINCE" in environ,
        forwarded_for=(lines["HTTP_X_FORWARDED_FOR"],) if lines["HTTP_X_FORWARDED_FOR"] else (),
        forwarded=(lines["HTTP_FORWARDED"],) if lines["HTTP_FORWARDED"] else (),
    )


def _read_before(environ: Environ) -> bytes:
    """The body, up to what is read before a decision. The application reads it again from the beginning."""
    length = environ.get("CONTENT_LENGTH") or ""
    whole = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
    rest = environ["wsgi.input"]
    body: bytes = rest.read(min(whole, MAX_BODY_BYTES + 1)) if whole else b""
    environ["wsgi.input"] = io.BufferedReader(_Again(body, rest, whole - len(body)))
    return body


class _Again(io.RawIOBase):
    """What was read, and then what is left."""

    def __init__(self, read: bytes, rest: Any, left: int) -> None:  # `rest`: whatever the server reads bodies from.
        self._read = io.BytesIO(read)
        self._rest = rest
        self._left = left  # No more may be asked for: the server would wait for bytes that nobody sends.

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # Any writable buffer, as io has it.
        some: bytes = self._read.read(len(buffer))
        if not some and self._left:
            some = self._rest.read(min(len(buffer), self._left))
            self._left -= len(some)
        buffer[: len(some)] = some
        return len(some)


def _status_line(status: int) -> str:
    return f"{status} {REASONS.get(status, 'Limited')}"
