"""What is answered here and not by the service: where a caller stands, what the service says of itself, and where it is
switched on the activity of an organization for those who own it.

Whoever may not see an organization learns nothing of it, not even that it is there.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from wharf.limits.core.answer import JSON
from wharf.limits.core.caller import Caller
from wharf.limits.core.directory import Directory
from wharf.limits.desk.arrival import Arrival
from wharf.limits.desk.insights import InsightsRefused, asked_times, insights
from wharf.limits.desk.sharing import Sharing
from wharf.limits.service import LimitService

STATUS_PATH: Final = "/rate_limit"
META_PATH: Final = "/meta"
_PLAIN: Final = frozenset({STATUS_PATH, META_PATH})
_ORGANIZATIONS: Final = "/orgs/"
_INSIGHTS: Final = "/insights/api/"
SCOPES_TO_SEE: Final = frozenset({"admin:org", "read:org"})
"""A token that is bound to scopes needs one of these."""

Page = tuple[int, str, bytes]
"""Status, content type and body."""


class Pages:
    def __init__(self, sharing: Sharing, meta: Mapping[str, Any], *, has_insights: bool) -> None:
        self._sharing = sharing
        self._meta = msgspec.json.encode({"verifiable_password_authentication": False, **meta})
        self._has_insights = has_insights

    def answers(self, path: str) -> bool:
        """Whether a request to read this path is not the service's."""
        return path in _PLAIN or (self._has_insights and path.startswith(_ORGANIZATIONS) and _INSIGHTS in path)

    def while_off(self, path: str) -> Page | None:
        """Without limits there is nothing to tell of them."""
        if path == STATUS_PATH:
            return 404, JSON, b'{"message":"Rate limiting is not enabled."}'
        return (200, JSON, self._meta) if path == META_PATH else None

    async def page(
        self, arrival: Arrival, caller: Caller, service: LimitService, directory: Directory, now_ms: int
    ) -> Page:
        if arrival.path == STATUS_PATH:
            return 200, JSON, await service.status(caller)
        if arrival.path == META_PATH:
            return 200, JSON, self._meta
        organization, _, asked = arrival.path.removeprefix(_ORGANIZATIONS).partition(_INSIGHTS)
        return await self._insights(unquote(organization), unquote(asked), arrival.query, caller, directory, now_ms)

    async def _insights(
        self, organization: str, asked: str, query_text: str, caller: Caller, directory: Directory, now_ms: int
    ) -> Page:
        found = directory.find_organization(organization)
        login = caller.user.partition(":")[2] if caller.user is not None else ""
        if found is None or login not in found.members | found.owners:
            return _problem(404, "Not Found")
        if login not in found.owners:
            return _problem(403, "You must be an owner of this organization.")
        if caller.scopes and not SCOPES_TO_SEE.intersection(caller.scopes):
            return _problem(403, f"This token needs one of the scopes {', '.join(sorted(SCOPES_TO_SEE))}.")
        query = dict(parse_qsl(query_text))
        try:
            since_ms, until_ms = asked_times(query)
            seen = await self._sharing.seen(now_ms=now_ms, since_ms=since_ms, until_ms=until_ms)
            rows = [row for some in seen.values() for row in some]
            told = insights(rows, directory, organization, asked, query)
        except InsightsRefused as refused:
            return _problem(422, str(refused))
        return 200, JSON, msgspec.json.encode(told)


def _problem(status: int, message: str) -> Page:
    return status, JSON, msgspec.json.encode({"message": message, "status": str(status)})
