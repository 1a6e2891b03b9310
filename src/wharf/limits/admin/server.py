"""The admin endpoint: HTTP with JSON bodies for commands of operators, and the metrics.

It listens on a Unix socket that only the owner of the process can open. If configured, it also listens on a local TCP
port that requires a token, and on a port with only the metrics.
"""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from wharf.limits.admin.actions import OperatorActions
from wharf.limits.admin.callers import MAX_ECHOED_CHARS, expand_name
from wharf.limits.admin.errors import ActionError
from wharf.limits.admin.metrics import Metric, render_metrics
from wharf.limits.admin.queries import OperatorQueries
from wharf.limits.admin.streams import (
    MAX_AUDIT_ENTRIES,
    EventSender,
    describe_schema,
    list_audit_records,
    read_last_event_id,
    read_types,
)
from wharf.limits.core.resources import get_organization
from wharf.limits.decisions.headers import get_reason_phrase
from wharf.limits.decisions.insights import InvalidInsightsQuery, compute_insights, read_time_range
from wharf.limits.decisions.records import OperatorChangeRecord
from wharf.limits.gateway.gateway import Gateway
from wharf.limits.gateway.heads import BadHead, read_request_head
from wharf.limits.rate_limiter import RateLimiter
from wharf.world import World
from wharf.world.tasks import cancel_tasks
from wharf.world.unix_sockets import bind_private_socket, is_listening

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 16 * 1024
"""Limits the memory of a connection."""
MAX_BODY_BYTES: Final = 64 << 20
"""The longest body; exports of many counters are long."""
READ_TIMEOUT_S: Final = 10.0
"""A request that is not complete after this time is dropped, so that it does not hold its connection."""
STREAM_PATH: Final = "/stream"
JSON_TYPE: Final = "application/json"
METRICS_TYPE: Final = "text/plain; version=0.0.4"


class ActionRequest(msgspec.Struct, frozen=True):
    """The JSON body of an action. Each action uses some of the fields."""

    caller: str = ""
    """The caller that a grant or reset applies to, such as `user:ada`."""
    subject: str = ""
    """What a ban applies to, such as `app:7`, or what is revoked."""
    credential: str = ""
    """A credential that is revoked, as a caller sends it."""
    resource: str | None = None
    """The bucket of a grant, such as `core`."""
    rule: str | None = None
    """The rule or bucket whose counters are reset."""
    amount: int = 0
    """How much a grant adds to the ceiling."""
    for_ms: int = 0
    """How long the action has an effect."""
    until_ms: int = 0
    """The end of a grant; if it is 0, `for_ms` is its duration."""
    what: str = ""
    """The name of a drill."""
    by: str = ""
    """The operator."""
    reason: str = ""
    message: str = ""
    """The text for a banned caller."""
    told: dict[str, Any] = {}
    """The exported state to import; its content is checked then."""


CHALLENGE: Final = 'www-authenticate: Bearer realm="limiter"\r\n'
"""The header line that a reply with status 401 must have."""


class _Reply(NamedTuple):
    """A reply of the admin endpoint."""

    status: int
    content_type: str
    body: bytes


class AdminServer:
    """Serves the admin endpoint of one limiter."""

    def __init__(
        self,
        limiter: RateLimiter,
        world: World,
        gateway: Gateway | None = None,
        *,
        list_more_metrics: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self.queries: Final = OperatorQueries(limiter)
        self.actions: Final = OperatorActions(limiter, world)
        self.port = 0
        """The TCP port for commands; 0 without one."""
        self.metrics_port = 0
        """The TCP port for metrics; 0 without one."""
        self._limiter = limiter
        self._gateway = gateway
        self._list_more_metrics = list_more_metrics
        self._path = limiter.settings.socket_path
        self._stream_tasks: set[asyncio.Task[Any]] = set()
        self._socket_server: asyncio.Server | None = None
        self._port_server: asyncio.Server | None = None
        self._metrics_server: asyncio.Server | None = None

    async def open(self) -> None:
        """Start to listen on the Unix socket and on the configured ports.

        Raises `OSError` if another process listens on one of them.
        """
        if is_listening(self._path):
            raise OSError(f"another limiter listens at {self._path}: configure another data folder or `admin_socket`")
        self._socket_server = await asyncio.start_unix_server(
            self._serve_socket, sock=bind_private_socket(self._path), limit=MAX_HEAD_BYTES
        )
        settings = self._limiter.settings
        if settings.admin_host:
            self._port_server = await asyncio.start_server(
                self._serve_port, settings.admin_host, settings.admin_port, limit=MAX_HEAD_BYTES
            )
            self.port = self._port_server.sockets[0].getsockname()[1]
        listening = settings.serve if self._gateway is None and settings.serve.metrics_host else settings.gateway
        if listening.metrics_host:
            self._metrics_server = await asyncio.start_server(
                self._serve_metrics, listening.metrics_host, listening.metrics_port, limit=MAX_HEAD_BYTES
            )
            self.metrics_port = self._metrics_server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, end all streams, remove the socket and end an active drill."""
        await self.actions.close()
        await cancel_tasks(*self._stream_tasks)
        for server in (self._metrics_server, self._port_server):
            if server is not None:
                server.close()
        if self._socket_server is not None:
            self._socket_server.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _serve_socket(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer)

    async def _serve_port(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, needs_token=True)

    async def _serve_metrics(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, is_metrics_only=True)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_metrics_only: bool = False,
        needs_token: bool = False,
    ) -> None:
        """Read one request, send the reply and close the connection.

        With `needs_token`, the request must have the admin token; with `is_metrics_only`, it must be for the metrics.
        """
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                head_bytes = await reader.readuntil(b"\r\n\r\n")
                head = read_request_head(head_bytes, len(head_bytes), max_headers=50)
                if not 0 <= head.length <= MAX_BODY_BYTES:
                    raise BadHead("The body needs a Content-Length of at most 64 MiB.")
                body = await reader.readexactly(head.length)
            target = head.target.decode("ascii")
            if needs_token and not self._has_token(head.authorization):
                log.warning("admin request without token refused target=%s", target[:100])
                reply = _build_error(
                    401, "token required: set WHARF_LIMITS_TOKEN_FILE to the file of the limiter's token"
                )
            elif is_metrics_only and (head.method, target) != (b"GET", "/metrics"):
                reply = _build_error(404, "this port serves only /metrics")
            elif head.method == b"GET" and target.partition("?")[0] == STREAM_PATH:
                query = dict(parse_qsl(target.partition("?")[2]))
                await self._send_stream(writer, query, read_last_event_id(head_bytes, query))
                return
            else:
                reply = await self._handle(head.method.decode("ascii"), target, body)
        except BadHead as problem:
            reply = _build_error(400, str(problem))
        except ActionError as error:
            reply = _build_error(error.status, str(error))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
            writer.close()
            return
        head_lines = (
            f"HTTP/1.1 {reply.status} {get_reason_phrase(reply.status)}\r\ncontent-type: {reply.content_type}\r\n"
            f"content-length: {len(reply.body)}\r\n{CHALLENGE if reply.status == 401 else ''}connection: close\r\n\r\n"
        )
        with contextlib.suppress(ConnectionError):
            writer.write(head_lines.encode() + reply.body)
            await writer.drain()
        writer.close()

    async def _send_stream(self, writer: asyncio.StreamWriter, query: Mapping[str, str], last_id: str) -> None:
        """Send events until the client disconnects or this server is closed. Raises as `EventSender` does."""
        types = read_types(query)
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        self._stream_tasks.add(task)
        try:
            await EventSender(self._limiter.decision_service, writer).send_events(types, last_id)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            # Nobody reads what is left. `close` cancels this task, which has nothing else to do.
            writer.transport.abort()
        else:
            writer.close()
        finally:
            self._stream_tasks.discard(task)

    def _has_token(self, authorization: bytes | None) -> bool:
        return hmac.compare_digest(authorization or b"", f"Bearer {self._limiter.settings.admin_token}".encode())

    async def _handle(self, method: str, target: str, body: bytes) -> _Reply:
        """Run the query (GET) or action at the path of `target`, and return its result or error as the reply."""
        path, _, query_text = target.partition("?")
        if method == "GET" and path == "/metrics":
            return _Reply(200, METRICS_TYPE, render_metrics(self._limiter, self._gateway, self._list_more_metrics()))
        try:
            if method == "GET":
                result = await self._run_query(path, dict(parse_qsl(query_text)))
            else:
                result = await self._run_action(path, body)
        except ActionError as error:
            return _build_error(error.status, str(error))
        except InvalidInsightsQuery as error:
            return _build_error(400, str(error))
        except msgspec.DecodeError as problem:
            return _build_error(400, f"invalid body: {problem}")
        except Exception:  # Last resort: the operator must get a reply.
            log.exception("admin request failed target=%s", target[:100])
            return _build_error(500, "the limiter failed to process the command; its log has the reason")
        return _Reply(200, JSON_TYPE, msgspec.json.encode(result))

    async def _run_query(self, path: str, query: Mapping[str, str]) -> Any:
        """Return the result of the query at a path. Raises `ActionError` or `InvalidInsightsQuery` if it is not possible."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match parts:
            case ["top"]:
                return await self.queries.list_top_callers(_read_number(query, "minutes", 1))
            case ["callers", *name]:
                return await self.queries.describe_caller(await self._expand("/".join(name)))
            case ["why", request_id]:
                return await self.queries.explain_decision(request_id)
            case ["rules"]:
                return self.queries.describe_rules()
            case ["audit"]:
                return await self._list_audit_records(query)
            case ["schema"]:
                return describe_schema()
            case ["sinks"]:
                return self._limiter.decision_service.records.stream.describe_sinks()
            case ["export"]:
                return self.queries.export_state()
            case ["orgs", organization, "insights", "api", *rest]:
                return await self._describe_activity(organization, "/".join(rest), query)
            case _:
                raise ActionError(f"unknown query path {path}", 404)

    async def _expand(self, name: str) -> str:
        """Return the complete name of a caller, which another process may have seen. Raises `ActionError`."""
        return await expand_name(self._limiter.decision_service, name)

    async def _describe_activity(self, organization: str, report_path: str, query: Mapping[str, str]) -> Any:
        """Return a report about the requests for an organization's resources.

        Raises `InvalidInsightsQuery`, and `ActionError` if the organization is not known.
        """
        since_ms, until_ms = read_time_range(query)
        rows_by_process = await self.queries.read_activity(since_ms, until_ms)
        rows = [row for process_rows in rows_by_process.values() for row in process_rows]
        directory = self._limiter.decision_service.caller_resolver.directory
        is_known = directory.find_organization(organization) is not None
        if not is_known and not any(get_organization(row.resource) == organization for row in rows):
            raise ActionError(
                f"organization {organization[:MAX_ECHOED_CHARS]!r} is not in the directory, so no request is counted for it: "
                "add it to the file that `directory` in the settings names",
                404,
            )
        return compute_insights(rows, directory, organization, report_path, query)

    async def _list_audit_records(self, query: Mapping[str, str]) -> list[OperatorChangeRecord]:
        """Return the newest recorded changes by operators. Raises `ActionError` if the audit file cannot be read."""
        since = query.get("since_ms", "")
        since_ms = int(since) if since.isascii() and since.isdigit() and len(since) < 16 else 0
        count = max(1, _read_number(query, "count", MAX_AUDIT_ENTRIES))
        folder, source = self._limiter.settings.data_folder, self._limiter.decision_service.records.source
        try:
            return await asyncio.to_thread(list_audit_records, folder, source, since_ms=since_ms, count=count)
        except OSError as error:
            raise ActionError(f"the audit file cannot be read: {error}", 500) from None

    async def _run_action(self, path: str, body: bytes) -> Any:
        """Run the action at a path and return its result.

        Raises `ActionError` if it is not possible, and `msgspec.DecodeError` if the body is invalid.
        """
        request = msgspec.json.decode(body or b"{}", type=ActionRequest)
        actions, by, reason = self.actions, request.by or "unknown", request.reason
        match path:
            case "/grant":
                return await actions.add_grant(
                    await self._expand(request.caller),
                    resource=request.resource or "",
                    amount=request.amount,
                    for_ms=request.for_ms,
                    until_ms=request.until_ms,
                    by=by,
                    reason=reason,
                )
            case "/revoke":
                return await actions.revoke_grants(
                    await self._expand(request.caller), resource=request.resource, by=by, reason=reason
                )
            case "/reset":
                return await actions.reset_counters(
                    await self._expand(request.caller), rule=request.rule, by=by, reason=reason
                )
            case "/ban":
                return await actions.set_ban(
                    await self._expand(request.subject),
                    for_ms=request.for_ms,
                    by=by,
                    reason=reason,
                    message=request.message,
                )
            case "/revoke-credential":
                return await actions.revoke_credential(
                    request.subject, credential=request.credential, by=by, reason=reason
                )
            case "/off":
                return await actions.set_off(for_ms=request.for_ms, by=by, reason=reason)
            case "/drill":
                return actions.start_drill(request.what, for_ms=request.for_ms, by=by, reason=reason)
            case "/import":
                return await actions.import_state(request.told, by=by, reason=reason)
            case "/reload":
                await actions.reload_files()
                changed = self._limiter.find_changed_settings()
                return {
                    **self.queries.describe_rules(),
                    "changed_settings": str(self._limiter.settings.file) if changed.keys or changed.problem else None,
                    "changed_keys": changed.keys,
                    "settings_problem": changed.problem,
                }
            case _:
                raise ActionError(f"unknown action path {path}", 404)


def _read_number(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a parameter as a number, or the default if it is missing or not a number of up to 5 digits."""
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else default


def _build_error(status: int, text: str) -> _Reply:
    return _Reply(status, JSON_TYPE, msgspec.json.encode({"message": text}))
