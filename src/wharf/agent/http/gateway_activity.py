"""Asks the gateway that the configuration names for the activity of organizations, over its admin port.

The address and the token come from the configuration only. Callers select an organization, a time and a page.
"""

import asyncio
import datetime
import importlib
import os
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from wharf.contract.model.refusal import Overloaded, Refusal, RefusalCode, not_found
from wharf.contract.model.times import MINUTE, SECOND
from wharf.contract.wire.limits import ACTIVITY_PAGE_ROWS, OrganizationActivity, OrganizationActivityRow
from wharf.world import World

GATEWAY_TIMEOUT_S: Final = 5.0
"""How long a whole request may take. Shorter than the timeout of the pages, and of clients of the API."""
MAX_REPLY_BYTES: Final = 1 << 20
"""The largest reply: a page of 100 rows has about 50 kB. Protects memory."""
MAX_REQUESTS: Final = 2
"""Requests at a time. A report costs the gateway CPU time that requests of its callers need."""
MAX_TOKEN_BYTES: Final = 4_096
MAX_ECHOED_CHARS: Final = 300
"""How much of an error text of the gateway is shown."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Time = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
MAX_TIME_S: Final = 1 << 33
"""The latest time of a reply, in the year 2242: the API sends times as nanoseconds in 64 bits."""


class _ReportRow(msgspec.Struct, frozen=True):
    """A row of the report `actor-resource-stats` of a limiter."""

    actor_name: str
    actor_type: str
    user_name: str | None
    is_member: bool | None
    resource_name: str
    total_request_count: _Count
    rate_limited_request_count: _Count
    last_request_timestamp: _Time
    last_rate_limited_timestamp: _Time | None


class _ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error of a limiter."""

    message: str


class GatewayActivity:
    """Reads reports of one gateway. Implements `GatewayInterface`."""

    def __init__(self, world: World, address: str, token_file: Path, *, timeout_s: float = GATEWAY_TIMEOUT_S) -> None:
        self._world = world
        self._address = address
        self._token_file = token_file
        self._timeout_s = timeout_s
        self._open_requests = 0

    async def read_activity(self, organization: str, *, minutes: int, page: int) -> OrganizationActivity:
        """Return one page of who has sent requests about the resources of an organization. Raises `Refusal`."""
        if self._open_requests >= MAX_REQUESTS:
            raise Overloaded(f"it already sends {MAX_REQUESTS} requests to the gateway", 1)
        since_ns = self._world.now_ns() - minutes * MINUTE
        since = datetime.datetime.fromtimestamp(since_ns // SECOND, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        target = (
            f"/orgs/{quote(organization, safe='')}/insights/api/actor-resource-stats"
            f"?min_timestamp={quote(since)}&per_page={ACTIVITY_PAGE_ROWS}&page={page}"
        )
        self._open_requests += 1
        try:
            status, body = await self._send(target)
        finally:
            self._open_requests -= 1
        rows = self._decode(status, body)
        return OrganizationActivity(
            organization=organization,
            since=since_ns,
            page=page,
            has_more=len(rows) >= ACTIVITY_PAGE_ROWS,
            rows=tuple(map(_convert_row, rows[:ACTIVITY_PAGE_ROWS])),
        )

    async def _send(self, target: str) -> tuple[int, bytes]:
        """Send a GET request. Return the status and the body of the reply. Raises `Refusal`."""
        # Loads slowly, and most servers have no gateway.
        await asyncio.to_thread(importlib.import_module, "wharf.world.http_clients")
        import httpx2

        from wharf.world.http_clients import build_async_client, read_body

        try:
            async with (
                asyncio.timeout(self._timeout_s),
                build_async_client(trust_env=False, verify=False, timeout=self._timeout_s) as http,
            ):
                token = await asyncio.to_thread(self._read_token)
                headers = {"authorization": f"Bearer {token}"}
                async with http.stream("GET", self._address + target, headers=headers) as reply:
                    body = await read_body(reply, timeout_s=self._timeout_s, max_bytes=MAX_REPLY_BYTES)
                    return reply.status_code, body
        except TimeoutError:
            raise self._fail(f"it has not replied within {self._timeout_s:g} s") from None
        except httpx2.ConnectError as error:
            raise self._fail("nothing listens there; start the gateway with this `admin_listen`") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._fail(str(error)[:MAX_ECHOED_CHARS] or "the connection failed") from error

    def _read_token(self) -> str:
        """Return the token of the gateway. Raises `Refusal` if the file cannot be read, or other users may read it."""
        path = self._token_file
        try:
            # Does not wait for the writer of a pipe.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                mode = os.fstat(file.fileno()).st_mode
                token = file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or "it does not contain a token"
            raise _refuse(f"limits.gateway_token_file: {path} cannot be read: {reason}") from None
        if mode & 0o077:
            raise _refuse(f"limits.gateway_token_file: other users can access {path}: run chmod 600 {path}")
        if not token or not token.isprintable() or " " in token:
            raise _refuse(f"limits.gateway_token_file: {path} does not contain a token")
        return token

    def _decode(self, status: int, body: bytes) -> list[_ReportRow]:
        """Return the rows of a reply. Raises `Refusal` if it has none."""
        if status == 200:
            try:
                return msgspec.json.decode(body, type=list[_ReportRow])
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise self._fail("its reply is not a report; check that the address is its admin port") from None
        text = _read_message(body)
        if status == 404:
            raise not_found(text or "the gateway does not know the organization")
        if status == 401:
            raise self._fail(f"it rejected the token in {self._token_file}, the file of limits.gateway_token_file")
        raise self._fail(f"it replied with the status {status}{f': {text}' if text else ''}")

    def _fail(self, reason: str) -> Refusal:
        return _refuse(f"no report from the gateway at {self._address}: {reason}")


def _read_message(body: bytes) -> str:
    """Return the error text of a limiter; empty if there is none."""
    try:
        text = msgspec.json.decode(body, type=_ErrorBody).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return "".join(char for char in text[:MAX_ECHOED_CHARS] if char.isprintable())


def _refuse(text: str) -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, text)


def _convert_row(row: _ReportRow) -> OrganizationActivityRow:
    return OrganizationActivityRow(
        actor=row.actor_name,
        actor_type=row.actor_type,
        user=row.user_name or "",
        is_member=row.is_member,
        resource=row.resource_name,
        requests=row.total_request_count,
        refused=row.rate_limited_request_count,
        last=_convert_time(row.last_request_timestamp),
        last_refused=_convert_time(row.last_rate_limited_timestamp),
    )


def _convert_time(time: datetime.datetime | None) -> int:
    return 0 if time is None else min(max(0, int(time.timestamp())), MAX_TIME_S) * SECOND
