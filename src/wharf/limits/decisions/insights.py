"""API insights of an organization: requests by actor, route and time, and how many of them a limit refused.

Included are the requests of installations in the organization, workflows of its repositories, apps that it owns, and
credentials of its members. The format is GitHub's, with one more field: `secondary_limited_request_count`.
"""

import datetime
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

from wharf.limits.core.callers.caller import Caller, CredentialKind
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.rule import MINUTE_MS
from wharf.limits.decisions.activity import ActivityRow

ACTOR_TYPES: Final = {
    CredentialKind.PERSONAL_TOKEN: "classic_pat",
    CredentialKind.OAUTH_TOKEN: "oauth_app",
    CredentialKind.CLIENT_SECRET: "oauth_app",
    CredentialKind.APP_USER_TOKEN: "github_app_user_to_server",
    CredentialKind.INSTALLATION_TOKEN: "installation",
    CredentialKind.WORKFLOW_TOKEN: "installation",
}
MAX_PAGE_ROWS: Final = 100
"""The maximum of the parameter `per_page`."""


class InvalidInsightsQuery(ValueError):
    """The query of an insights request is invalid. The text is the error message for the caller."""


def read_time_range(query: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the requested time range as a pair: its start and its end in Unix milliseconds; the end is `None` if not set.

    Raises `InvalidInsightsQuery` if a time is invalid or the start is missing.
    """
    return _read_time_ms(query, "min_timestamp", is_required=True), _read_time_ms(query, "max_timestamp") or None


def compute_insights(
    activity_rows: Iterable[ActivityRow], directory: Directory, organization: str, path: str, query: Mapping[str, str]
) -> Any:  # JSON: an object, or a list of them.
    """Return the reply to one of the paths below `/orgs/{organization}/insights/api/`.

    `activity_rows` are the rows of the requested time range, of all callers. `path` is the part after the prefix, such as
    `route-stats/users/ada`. Raises `InvalidInsightsQuery` if path or query is invalid.
    """
    is_actor_of = _build_actor_test(directory, organization)
    rows = [row for row in activity_rows if is_actor_of(row.caller)]
    report_name, *actor_path = path.strip("/").split("/")
    rows = _filter_by_actor(rows, actor_path)
    match report_name:
        case "summary-stats":
            return _sum_counts(rows)
        case "time-stats":
            step_ms = _read_step_ms(query.get("timestamp_increment", "1h"))
            return _select_page(
                _group_rows(rows, lambda row: row.minute * MINUTE_MS // step_ms, _describe_time(step_ms)), query
            )
        case "route-stats":
            route_part = query.get("api_route_substring", "")
            matching_rows = [row for row in rows if route_part in row.endpoint]
            return _select_page(_group_rows(matching_rows, lambda row: row.endpoint, _describe_route), query)
        case "subject-stats":
            return _select_page(_group_rows(rows, lambda row: row.caller.owner, _describe_subject), query)
        case "user-stats":
            return _select_page(_group_rows(rows, _build_actor_key, _describe_actor), query)
        case _:
            raise InvalidInsightsQuery(
                f"unknown insights {report_name!r}: request summary-stats, time-stats, route-stats, subject-stats or user-stats"
            )


def _build_actor_test(directory: Directory, organization: str) -> Callable[[Caller], bool]:
    """Return a function that returns whether the requests of a caller belong to the organization. It caches its results."""
    record = directory.find_organization(organization)
    members = record.members if record is not None else frozenset()
    results: dict[str, bool] = {}

    def belongs_to_organization(caller: Caller) -> bool:
        """Return whether the requests of a caller belong to the organization, from the directory."""
        if caller.installation is not None:
            installation = directory.find_installation(int(caller.installation.partition(":")[2]))
            return installation is not None and installation.account == organization
        if caller.repository is not None:
            return caller.repository.startswith(f"repository:{organization}/")
        if caller.user is not None and caller.user.partition(":")[2] in members:
            return True
        app = directory.find_app(int(caller.app.partition(":")[2])) if caller.app is not None else None
        return app is not None and app.owner == organization

    def is_actor_of(caller: Caller) -> bool:
        """Return whether the requests of a caller belong to the organization; each result is computed once."""
        key = f"{caller.owner} {caller.app} {caller.token}"
        if key not in results:
            results[key] = belongs_to_organization(caller)
        return results[key]

    return is_actor_of


def _filter_by_actor(rows: list[ActivityRow], actor_path: list[str]) -> list[ActivityRow]:
    """Return the rows of one actor, or all rows if the path names no actor.

    `actor_path` is `["users", login]`, `[actor type, actor id]`, `[login]` or empty.
    """
    if len(actor_path) == 2 and actor_path[0] == "users":
        return [row for row in rows if row.caller.user == f"user:{actor_path[1]}"]
    if len(actor_path) == 2:
        actor_type, actor = actor_path
        return [
            row
            for row in rows
            if ACTOR_TYPES.get(row.caller.kind) == actor_type and actor in _list_actor_ids(row.caller)
        ]
    return [row for row in rows if row.caller.user == f"user:{actor_path[0]}"] if len(actor_path) == 1 else rows


def _list_actor_ids(caller: Caller) -> set[str]:
    """Return the ids by which a path can name this caller."""
    return {
        value.partition(":")[2] for value in (caller.installation, caller.app, caller.token, caller.repository) if value
    }


def _sum_counts(rows: Iterable[ActivityRow]) -> dict[str, int]:
    """Return the numbers of all requests in these rows, of refused ones, and of those that a secondary limit refused."""
    rows = list(rows)
    return {
        "total_request_count": sum(row.total for row in rows),
        "rate_limited_request_count": sum(row.primary + row.secondary for row in rows),
        "secondary_limited_request_count": sum(row.secondary for row in rows),
    }


def _find_last_times(rows: list[ActivityRow]) -> dict[str, str | None]:
    """Return the reply's fields with the times of the last request and of the last refusal in these rows."""
    limited_ms = max(row.last_limited_ms for row in rows)
    return {
        "last_rate_limited_timestamp": _format_time(limited_ms) if limited_ms else None,
        "last_request_timestamp": _format_time(max(row.last_ms for row in rows)),
    }


def _group_rows(
    rows: Iterable[ActivityRow],
    key: Callable[[ActivityRow], Hashable],
    describe_group: Callable[[list[ActivityRow]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Group rows by `key`, and return for each group the fields of `describe_group` and its numbers of requests."""
    groups: dict[Hashable, list[ActivityRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [{**describe_group(group), **_sum_counts(group)} for group in groups.values()]


def _describe_time(step_ms: int) -> Callable[[list[ActivityRow]], dict[str, Any]]:
    """Return a function that describes the rows of one time step by the start of the step."""
    return lambda rows: {"timestamp": _format_time(rows[0].minute * MINUTE_MS // step_ms * step_ms)}


def _describe_route(rows: list[ActivityRow]) -> dict[str, Any]:
    """Return the reply's fields about the endpoint of these rows, which all have the same one."""
    method, _, route = rows[0].endpoint.partition(" ")
    return {"http_method": method, "api_route": route, **_find_last_times(rows)}


def _describe_subject(rows: list[ActivityRow]) -> dict[str, Any]:
    """Return the reply's fields about the owner of the counters, such as a user; it is the same in all rows."""
    subject_type, _, name = rows[0].caller.owner.partition(":")
    return {"subject_type": subject_type, "subject_name": name, "subject_id": name, **_find_last_times(rows)}


def _build_actor_key(row: ActivityRow) -> Hashable:
    """Return a key that is equal for rows of the same actor: credential kind, and installation, app, token or owner."""
    caller = row.caller
    return (caller.kind.value, caller.installation or caller.app or caller.token or caller.owner)


def _describe_actor(rows: list[ActivityRow]) -> dict[str, Any]:
    """Return the reply's fields about the actor of these rows, which all have the same one."""
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
        **_find_last_times(rows),
    }


def _select_page(rows: list[dict[str, Any]], query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Sort the rows of the reply in place, and return the page that the query requests.

    Raises `InvalidInsightsQuery` if the sort field or a number is invalid.
    """
    sort = query.get("sort", "timestamp" if rows and "timestamp" in rows[0] else "total_request_count")
    if rows and sort not in rows[0]:
        raise InvalidInsightsQuery(f"{sort!r} is not a field to sort by: use one of {', '.join(rows[0])}")
    rows.sort(key=lambda row: (row[sort] is not None, row[sort]), reverse=query.get("direction", "desc") == "desc")
    size = min(MAX_PAGE_ROWS, max(1, _read_number(query, "per_page", 30)))
    first = (max(1, _read_number(query, "page", 1)) - 1) * size
    return rows[first : first + size]


def _read_number(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a query parameter as a number, or `default` if it is missing.

    Raises `InvalidInsightsQuery` if it is not a number of at most nine digits.
    """
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInsightsQuery(f"{name} is not a number: {text[:40]!r}")
    return int(text)


def _read_time_ms(query: Mapping[str, str], name: str, *, is_required: bool = False) -> int:
    """Return a query parameter as a time in Unix milliseconds; 0 if it is missing and not required.

    Raises `InvalidInsightsQuery` if it is not a time, or is missing and required.
    """
    text = query.get(name)
    if text is None:
        if is_required:
            raise InvalidInsightsQuery(f"{name} is missing: give a start time such as 2027-01-31T12:00:00Z")
        return 0
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInsightsQuery(f"{name} is not a time: write it as 2027-01-31T12:00:00Z") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return int(time.timestamp() * 1_000)


def _read_step_ms(text: str) -> int:
    """Return a duration such as `5m`, `1h` or `1d` in milliseconds. Raises `InvalidInsightsQuery` for any other text."""
    units = {"m": MINUTE_MS, "h": 60 * MINUTE_MS, "d": 24 * 60 * MINUTE_MS}
    is_number = text.isascii() and text[:-1].isdigit() and len(text) <= 6
    if not is_number or text[-1:] not in units or int(text[:-1]) == 0:
        raise InvalidInsightsQuery("timestamp_increment is not a duration: write 5m, 1h or 1d")
    return int(text[:-1]) * units[text[-1]]


def _format_time(time_ms: int) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1_000, tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
