"""Where operators' commands ask a limiter: small HTTP with JSON, over a Unix socket for the owner of the process only,
and where it is configured over a port of this machine for whoever shows the token."""

import asyncio
import contextlib
import hmac
import logging
import os
import socket
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from wharf.limits.admin.actions import ActionError, OperatorActions
from wharf.limits.admin.metrics import render_metrics
from wharf.limits.decisions.headers import get_reason_phrase
from wharf.limits.decisions.insights import InvalidInsightsQuery, compute_insights, read_time_range
from wharf.limits.gateway.gateway import Gateway
from wharf.limits.gateway.heads import BadHead, read_request_head
from wharf.limits.rate_limiter import RateLimiter
from wharf.world import World

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_BODY_BYTES: Final = 64 << 20
READ_TIMEOUT_S: Final = 10.0


class ActionRequest(msgspec.Struct, frozen=True):
    """The body of an act."""

    caller: str = ""
    subject: str = ""
    resource: str | None = None
    rule: str | None = None
    amount: int = 0
    for_ms: int = 0
    until_ms: int = 0
    """Of a grant, in the place of `for_ms`."""
    what: str = ""
    by: str = ""
    reason: str = ""
    told: dict[str, Any] = {}  # What an export gave; its own reader checks it.


class AdminServer:
    def __init__(self, limits: RateLimiter, world: World, gateway: Gateway | None = None) -> None:
        self.actions: Final = OperatorActions(limits, world)
        self._limits = limits
        self._gateway = gateway
        self._path = limits.settings.socket_path
        self._server: asyncio.Server | None = None
        self._metrics: asyncio.Server | None = None
        self.metrics_port = 0
        self._port_server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        """Listen. Raises OSError when another process listens there."""
        if self._path.exists():
            if _answers(str(self._path)):
                raise OSError(f"another limiter is at {self._path}: name another data folder or `admin_socket`")
            self._path.unlink()  # Of a process that was killed.
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=MAX_HEAD_BYTES)
        finally:
            os.umask(before)
        told = self._limits.settings
        if told.admin_host:
            self._port_server = await asyncio.start_server(
                self._serve_port, told.admin_host, told.admin_port, limit=MAX_HEAD_BYTES
            )
            self.port = self._port_server.sockets[0].getsockname()[1]
        settings = told.gateway
        if settings.metrics_host:
            self._metrics = await asyncio.start_server(
                self._tell_metrics, settings.metrics_host, settings.metrics_port, limit=MAX_HEAD_BYTES
            )
            self.metrics_port = self._metrics.sockets[0].getsockname()[1]

    async def close(self) -> None:
        await self.actions.close()
        for server in (self._metrics, self._port_server):
            if server is not None:
                server.close()
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _tell_metrics(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, only_metrics=True)

    async def _serve_port(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, needs_token=True)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        only_metrics: bool = False,
        needs_token: bool = False,
    ) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                head_bytes = await reader.readuntil(b"\r\n\r\n")
                head = read_request_head(head_bytes, len(head_bytes), max_headers=50)
                if not 0 <= head.length <= MAX_BODY_BYTES:
                    raise BadHead("The body needs a Content-Length, of 64 MiB at most.")
                body = await reader.readexactly(head.length)
            target = head.target.decode("ascii")
            if needs_token and not self._shows_token(head.authorization):
                log.warning("somebody without the token asked for %s at the operators' port", target[:100])
                status, kind, told = 401, "application/json", _message("this needs the limiter's token: name its file")
            elif only_metrics and (head.method, target) != (b"GET", "/metrics"):
                status, kind, told = 404, "application/json", _message("here is only /metrics")
            else:
                status, kind, told = await self._answer(head.method.decode("ascii"), target, body)
        except BadHead as problem:
            status, kind, told = 400, "application/json", _message(str(problem))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
            writer.close()
            return
        reason = get_reason_phrase(status)
        start = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {len(told)}\r\n"
        with contextlib.suppress(ConnectionError):
            writer.write(f"{start}connection: close\r\n\r\n".encode() + told)
            await writer.drain()
        writer.close()

    def _shows_token(self, authorization: bytes | None) -> bool:
        return hmac.compare_digest(authorization or b"", f"Bearer {self._limits.settings.admin_token}".encode())

    async def _answer(self, method: str, target: str, body: bytes) -> tuple[int, str, bytes]:
        path, _, query_text = target.partition("?")
        query = dict(parse_qsl(query_text))
        if method == "GET" and path == "/metrics":
            return 200, "text/plain; version=0.0.4", render_metrics(self._limits, self._gateway)
        try:
            told = await (self._look(path, query) if method == "GET" else self._act(path, body))
        except ActionError as refused:
            return refused.status, "application/json", _message(str(refused))
        except InvalidInsightsQuery as refused:
            return 400, "application/json", _message(str(refused))
        except msgspec.DecodeError as problem:
            return 400, "application/json", _message(f"the body is not read: {problem}")
        return 200, "application/json", msgspec.json.encode(told)

    async def _look(self, path: str, query: Mapping[str, str]) -> Any:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match parts:
            case ["top"]:
                return await self.actions.list_top_callers(_count(query, "minutes", 1))
            case ["callers", *name]:
                return await self.actions.describe_caller("/".join(name))
            case ["why", request_id]:
                return await self.actions.explain_decision(request_id)
            case ["rules"]:
                return self.actions.describe_rules()
            case ["export"]:
                return self.actions.export_state()
            case ["orgs", organization, "insights", "api", *rest]:
                since_ms, until_ms = read_time_range(query)
                seen = await self.actions.read_activity(since_ms, until_ms)
                rows = [row for some in seen.values() for row in some]
                return compute_insights(
                    rows, self._limits.decision_service.caller_resolver.directory, organization, "/".join(rest), query
                )
            case _:
                raise ActionError(f"there is nothing at {path}", 404)

    async def _act(self, path: str, body: bytes) -> Any:
        asked = msgspec.json.decode(body or b"{}", type=ActionRequest)
        acts, by, reason = self.actions, asked.by or "unknown", asked.reason
        match path:
            case "/grant":
                return await acts.add_grant(
                    asked.caller,
                    resource=asked.resource or "",
                    amount=asked.amount,
                    for_ms=asked.for_ms,
                    until_ms=asked.until_ms,
                    by=by,
                    reason=reason,
                )
            case "/revoke":
                return await acts.revoke_grants(asked.caller, resource=asked.resource, by=by, reason=reason)
            case "/reset":
                return await acts.reset_counters(asked.caller, rule=asked.rule, by=by, reason=reason)
            case "/ban":
                return await acts.set_ban(asked.subject, for_ms=asked.for_ms, by=by, reason=reason)
            case "/off":
                return await acts.set_off(for_ms=asked.for_ms, by=by, reason=reason)
            case "/drill":
                return acts.start_drill(asked.what, for_ms=asked.for_ms, by=by, reason=reason)
            case "/import":
                return await acts.import_state(asked.told, by=by, reason=reason)
            case "/reload":
                return await acts.reload_files()
            case _:
                raise ActionError(f"there is nothing to do at {path}", 404)


def _count(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else default


def _message(text: str) -> bytes:
    return msgspec.json.encode({"message": text})


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
