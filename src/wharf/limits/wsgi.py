"""Middleware that applies limits to any WSGI application.

The decision service runs on an event loop in a thread of its own. The first request starts this thread, so that servers
may fork before. The server's threads wait for each decision. A request is charged the CPU time of its thread.
"""

import asyncio
import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableMapping
from typing import Any, Final, TypeVar

import msgspec

from wharf.limits.core.body_coding import is_body_coded
from wharf.limits.core.callers.carriers import CarrierSettings, find_carried
from wharf.limits.core.method_overrides import OVERRIDE_HEADERS, is_form, is_json
from wharf.limits.core.paths import BadPath, normalize_decoded_path
from wharf.limits.core.rule import PathRules
from wharf.limits.decisions.headers import (
    EXPOSED_HEADERS,
    HeaderPair,
    ReplyMarks,
    filter_reply_headers,
    get_reason_phrase,
)
from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply
from wharf.limits.decisions.service import MAX_BODY_BYTES, DecisionService
from wharf.limits.rate_limiter import LimiterStartError, RateLimiter
from wharf.world import RealWorld, World
from wharf.world.backoff import Backoff
from wharf.world.tasks import cancel_tasks

T = TypeVar("T")
Environ = MutableMapping[str, Any]  # The keys and their types are those of the WSGI specification.
Headers = list[tuple[str, str]]
StartResponse = Callable[..., Callable[[bytes], object]]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

OPEN_TIMEOUT_S: Final = 30.0
"""How long a request waits for the limiter to open or close, such as while it reads its counters."""
MIN_REOPEN_DELAY_S: Final = 1.0
MAX_REOPEN_DELAY_S: Final = 30.0
"""How long no request tries to open a limiter after it could not be opened: at first, and after many failures. Protects the
threads of the server: each attempt may take `OPEN_TIMEOUT_S`, and all other requests wait for it.
"""
STOP_TIMEOUT_S: Final = 5.0
"""How long the limiter's tasks, and then its thread, may take to end; a thread that takes longer is abandoned."""
LENGTH_REQUIRED_MESSAGE: Final = "The server cannot find the end of a chunked body, from which the cost of the request is computed: send a Content-Length."
_OVERRIDE_VARIABLES: Final = tuple(f"HTTP_{name.upper().replace('-', '_')}" for name in OVERRIDE_HEADERS)
MAX_LENGTH_DIGITS: Final = 19
"""A longer Content-Length is ignored."""


class LimitsMiddleware:
    """Applies limits to a WSGI application. Call `close` when the server stops.

    `make_limiter` builds the limiter in the process that serves; the first request opens it.
    `has_pages`: whether the limiter serves its own pages, such as `/rate_limit`, instead of the application.
    """

    def __init__(
        self,
        application: Application,
        make_limiter: Callable[[], RateLimiter],
        *,
        has_pages: bool = True,
        read_cpu_s: Callable[[], float] = time.thread_time,
        world: World | None = None,
    ) -> None:
        self._world = world if world is not None else RealWorld()
        self._backoff = Backoff(self._world.random, min_s=MIN_REOPEN_DELAY_S, max_s=MAX_REOPEN_DELAY_S)
        self._reopen_at_s = float("-inf")
        """When the limiter may be opened again after a failure, on the monotonic clock."""
        self._last_failure = ""
        """Why the limiter could not be opened; empty: it was not tried, or it is open."""
        self._application = application
        self._make_limiter = make_limiter
        self._has_pages = has_pages
        self._read_cpu_s = read_cpu_s
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._limiter: RateLimiter | None = None

    def _get_decision_service(self) -> DecisionService:
        """Return the decision service. The first call opens the limiter.

        Raises the error of the limiter if it cannot open, and `LimiterStartError` at once until it may be tried again.
        """
        if self._limiter is None:
            with self._lock:
                if self._limiter is None:
                    self._open_with_backoff()
        assert self._limiter is not None
        return self._limiter.decision_service

    def _open_with_backoff(self) -> None:
        """Open the limiter, unless it failed a short time ago: then raise `LimiterStartError` at once."""
        left_s = self._reopen_at_s - self._world.monotonic_s()
        if left_s > 0:
            raise LimiterStartError(
                f"the limiter could not be opened: {self._last_failure}. The next attempt is possible in {left_s:.1f} s"
            )
        try:
            self._open()
        except Exception as error:
            self._last_failure = str(error) or type(error).__name__
            self._reopen_at_s = self._world.monotonic_s() + self._backoff.next_delay_s()
            raise
        self._backoff.reset()
        self._last_failure = ""

    def _open(self) -> None:
        """Start the limiter's thread, and open the limiter in it. If that fails, the thread ends again."""
        limiter = self._make_limiter()
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="limits", daemon=True)
        self._thread.start()
        opening = asyncio.run_coroutine_threadsafe(limiter.open(), loop)
        try:
            opening.result(OPEN_TIMEOUT_S)
        except BaseException:
            opening.cancel()
            self._stop_thread()
            raise
        self._limiter = limiter

    def close(self) -> None:
        """Close the limiter, which ends all requests and saves the counters, and stop its thread."""
        if self._limiter is None or self._loop is None or self._thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._limiter.close(), self._loop).result(OPEN_TIMEOUT_S)
        finally:
            self._limiter = None
            self._stop_thread()

    def _stop_thread(self) -> None:
        """Cancel all tasks of the limiter's thread, end the thread and close its event loop."""
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        self._loop = self._thread = None
        stopping = asyncio.run_coroutine_threadsafe(_cancel_tasks(), loop)
        with contextlib.suppress(TimeoutError):
            stopping.result(STOP_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_TIMEOUT_S)
        if not thread.is_alive():
            loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the limiter's thread, and wait for its result."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one WSGI request: admit or refuse it, and pass an admitted one to the application."""
        decision_service = self._get_decision_service()
        carriers = decision_service.carriers
        try:
            path = _normalize_path(environ, decision_service.evaluator.limiter.rulebook.unforwarded_paths)
        except BadPath as error:
            incoming = _read_incoming_request(environ, "/", carriers)
            reply = self._run(decision_service.render_error(incoming, error.status, str(error)))
            return _send_local_reply(reply, incoming, start_response)
        incoming = _read_incoming_request(environ, path, carriers)
        body: bytes | None = None
        result: AdmittedRequest | LocalReply
        try:
            if decision_service.needs_body_of(incoming):
                body = _read_body(environ)
        except _UnknownLength:
            result = self._run(decision_service.render_error(incoming, 411, LENGTH_REQUIRED_MESSAGE))
        else:
            if body == b"" and decision_service.can_lack_body(incoming) and not _may_have_body(environ):
                body = None
            result = self._run(self._admit(decision_service, incoming, body))
        if isinstance(result, LocalReply):
            return _send_local_reply(result, incoming, start_response)
        call = _WsgiCall(self, decision_service, result, incoming, start_response, self._read_cpu_s)
        try:
            call.body = self._application(environ, call.start_response)
        except Exception as error:
            call.failure = error  # Raised again after the error reply, when the server reads the body.
        except BaseException:
            call.close()
            raise
        return call

    async def _admit(
        self, decision_service: DecisionService, incoming: IncomingRequest, body: bytes | None
    ) -> AdmittedRequest | LocalReply:
        """Return the request as admitted, or the reply of the limiter: a refusal, or its own page at this path."""
        admitted = await decision_service.admit(incoming, body)
        if isinstance(admitted, LocalReply) or not self._has_pages:
            return admitted
        page = await decision_service.render_page(incoming, admitted)
        if page is None:
            return admitted
        await decision_service.end_request(admitted)
        return page

    def build_headers(
        self, decision_service: DecisionService, admitted: AdmittedRequest, status: int, marks: ReplyMarks
    ) -> list[HeaderPair]:
        """Refund a 304 or 5xx reply, charge created content, and return the rate limit headers for the reply."""

        async def charge_and_build() -> list[HeaderPair]:
            """Refund and charge what depends on the reply, then build the headers. Runs in the limiter's thread."""
            decision_service.on_reply_status(admitted, status)
            await decision_service.on_status(admitted, status)
            if marks.is_content:
                await decision_service.on_content_created(admitted, marks.content_route)
            return decision_service.build_header_pairs(admitted)

        if admitted.proof is not None or marks.is_content or status == 304 or status >= 500:
            return self._run(charge_and_build())
        return decision_service.build_header_pairs(admitted)

    def render_server_error(
        self, decision_service: DecisionService, incoming: IncomingRequest, admitted: AdmittedRequest
    ) -> LocalReply:
        """Refund a request whose application has failed, and return the reply with status 500."""

        async def refund_and_render() -> LocalReply:
            await decision_service.on_status(admitted, 500)
            return await decision_service.render_error(incoming, 500, "Server Error", admitted)

        return self._run(refund_and_render())

    def end_request(self, decision_service: DecisionService, admitted: AdmittedRequest) -> None:
        """End a request in the limiter's thread, without waiting. Does nothing before the limiter is open."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(decision_service.end_request_later, admitted)


async def _cancel_tasks() -> None:
    """Cancel all other tasks of this event loop, and wait until they have ended."""
    await cancel_tasks(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))


class _WsgiCall:
    """One admitted request that the application handles, and the body of its reply. It ends when the server closes it.

    If the application raises before the first byte of its reply, the reply is an error with the rate limit headers. The error is
    raised again after it, so that the server can log it.
    """

    def __init__(
        self,
        middleware: LimitsMiddleware,
        decision_service: DecisionService,
        admitted: AdmittedRequest,
        incoming: IncomingRequest,
        start_response: StartResponse,
        read_cpu_s: Callable[[], float],
    ) -> None:
        self.body: Iterable[bytes] = ()
        self.failure: Exception | None = None
        """What the application has raised instead of returning a body."""
        self._middleware = middleware
        self._decision_service = decision_service
        self._admitted = admitted
        self._incoming = incoming
        self._start_response = start_response
        self._write: Callable[[bytes], object] | None = None
        self._read_cpu_s = read_cpu_s
        self._start_cpu_s = read_cpu_s()
        self._has_begun = False
        """Whether the server has a part of the body, so that the reply cannot be replaced."""
        self._has_content = False
        """Whether the application has reported that it created content."""
        self._is_closed = False

    def start_response(self, status: str, headers: Headers, *exc_info: object) -> Callable[[bytes], object]:
        """Start the reply with the rate limit headers, or replace it by an error reply. The application calls this."""
        if self._has_begun:
            return self._start_response(status, headers, *exc_info)  # The server raises: the reply has begun.
        admitted = self._admitted
        # From here on the reply may stream for as long as the caller reads, which costs no CPU time.
        admitted.finish_work(self._decision_service.world.monotonic_s())
        passed, marks = filter_reply_headers(
            ((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers),
            replaces_limits=admitted.reports_limits,
            status=int(status[:3]),
        )
        if marks.measured_ms is not None:
            admitted.measured_ms = marks.measured_ms
        is_content = marks.is_content and not self._has_content
        self._has_content = self._has_content or is_content
        marks = msgspec.structs.replace(marks, is_content=is_content)
        passed += self._middleware.build_headers(self._decision_service, admitted, int(status[:3]), marks)
        lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in passed]
        if self._incoming.has_origin:
            lines.append(("access-control-expose-headers", EXPOSED_HEADERS))
        self._write = self._start_response(status, lines, *exc_info)
        return self._write_part

    def _write_part(self, data: bytes) -> object:
        """Write a part of the body. Old applications call this instead of returning a body."""
        assert self._write is not None
        self._has_begun = self._has_begun or bool(data)
        return self._write(data)

    def __iter__(self) -> Iterator[bytes]:
        if self.failure is None and isinstance(self.body, list | tuple):
            return iter(self.body)  # Reading it cannot fail.
        return self._iterate_parts()

    def _iterate_parts(self) -> Iterator[bytes]:
        """Yield the parts of the body; if the application fails before the first one, an error reply before its error."""
        try:
            if self.failure is not None:
                raise self.failure
            for part in self.body:
                self._has_begun = self._has_begun or bool(part)
                yield part
        except Exception:
            if self._has_begun:
                raise
            yield self._start_error_reply()
            raise

    def _start_error_reply(self) -> bytes:
        """Start a reply with status 500 instead of the application's, and return its body."""
        reply = self._middleware.render_server_error(self._decision_service, self._incoming, self._admitted)
        self._has_begun = True
        (body,) = _send_local_reply(reply, self._incoming, self._start_response, sys.exc_info())
        return body

    def close(self) -> None:
        """Close the application's body, then end the request. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            close_body = getattr(self.body, "close", None)
            if close_body is not None:
                close_body()
        finally:
            if self._admitted.measured_ms is None:
                self._admitted.measured_ms = round((self._read_cpu_s() - self._start_cpu_s) * 1_000)
            self._middleware.end_request(self._decision_service, self._admitted)


def _send_local_reply(
    reply: LocalReply, incoming: IncomingRequest, start_response: StartResponse, *exc_info: object
) -> list[bytes]:
    """Start a reply of the limiter instead of the application, and return its body; empty for a HEAD request.

    With `exc_info`, it replaces a reply that was started and not sent.
    """
    headers = [*reply.headers, ("content-length", str(len(reply.body)))]
    if incoming.has_origin:
        headers.append(("access-control-expose-headers", EXPOSED_HEADERS))
    start_response(f"{reply.status} {get_reason_phrase(reply.status)}", headers, *exc_info)
    return [b"" if incoming.method == "HEAD" else reply.body]


def _normalize_path(environ: Environ, rules: PathRules) -> str:
    """Return the path of the application and the path in it, in normal form. Raises `BadPath`.

    WSGI decodes escapes into bytes, and passes each byte as one character.
    """
    path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")) or "/"
    return normalize_decoded_path(path.encode("latin-1", "replace").decode("utf-8", "surrogateescape"), rules)


def _read_incoming_request(environ: Environ, path: str, carriers: CarrierSettings | None) -> IncomingRequest:
    """Return the parts of a request that its decision needs.

    `path` is its path in normal form, and `carriers` is what else carries credentials.
    """
    forwarded_for, forwarded = environ.get("HTTP_X_FORWARDED_FOR"), environ.get("HTTP_FORWARDED")
    method, content_types = environ["REQUEST_METHOD"].upper(), (environ.get("CONTENT_TYPE", ""),)
    return IncomingRequest(
        method=method,
        path=path,
        query=environ.get("QUERY_STRING", ""),
        peer=environ.get("REMOTE_ADDR") or "127.0.0.1",
        authorization=environ.get("HTTP_AUTHORIZATION"),
        is_conditional="HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MODIFIED_SINCE" in environ,
        forwarded_for=(forwarded_for,) if forwarded_for else (),
        forwarded=(forwarded,) if forwarded else (),
        has_origin="HTTP_ORIGIN" in environ,
        carried=() if carriers is None else find_carried(_iter_headers(environ), carriers),
        host=environ.get("HTTP_HOST", ""),
        is_tls=environ.get("wsgi.url_scheme") == "https",
        method_overrides=tuple(environ[name] for name in _OVERRIDE_VARIABLES if name in environ),
        has_form=is_form(method, content_types),
        has_json=is_json(method, content_types),
        is_body_coded=is_body_coded(content_types, (environ.get("HTTP_CONTENT_ENCODING", ""),)),
    )


def _may_have_body(environ: Environ) -> bool:
    """Return whether the request may have a body: its length is not known, or not 0."""
    return "HTTP_TRANSFER_ENCODING" in environ or (environ.get("CONTENT_LENGTH") or "0") != "0"


class _UnknownLength(Exception):
    """The server does not report where a chunked body ends."""


def _iter_headers(environ: Environ) -> Iterator[tuple[bytes, bytes]]:
    """Yield name, in lower case, and value of each header of a request."""
    for name, value in environ.items():
        if name.startswith("HTTP_") and isinstance(value, str):
            yield name[5:].replace("_", "-").lower().encode(), value.encode("latin-1", "replace")


def _read_body(environ: Environ) -> bytes:
    """Return the body, or its first part if it exceeds `MAX_BODY_BYTES`.

    The input in `environ` is replaced, so that the application reads the body again from the start. A chunked body has no
    length; its end is known if the server ends the input there (`wsgi.input_terminated`). Otherwise this raises `_UnknownLength`.
    """
    text = environ.get("CONTENT_LENGTH") or ""
    is_length = text.isascii() and text.isdigit() and len(text) <= MAX_LENGTH_DIGITS
    length: int | None = int(text) if is_length else 0
    if not is_length and environ.get("wsgi.input_terminated"):
        length = None
    elif not is_length and "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower():
        raise _UnknownLength
    rest = environ["wsgi.input"]
    body = _read_first_part(rest, MAX_BODY_BYTES + 1 if length is None else min(length, MAX_BODY_BYTES + 1))
    rest_bytes = None if length is None else length - len(body)
    environ["wsgi.input"] = io.BufferedReader(_ReplayedBody(body, rest, rest_bytes))
    return body


def _read_first_part(stream: Any, max_bytes: int) -> bytes:  # `stream`: any object with `read`.
    """Return up to `max_bytes` bytes of a body. A read may return fewer bytes than it was asked for."""
    parts = []
    while max_bytes and (part := stream.read(max_bytes)):
        parts.append(part)
        max_bytes -= len(part)
    return b"".join(parts)


class _ReplayedBody(io.RawIOBase):
    """A request body whose first part was read already: reading returns that part, and then the rest from the server.

    `rest_bytes` is the length of the rest; `None` if the server ends its input at the end of the body.
    """

    def __init__(self, first_part: bytes, rest: Any, rest_bytes: int | None) -> None:  # `rest`: any object with `read`.
        self._first_part = io.BytesIO(first_part)
        self._rest = rest
        self._rest_bytes = rest_bytes  # To read more would block: the caller sends no further bytes.

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # `buffer`: any writable buffer, as in the base class.
        """Read up to the length of `buffer` into it. Return the number of bytes; 0 at the end of the body."""
        data: bytes = self._first_part.read(len(buffer))
        if not data and self._rest_bytes is None:
            data = self._rest.read(len(buffer))
        elif not data and self._rest_bytes:
            data = self._rest.read(min(len(buffer), self._rest_bytes))
            self._rest_bytes -= len(data)
        buffer[: len(data)] = data
        return len(data)
