"""What is answered here and not by the service: where a caller stands, what the service says of itself, and where it is
switched on the activity of an organization for those who own it.

Whoever may not see an organization learns nothing of it, not even that it is there.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.responses import JSON_TYPE
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.decisions.insights import InvalidInsightsQuery, compute_insights, read_time_range
from wharf.limits.decisions.requests import IncomingRequest
from wharf.limits.decisions.shared_records import SharedRecords

STATUS_PATH: Final = "/rate_limit"
META_PATH: Final = "/meta"
_PLAIN: Final = frozenset({STATUS_PATH, META_PATH})
_ORGANIZATIONS: Final = "/orgs/"
_INSIGHTS: Final = "/insights/api/"
INSIGHTS_SCOPES: Final = frozenset({"admin:org", "read:org"})
"""A token that is bound to scopes needs one of these."""

PageResponse = tuple[int, str, bytes]
"""Status, content type and body."""


class Pages:
    def __init__(self, sharing: SharedRecords, meta: Mapping[str, Any], *, has_insights: bool) -> None:
        self._sharing = sharing
        self._meta = msgspec.json.encode({"verifiable_password_authentication": False, **meta})
        self._has_insights = has_insights

    def is_own_path(self, path: str) -> bool:
        """Whether a request to read this path is not the service's."""
        return path in _PLAIN or (self._has_insights and path.startswith(_ORGANIZATIONS) and _INSIGHTS in path)

    def render_while_off(self, path: str) -> PageResponse | None:
        """Without limits there is nothing to tell of them."""
        if path == STATUS_PATH:
            return 404, JSON_TYPE, b'{"message":"Rate limiting is not enabled."}'
        return (200, JSON_TYPE, self._meta) if path == META_PATH else None

    async def render_page(
        self, arrival: IncomingRequest, caller: Caller, service: LimitEvaluator, directory: Directory, now_ms: int
    ) -> PageResponse:
        if arrival.path == STATUS_PATH:
            return 200, JSON_TYPE, await service.render_status(caller)
        if arrival.path == META_PATH:
            return 200, JSON_TYPE, self._meta
        organization, _, asked = arrival.path.removeprefix(_ORGANIZATIONS).partition(_INSIGHTS)
        return await self._insights(unquote(organization), unquote(asked), arrival.query, caller, directory, now_ms)

    async def _insights(
        self, organization: str, asked: str, query_text: str, caller: Caller, directory: Directory, now_ms: int
    ) -> PageResponse:
        found = directory.find_organization(organization)
        login = caller.user.partition(":")[2] if caller.user is not None else ""
        if found is None or login not in found.members | found.owners:
            return _problem(404, "Not Found")
        if login not in found.owners:
            return _problem(403, "You must be an owner of this organization.")
        if caller.scopes and not INSIGHTS_SCOPES.intersection(caller.scopes):
            return _problem(403, f"This token needs one of the scopes {', '.join(sorted(INSIGHTS_SCOPES))}.")
        query = dict(parse_qsl(query_text))
        try:
            since_ms, until_ms = read_time_range(query)
            seen = await self._sharing.read_activity(now_ms=now_ms, since_ms=since_ms, until_ms=until_ms)
            rows = [row for some in seen.values() for row in some]
            told = compute_insights(rows, directory, organization, asked, query)
        except InvalidInsightsQuery as refused:
            return _problem(422, str(refused))
        return 200, JSON_TYPE, msgspec.json.encode(told)


def _problem(status: int, message: str) -> PageResponse:
    return status, JSON_TYPE, msgspec.json.encode({"message": message, "status": str(status)})
