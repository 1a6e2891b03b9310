"""Pages that the limiter serves itself: the rate limit status, the meta page, and insights of organizations if enabled.

The paths in this module are relative to the base path of the API. Callers who are not members of an organization get the same reply as if the organization did not exist.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.paths import read_segments
from wharf.limits.core.responses import JSON_TYPE, Headers
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.decisions.insights import InsightsPage, InvalidInsightsQuery, compute_insights_page, read_time_range
from wharf.limits.decisions.requests import IncomingRequest
from wharf.limits.decisions.shared_records import SharedRecords

STATUS_PATH: Final = "/rate_limit"
META_PATH: Final = "/meta"
_EXACT_PATHS: Final = frozenset({STATUS_PATH, META_PATH})
_ORGANIZATION_PREFIX: Final = "/orgs/"
INSIGHTS_SCOPES: Final = frozenset({"admin:org", "read:org"})
"""A token with scopes needs one of these to read insights."""
SAFE_PATH_SIGNS: Final = "/%:@!$&'()*+,;=~"
"""The signs of a path that are not escaped in the URLs of a `Link` header."""
_HOST: Final = re.compile(r"[A-Za-z0-9._\-\[\]:]{1,255}")


class PageResponse(NamedTuple):
    """One of the limiter's own pages."""

    status: int
    content_type: str
    body: bytes
    headers: Headers = ()
    """Further headers, such as `link`."""


NO_LIMITS: Final = PageResponse(404, JSON_TYPE, b'{"message":"Rate limiting is not enabled."}')
"""The status page of a caller to whom no limits apply, because they are off or in shadow mode."""


class Pages:
    """Renders the limiter's own pages."""

    def __init__(
        self, shared_records: SharedRecords, meta: Mapping[str, Any], *, has_insights: bool, has_proxies: bool = False
    ) -> None:
        """`has_proxies`: proxies stand in front, so the scheme and host that callers use are not known."""
        self._has_proxies = has_proxies
        self._shared_records = shared_records
        self._meta = msgspec.json.encode({"verifiable_password_authentication": False, **meta})
        self._has_insights = has_insights

    def is_own_path(self, path: str) -> bool:
        """Return whether the limiter, and not the service, replies to GET and HEAD requests for this path in normal form."""
        return path in _EXACT_PATHS or (
            self._has_insights and path.startswith(_ORGANIZATION_PREFIX) and _split_insights_path(path) is not None
        )

    def render_while_off(self, path: str) -> PageResponse | None:
        """Return the page at this path while limits are off, or `None` if the service should reply."""
        if path == STATUS_PATH:
            return NO_LIMITS
        return PageResponse(200, JSON_TYPE, self._meta) if path == META_PATH else None

    async def render_page(
        self,
        path: str,
        incoming: IncomingRequest,
        caller: Caller,
        evaluator: LimitEvaluator,
        directory: Directory,
        now_ms: int,
    ) -> PageResponse:
        """Return the page at this path, for this caller. `incoming` is the request, whose path also has the base path."""
        if path == STATUS_PATH:
            status = await evaluator.render_status(caller)
            return NO_LIMITS if status is None else PageResponse(200, JSON_TYPE, status)
        if path == META_PATH:
            return PageResponse(200, JSON_TYPE, self._meta)
        organization, insights_path = _split_insights_path(path) or ("", "")
        return await self._render_insights(organization, insights_path, incoming, caller, directory, now_ms)

    async def _render_insights(
        self,
        organization: str,
        insights_path: str,
        incoming: IncomingRequest,
        caller: Caller,
        directory: Directory,
        now_ms: int,
    ) -> PageResponse:
        """Return the insights of an organization as JSON, or an error page: 403, 404, or 422 for an invalid query.

        Only owners of the organization may read them, with a token that has one of the required scopes.
        """
        record = directory.find_organization(organization)
        login = caller.user.partition(":")[2] if caller.user is not None else ""
        if record is None or login not in record.members | record.owners:
            return _build_error(404, "Not Found")
        if login not in record.owners:
            return _build_error(403, "You must be an owner of this organization.")
        if caller.scopes and not INSIGHTS_SCOPES.intersection(caller.scopes):
            return _build_error(403, f"This token needs one of the scopes {', '.join(sorted(INSIGHTS_SCOPES))}.")
        query = dict(parse_qsl(incoming.query))
        try:
            since_ms, until_ms = read_time_range(query)
            rows_by_process = await self._shared_records.read_activity(
                now_ms=now_ms, since_ms=since_ms, until_ms=until_ms, organization=record.login
            )
            rows = [row for process_rows in rows_by_process.values() for row in process_rows]
            page = compute_insights_page(rows, directory, organization, insights_path, query)
        except InvalidInsightsQuery as error:
            return _build_error(422, str(error))
        link = build_link(page, f"{self._build_base_url(incoming)}{quote(incoming.path, safe=SAFE_PATH_SIGNS)}", query)
        headers: Headers = (("link", link),) if link else ()
        return PageResponse(200, JSON_TYPE, msgspec.json.encode(page.body), headers)

    def _build_base_url(self, incoming: IncomingRequest) -> str:
        """Return scheme and host as the caller uses them; empty if they are not known, for URLs relative to the request."""
        if self._has_proxies or _HOST.fullmatch(incoming.host) is None:
            return ""
        return f"{'https' if incoming.is_tls else 'http'}://{incoming.host}"


def build_link(page: InsightsPage, url: str, query: Mapping[str, str]) -> str:
    """Return the value of the `Link` header (RFC 8288) with the other pages of a report; empty if it has only one page.

    `url` is the URL of the report without the query. A page after the last one links only back.
    """
    last = page.page_count
    targets = {
        "prev": min(page.page - 1, last) if page.page > 1 else None,
        "next": page.page + 1 if page.page < last else None,
        "last": last if page.page < last else None,
        "first": 1 if page.page > 1 else None,
    }
    return ", ".join(
        f'<{url}?{urlencode({**query, "page": str(number)})}>; rel="{relation}"'
        for relation, number in targets.items()
        if number is not None
    )


def _split_insights_path(path: str) -> tuple[str, str] | None:
    """Return a pair: the organization and the report in a path such as `/orgs/acme/insights/api/time-stats`, else `None`."""
    segments = read_segments(path)
    if len(segments) < 5 or segments[0] != "orgs" or segments[2:4] != ("insights", "api"):
        return None
    return segments[1], "/".join(segments[4:])


def _build_error(status: int, message: str) -> PageResponse:
    return PageResponse(status, JSON_TYPE, msgspec.json.encode({"message": message, "status": str(status)}))
