"""API insights of an organization: requests by actor, route, resource and time, and how many of them a limit refused.

Included are all requests about resources of the organization, from all senders; who acted is a column. Requests of its
members about other resources are not included. The format is GitHub's, with further fields and reports.
"""

import datetime
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.caller import Caller, CredentialKind
from wharf.limits.core.callers.directory import Directory, Organization
from wharf.limits.core.resources import get_organization
from wharf.limits.core.rule import MINUTE_MS
from wharf.limits.decisions.activity import ActivityRow
from wharf.limits.decisions.activity_folding import OTHERS, is_others

ACTOR_TYPES: Final = {
    CredentialKind.PERSONAL_TOKEN: "classic_pat",
    CredentialKind.OAUTH_TOKEN: "oauth_app",
    CredentialKind.CLIENT_SECRET: "oauth_app",
    CredentialKind.APP_USER_TOKEN: "github_app_user_to_server",
    CredentialKind.INSTALLATION_TOKEN: "installation",
    CredentialKind.WORKFLOW_TOKEN: "installation",
    CredentialKind.OPAQUE: "opaque",
    CredentialKind.RESOLVED: "resolved",
    CredentialKind.NONE: "none",
    CredentialKind.MACHINE: "none",
}
"""The type of an actor in reports and in paths that select one."""
ANONYMOUS_OWNER: Final = "address:anonymous"
"""The owner that reports show for all callers without a credential."""
MAX_PAGE_ROWS: Final = 100
"""The maximum of the parameter `per_page`."""


class InvalidInsightsQuery(ValueError):
    """The query of an insights request is invalid. The text is the error message for the caller."""


def read_time_range(query: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the requested time range as a pair: its start and its end in Unix milliseconds; the end is `None` if not set.

    Raises `InvalidInsightsQuery` if a time is invalid or the start is missing.
    """
    return _read_time_ms(query, "min_timestamp", is_required=True), _read_time_ms(query, "max_timestamp") or None


class InsightsPage(msgspec.Struct, frozen=True):
    """One page of a report, and where it stands among all pages."""

    body: Any  # JSON: an object, or a list of them.
    page: int = 1
    page_count: int = 1


def _find_user_id(directory: Directory, user: str | None) -> int | None:
    """Return the numeric id of a user such as `user:ada`; `None` if the directory has none."""
    record = directory.find_user(user.partition(":")[2]) if user is not None else None
    return None if record is None else record.id


def compute_insights(
    activity_rows: Iterable[ActivityRow], directory: Directory, organization: str, path: str, query: Mapping[str, str]
) -> Any:  # JSON: an object, or a list of them.
    """Return the body of `compute_insights_page`."""
    return compute_insights_page(activity_rows, directory, organization, path, query).body


def compute_insights_page(
    activity_rows: Iterable[ActivityRow], directory: Directory, organization: str, path: str, query: Mapping[str, str]
) -> InsightsPage:
    """Return the reply to one of the paths below `/orgs/{organization}/insights/api/`.

    `activity_rows` are the rows of the requested time range, of all callers. `path` is the part after the prefix, such as
    `route-stats/users/5`. Raises `InvalidInsightsQuery` if path or query is invalid.
    """
    record = directory.find_organization(organization)
    login = organization if record is None else record.login
    rows = [row for row in activity_rows if row.resource and get_organization(row.resource) == login]
    report_name, *actor_path = path.strip("/").split("/")
    rows = _filter_by_actor(rows, actor_path, directory)
    if report_name == "summary-stats":
        return InsightsPage(_sum_counts(rows))
    match report_name:
        case "time-stats":
            step_ms = _read_step_ms(query.get("timestamp_increment", "1h"))
            groups = _group_rows(rows, lambda row: row.minute * MINUTE_MS // step_ms, _describe_time(step_ms))
        case "route-stats":
            route_part = query.get("api_route_substring", "")
            matching_rows = [row for row in rows if route_part in row.endpoint]
            groups = _group_rows(matching_rows, lambda row: row.endpoint, _describe_route)
        case "subject-stats":
            groups = _group_rows(
                rows,
                lambda row: _get_visible_owner(row.caller),
                functools.partial(_describe_subject, directory=directory),
            )
            groups = _select_by_name(groups, "subject_name", query)
        case "user-stats":
            groups = _group_rows(rows, _build_actor_key, functools.partial(_describe_actor, directory=directory))
            groups = _select_by_name(groups, "actor_name", query)
        case "resource-stats":
            groups = _select_by_name(
                _group_rows(rows, lambda row: row.resource, _describe_resource), "resource_name", query
            )
        case "bucket-stats":
            groups = _group_rows(rows, lambda row: row.bucket, _describe_bucket)
        case "actor-resource-stats":
            groups = _group_rows(
                rows,
                lambda row: (_build_actor_key(row), row.resource),
                functools.partial(_describe_actor_at_resource, directory=directory, organization=record),
            )
            groups = _select_by_name(groups, "actor_name", query)
        case _:
            raise InvalidInsightsQuery(
                f"unknown insights {report_name!r}: request summary-stats, time-stats, route-stats, subject-stats, "
                "user-stats, resource-stats, bucket-stats or actor-resource-stats"
            )
    return _select_page(groups, query)


def _select_by_name(groups: list[dict[str, Any]], field: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the groups whose name contains the text of the parameter `<field>_substring`; all without this parameter."""
    part = query.get(f"{field}_substring", "")
    return [group for group in groups if part in group[field]] if part else groups


def _filter_by_actor(rows: list[ActivityRow], actor_path: list[str], directory: Directory) -> list[ActivityRow]:
    """Return the rows of one actor, or all rows if the path names no actor.

    `actor_path` is `["users", user]`, `[actor type, actor id]`, `[user]` or empty. A user is a numeric id or a login. Each
    actor of a report is found by its type and its id. An id can contain slashes.
    """
    match actor_path:
        case []:
            return rows
        case [user]:
            return _filter_by_user(rows, user, directory)
        case ["users", *parts]:
            return _filter_by_user(rows, "/".join(parts), directory)
        case [actor_type, *parts]:
            actor = "/".join(parts)
            return [
                row
                for row in rows
                if ACTOR_TYPES[row.caller.kind] == actor_type and actor in _list_actor_ids(row.caller)
            ]
        case _:
            raise AssertionError("a list has one of these forms")


def _filter_by_user(rows: list[ActivityRow], name: str, directory: Directory) -> list[ActivityRow]:
    """Return the rows of a user. A number is an id; if no user in these rows has it, it is read as a login."""
    if name.isascii() and name.isdigit():
        users = {row.caller.user for row in rows}
        found = {
            user for user in users if (user_id := _find_user_id(directory, user)) is not None and str(user_id) == name
        }
        if found:
            return [row for row in rows if row.caller.user in found]
    return [row for row in rows if row.caller.user == f"user:{name}"]


def _list_actor_ids(caller: Caller) -> set[str]:
    """Return the ids by which a path can name this caller: those of its credential, and of the owner of its counters."""
    members = (caller.installation, caller.app, caller.token, caller.repository, _get_visible_owner(caller))
    return {value.partition(":")[2] for value in members if value}


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


def _get_visible_owner(caller: Caller) -> str:
    """Return the owner of the counters. Addresses are personal data of outsiders, so they have one name for all."""
    return ANONYMOUS_OWNER if caller.is_anonymous and not is_others(caller) else caller.owner


def _describe_subject(rows: list[ActivityRow], directory: Directory) -> dict[str, Any]:
    """Return the reply's fields about the owner of the counters, such as a user; it is the same in all rows."""
    caller = rows[0].caller
    subject_type, _, name = _get_visible_owner(caller).partition(":")
    user_id = _find_user_id(directory, caller.user) if subject_type == "user" else None
    return {
        "subject_type": subject_type,
        "subject_name": name,
        "subject_id": name if user_id is None else user_id,
        **_find_last_times(rows),
    }


def _describe_resource(rows: list[ActivityRow]) -> dict[str, Any]:
    """Return the reply's fields about a resource of the organization; it is the same in all rows."""
    resource = rows[0].resource
    return {
        "resource_type": "repository" if "/" in resource else "organization",
        "resource_name": resource,
        "subject_count": len({_get_visible_owner(row.caller) for row in rows}),
        **_find_last_times(rows),
    }


def _describe_bucket(rows: list[ActivityRow]) -> dict[str, Any]:
    """Return the reply's fields about a primary bucket, such as `core`; it is the same in all rows."""
    return {"bucket": rows[0].bucket, **_find_last_times(rows)}


def _build_actor_key(row: ActivityRow) -> Hashable:
    """Return a key that is equal for rows of the same actor: credential kind, and installation, app, token or owner."""
    caller = row.caller
    return (caller.kind.value, _get_actor(caller), caller.user)


def _get_actor(caller: Caller) -> str:
    """Return the name of the credential that acted: the installation, app or token, else the owner."""
    return caller.installation or caller.app or caller.token or _get_visible_owner(caller)


def _describe_actor(rows: list[ActivityRow], directory: Directory) -> dict[str, Any]:
    """Return the reply's fields about the actor of these rows, which all have the same one."""
    caller = rows[0].caller
    actor = _get_actor(caller)
    is_oauth = ACTOR_TYPES[caller.kind] == "oauth_app"
    app = caller.app.partition(":")[2] if caller.app is not None else None
    return {
        "actor_type": ACTOR_TYPES[caller.kind],
        "actor_name": actor,
        "actor_id": actor.partition(":")[2],
        "integration_id": None if is_oauth else app,
        "oauth_application_id": app if is_oauth else None,
        "user_name": None if caller.user is None else caller.user.partition(":")[2],
        "user_id": _find_user_id(directory, caller.user),
        **_find_last_times(rows),
    }


def _describe_actor_at_resource(
    rows: list[ActivityRow], directory: Directory, organization: Organization | None
) -> dict[str, Any]:
    """Return the reply's fields about an actor and a resource, which are the same in all rows.

    `is_member` is `None` if the actor is no user, such as an app, or if the directory does not have the organization.
    """
    user, resource = rows[0].caller.user, rows[0].resource
    is_member = None
    if user is not None and organization is not None:
        is_member = user.partition(":")[2] in organization.members | organization.owners
    return {
        **_describe_actor(rows, directory),
        "is_member": is_member,
        "resource_type": "repository" if "/" in resource else "organization",
        "resource_name": resource,
    }


def _select_page(rows: list[dict[str, Any]], query: Mapping[str, str]) -> InsightsPage:
    """Sort the rows of the reply in place, and return the page that the query requests.

    Raises `InvalidInsightsQuery` if the sort field or a number is invalid.
    """
    sort = query.get("sort", "timestamp" if rows and "timestamp" in rows[0] else "total_request_count")
    if rows and sort not in rows[0]:
        raise InvalidInsightsQuery(f"{sort!r} is not a field to sort by: use one of {', '.join(rows[0])}")
    rows.sort(key=lambda row: _build_sort_key(row[sort]), reverse=query.get("direction", "desc") == "desc")
    rows.sort(key=_is_of_others)  # What other processes have not stored by caller follows after all callers.
    size = min(MAX_PAGE_ROWS, max(1, _read_number(query, "per_page", 30)))
    page = max(1, _read_number(query, "page", 1))
    return InsightsPage(rows[(page - 1) * size : page * size], page, max(1, -(-len(rows) // size)))


def _is_of_others(row: Mapping[str, Any]) -> bool:
    """Return whether a row of the reply is the sum of callers that have no row of their own."""
    return OTHERS.owner in (row.get("actor_name"), f"{row.get('subject_type')}:{row.get('subject_name')}")


def _build_sort_key(value: Any) -> tuple[int, int, str]:
    """Return a key that orders numbers before texts, because ids can be either, and missing values first."""
    if value is None:
        return 0, 0, ""
    return (2, 0, value) if isinstance(value, str) else (1, value, "")


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
