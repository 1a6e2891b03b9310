"""The activity of an organization: who asked for what, how often, and how often a limit refused it.

Counted is what is sent in its name: by installations on it, workflows of its repositories, apps that it owns, and
credentials of its members. Shapes are those that clients of such insights know; `secondary_limited_request_count` is more.
"""

import datetime
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

from wharf.limits.core.callers.caller import Caller, CredentialKind
from wharf.limits.core.callers.directory import Directory
from wharf.limits.decisions.activity import MINUTE_MS, ActivityRow

ACTOR_TYPES: Final = {
    CredentialKind.PERSONAL_TOKEN: "classic_pat",
    CredentialKind.OAUTH_TOKEN: "oauth_app",
    CredentialKind.CLIENT_SECRET: "oauth_app",
    CredentialKind.APP_USER_TOKEN: "github_app_user_to_server",
    CredentialKind.INSTALLATION_TOKEN: "installation",
    CredentialKind.WORKFLOW_TOKEN: "installation",
}
MAX_PAGE_ROWS: Final = 100


class InvalidInsightsQuery(ValueError):
    """A question that cannot be answered. Its text says why."""


def read_time_range(query: Mapping[str, str]) -> tuple[int, int | None]:
    """Since when, and until when if that is said. Raises InvalidInsightsQuery."""
    return _moment(query, "min_timestamp", needed=True), _moment(query, "max_timestamp") or None


def compute_insights(
    activity_rows: Iterable[ActivityRow], directory: Directory, organization: str, path: str, query: Mapping[str, str]
) -> Any:  # JSON: an object, or a list of them.
    """Answer one of the paths below `/orgs/{organization}/insights/api/`, out of what was seen in the times that it asks
    for. Raises InsightsRefused."""
    acts_for = _acts_for(directory, organization)
    rows = [row for row in activity_rows if acts_for(row.caller)]
    kind, *rest = path.strip("/").split("/")
    rows = _of_actor(rows, rest)
    match kind:
        case "summary-stats":
            return _counts(rows)
        case "time-stats":
            step_ms = _step_ms(query.get("timestamp_increment", "1h"))
            return _page(_grouped(rows, lambda row: row.minute * MINUTE_MS // step_ms, _by_time(step_ms)), query)
        case "route-stats":
            wanted = query.get("api_route_substring", "")
            chosen = [row for row in rows if wanted in row.endpoint]
            return _page(_grouped(chosen, lambda row: row.endpoint, _by_route), query)
        case "subject-stats":
            return _page(_grouped(rows, lambda row: row.caller.owner, _by_subject), query)
        case "user-stats":
            return _page(_grouped(rows, _actor_key, _by_actor), query)
        case _:
            raise InvalidInsightsQuery(f"{kind!r} is not known: ask for summary, time, route, subject or user stats")


def _acts_for(directory: Directory, organization: str) -> Callable[[Caller], bool]:
    found = directory.find_organization(organization)
    members = found.members if found is not None else frozenset()
    known: dict[str, bool] = {}

    def decide(caller: Caller) -> bool:
        if caller.installation is not None:
            installation = directory.find_installation(int(caller.installation.partition(":")[2]))
            return installation is not None and installation.account == organization
        if caller.repository is not None:
            return caller.repository.startswith(f"repository:{organization}/")
        if caller.user is not None and caller.user.partition(":")[2] in members:
            return True
        app = directory.find_app(int(caller.app.partition(":")[2])) if caller.app is not None else None
        return app is not None and app.owner == organization

    def acts_for(caller: Caller) -> bool:
        key = f"{caller.owner} {caller.app} {caller.token}"
        if key not in known:
            known[key] = decide(caller)
        return known[key]

    return acts_for


def _of_actor(rows: list[ActivityRow], rest: list[str]) -> list[ActivityRow]:
    if len(rest) == 2 and rest[0] == "users":
        return [row for row in rows if row.caller.user == f"user:{rest[1]}"]
    if len(rest) == 2:
        actor_type, actor = rest
        return [
            row for row in rows if ACTOR_TYPES.get(row.caller.kind) == actor_type and actor in _names_of(row.caller)
        ]
    return [row for row in rows if row.caller.user == f"user:{rest[0]}"] if len(rest) == 1 else rows


def _names_of(caller: Caller) -> set[str]:
    return {
        value.partition(":")[2] for value in (caller.installation, caller.app, caller.token, caller.repository) if value
    }


def _counts(rows: Iterable[ActivityRow]) -> dict[str, int]:
    rows = list(rows)
    return {
        "total_request_count": sum(row.total for row in rows),
        "rate_limited_request_count": sum(row.primary + row.secondary for row in rows),
        "secondary_limited_request_count": sum(row.secondary for row in rows),
    }


def _times(rows: list[ActivityRow]) -> dict[str, str | None]:
    limited_ms = max(row.last_limited_ms for row in rows)
    return {
        "last_rate_limited_timestamp": _say(limited_ms) if limited_ms else None,
        "last_request_timestamp": _say(max(row.last_ms for row in rows)),
    }


def _grouped(
    rows: Iterable[ActivityRow],
    key: Callable[[ActivityRow], Hashable],
    tell: Callable[[list[ActivityRow]], dict[str, Any]],
) -> list[dict[str, Any]]:
    groups: dict[Hashable, list[ActivityRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [{**tell(some), **_counts(some)} for some in groups.values()]


def _by_time(step_ms: int) -> Callable[[list[ActivityRow]], dict[str, Any]]:
    return lambda rows: {"timestamp": _say(rows[0].minute * MINUTE_MS // step_ms * step_ms)}


def _by_route(rows: list[ActivityRow]) -> dict[str, Any]:
    method, _, route = rows[0].endpoint.partition(" ")
    return {"http_method": method, "api_route": route, **_times(rows)}


def _by_subject(rows: list[ActivityRow]) -> dict[str, Any]:
    kind, _, name = rows[0].caller.owner.partition(":")
    return {"subject_type": kind, "subject_name": name, "subject_id": name, **_times(rows)}


def _actor_key(row: ActivityRow) -> Hashable:
    caller = row.caller
    return (caller.kind.value, caller.installation or caller.app or caller.token or caller.owner)


def _by_actor(rows: list[ActivityRow]) -> dict[str, Any]:
    caller = rows[0].caller
    actor = caller.installation or caller.app or caller.token or caller.owner
    is_oauth = ACTOR_TYPES.get(caller.kind) == "oauth_app"
    app = caller.app.partition(":")[2] if caller.app is not None else None
    return {
        "actor_type": ACTOR_TYPES.get(caller.kind, "none"),
        "actor_name": actor,
        "actor_id": actor.partition(":")[2],
        "integration_id": None if is_oauth else app,
        "oauth_application_id": app if is_oauth else None,
        **_times(rows),
    }


def _page(rows: list[dict[str, Any]], query: Mapping[str, str]) -> list[dict[str, Any]]:
    sort = query.get("sort", "timestamp" if rows and "timestamp" in rows[0] else "total_request_count")
    if rows and sort not in rows[0]:
        raise InvalidInsightsQuery(f"{sort!r} is no field to sort by: there are {', '.join(rows[0])}")
    rows.sort(key=lambda row: (row[sort] is not None, row[sort]), reverse=query.get("direction", "desc") == "desc")
    size = min(MAX_PAGE_ROWS, max(1, _number(query, "per_page", 30)))
    first = (max(1, _number(query, "page", 1)) - 1) * size
    return rows[first : first + size]


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInsightsQuery(f"{name} is no number: {text[:40]!r}")
    return int(text)


def _moment(query: Mapping[str, str], name: str, *, needed: bool = False) -> int:
    text = query.get(name)
    if text is None:
        if needed:
            raise InvalidInsightsQuery(f"{name} is missing: say since when, as 2027-01-31T12:00:00Z")
        return 0
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInsightsQuery(f"{name} is no moment: write it as 2027-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return int(found.timestamp() * 1_000)


def _step_ms(text: str) -> int:
    units = {"m": MINUTE_MS, "h": 60 * MINUTE_MS, "d": 24 * 60 * MINUTE_MS}
    is_number = text.isascii() and text[:-1].isdigit() and len(text) <= 6
    if not is_number or text[-1:] not in units or int(text[:-1]) == 0:
        raise InvalidInsightsQuery("timestamp_increment is no length: write 5m, 1h or 1d")
    return int(text[:-1]) * units[text[-1]]


def _say(moment_ms: int) -> str:
    return datetime.datetime.fromtimestamp(moment_ms / 1_000, tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
