"""API insights: which requests belong to an organization, how they are grouped, sorted and paged."""

from ipaddress import ip_address
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.builders import a_user, a_workflow, an_installation, anonymous
from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.callers.directory import App, Installation, MemoryDirectory, Organization, User
from wharf.limits.core.callers.recognition import CredentialOwner, make_opaque_caller, make_owner_caller
from wharf.limits.decisions.activity import ActivityRow
from wharf.limits.decisions.insights import (
    InvalidInsightsQuery,
    compute_insights,
    compute_insights_page,
    read_time_range,
)

MINUTE = 30_000_000  # 2027-01-15T08:00:00Z
DIRECTORY = MemoryDirectory(
    organizations={"acme": Organization(login="acme", members=frozenset({"ada"}))},
    installations={
        71: Installation(id=71, app=7, account="acme"),
        72: Installation(id=72, app=7, account="other"),
    },
    apps={7: App(id=7, owner="acme"), 8: App(id=8, owner="other")},
    users={"ada": User(login="ada", id=5), "12": User(login="12", id=6)},
)


def make_row(
    caller: Caller | None = None,
    endpoint: str = "GET /x",
    *,
    minute: int = MINUTE,
    total: int = 1,
    primary: int = 0,
    secondary: int = 0,
    last_s: int = 0,
    limited_s: int | None = None,
    resource: str = "acme/site",
    bucket: str = "core",
) -> ActivityRow:
    """Return a row; its times are in seconds after `MINUTE`."""
    start_ms = MINUTE * 60_000
    limited_ms = 0 if limited_s is None else start_ms + limited_s * 1_000
    return ActivityRow(
        minute,
        caller or a_user(),
        endpoint,
        total,
        primary,
        secondary,
        start_ms + last_s * 1_000,
        limited_ms,
        resource,
        bucket,
    )


def compute(path: str, *rows: ActivityRow, organization: str = "acme", **query: str) -> Any:
    return compute_insights(rows, DIRECTORY, organization, path, query)


@pytest.mark.parametrize(
    ("caller", "resource", "expected"),
    [
        (a_user("ada"), "acme/site", 1),
        (a_user("eve"), "acme/site", 1),  # An outsider, who acts on a resource of the organization.
        (anonymous(), "acme", 1),
        (a_user("ada"), "other/tool", 0),  # A member, who acts on a resource of another organization.
        (a_user("ada"), "acme-labs/site", 0),
        (a_user("ada"), "", 0),
        (an_installation(71), "other/tool", 0),
        (a_workflow(), "other", 0),
    ],
)
def test_activity_belongs_to_the_organization_that_owns_the_resource(
    caller: Caller, resource: str, expected: int
) -> None:
    assert compute("summary-stats", make_row(caller, resource=resource))["total_request_count"] == expected


def test_an_unknown_organization_has_no_activity() -> None:
    assert compute("summary-stats", make_row(), organization="nobody")["total_request_count"] == 0


def test_an_organization_is_found_in_any_spelling() -> None:
    assert compute("summary-stats", make_row(), organization="Acme")["total_request_count"] == 1


def test_a_summary_adds_up_all_requests_and_refusals() -> None:
    rows = [make_row(total=9, primary=2, secondary=1), make_row(total=5, secondary=3), make_row(resource="other")]

    assert compute("/summary-stats/", *rows) == {
        "total_request_count": 14,
        "rate_limited_request_count": 6,
        "secondary_limited_request_count": 4,
    }


@pytest.mark.parametrize(
    ("actor", "expected"),
    [
        ("", 31),
        ("/users/ada", 7),
        ("/users/eve", 0),
        ("/users/5", 7),
        ("/users/6", 16),
        ("/users/77", 0),
        ("/ada", 7),
        ("/5", 7),
        ("/12", 16),  # No user has this id, so it is a login.
        ("/classic_pat/t1", 1),
        ("/oauth_app/8", 2),
        ("/oauth_app/t1", 2),
        ("/github_app_user_to_server/7", 4),
        ("/installation/71", 8),
        ("/installation/7", 8),
        ("/installation/8", 0),
        ("/oauth_app/7", 0),
        ("/classic_pat/", 0),
    ],
)
def test_a_path_can_name_one_actor(actor: str, expected: int) -> None:
    rows = [
        make_row(a_user(), total=1),
        make_row(a_user(kind=CredentialKind.OAUTH_TOKEN, app="app:8"), total=2),
        make_row(a_user(kind=CredentialKind.APP_USER_TOKEN, app="app:7"), total=4),
        make_row(an_installation(71), total=8),
        make_row(a_user("12", token="t9"), total=16),
    ]

    assert compute(f"summary-stats{actor}", *rows)["total_request_count"] == expected


ADDRESS = ip_address("192.0.2.7")
OPAQUE = make_opaque_caller("0a1b2c3d4e5f60718293a4b5c6d7e8f9", ADDRESS)
RESOLVED_USER = make_owner_caller(CredentialOwner(user="Eve", app="ci"), "f" * 32, ADDRESS, DIRECTORY)
RESOLVED_APP = make_owner_caller(CredentialOwner(app="tools/ci"), "e" * 32, ADDRESS, DIRECTORY)
RESOLVED_ORGANIZATION = make_owner_caller(CredentialOwner(organization="Labs"), "d" * 32, ADDRESS, DIRECTORY)
ALL_CALLERS = [
    *(OPAQUE, RESOLVED_USER, RESOLVED_APP, RESOLVED_ORGANIZATION, anonymous(), a_user(), a_workflow()),
    *(an_installation(71), a_user(kind=CredentialKind.OAUTH_TOKEN, app="app:8")),
]


@pytest.mark.parametrize(
    ("actor", "expected"),
    [
        ("opaque/0a1b2c3d4e5f6071", OPAQUE),
        ("opaque/0a1b2c3d4e5f60718293a4b5c6d7e8f9", OPAQUE),
        ("resolved/ffffffffffffffff", RESOLVED_USER),
        ("resolved/eve", RESOLVED_USER),
        ("users/eve", RESOLVED_USER),
        ("resolved/ci", RESOLVED_USER),
        ("resolved/tools/ci", RESOLVED_APP),
        ("resolved/labs", RESOLVED_ORGANIZATION),
        ("none/anonymous", anonymous()),
    ],
)
def test_an_actor_that_the_directory_does_not_list_can_be_selected(actor: str, expected: Caller) -> None:
    rows = [make_row(caller, total=1 << number) for number, caller in enumerate(ALL_CALLERS)]

    assert compute(f"summary-stats/{actor}", *rows)["total_request_count"] == 1 << ALL_CALLERS.index(expected)


def test_an_address_of_a_caller_without_a_credential_selects_nothing() -> None:
    assert compute("summary-stats/none/192.0.2.7", make_row(anonymous()))["total_request_count"] == 0


@given(st.lists(st.sampled_from(ALL_CALLERS), min_size=1, max_size=20))
def test_each_actor_of_a_report_is_selected_by_its_type_and_id(callers: list[Caller]) -> None:
    rows = [make_row(caller) for caller in callers]

    for actor in compute("user-stats", *rows, per_page="100"):
        selected = compute(f"user-stats/{actor['actor_type']}/{actor['actor_id']}", *rows, per_page="100")
        assert actor in selected
        assert {other["actor_type"] for other in selected} == {actor["actor_type"]}


@pytest.mark.parametrize(
    ("step", "timestamps"),
    [
        ("1m", [("2027-01-15T08:00:00Z", 1), ("2027-01-15T08:04:00Z", 2), ("2027-01-15T08:05:00Z", 4)]),
        ("5m", [("2027-01-15T08:00:00Z", 3), ("2027-01-15T08:05:00Z", 4)]),
        ("2h", [("2027-01-15T08:00:00Z", 7)]),
        ("1d", [("2027-01-15T00:00:00Z", 7)]),
    ],
)
def test_requests_are_grouped_by_time(step: str, timestamps: list[tuple[str, int]]) -> None:
    rows = [
        make_row(minute=MINUTE, total=1),
        make_row(minute=MINUTE + 4, total=2),
        make_row(minute=MINUTE + 5, total=4),
    ]

    groups = compute("time-stats", *rows, timestamp_increment=step, direction="asc")

    assert [(group["timestamp"], group["total_request_count"]) for group in groups] == timestamps


def test_time_steps_are_an_hour_unless_the_query_says_otherwise() -> None:
    groups = compute("time-stats", make_row(), make_row(minute=MINUTE + 59), make_row(minute=MINUTE + 60))

    assert [group["timestamp"] for group in groups] == ["2027-01-15T09:00:00Z", "2027-01-15T08:00:00Z"]


@pytest.mark.parametrize("step", ["", "m", "0m", "1s", "-1m", "1.5h", "999999m", "²m", "m5"])
def test_an_invalid_time_step_is_refused(step: str) -> None:
    with pytest.raises(InvalidInsightsQuery, match="not a duration"):
        compute("time-stats", timestamp_increment=step)


def test_the_longest_time_step_has_five_digits() -> None:
    assert len(compute("time-stats", make_row(), timestamp_increment="99999m")) == 1


def test_requests_are_grouped_by_route() -> None:
    rows = [
        make_row(endpoint="GET /a", total=2, primary=1, last_s=5, limited_s=4),
        make_row(endpoint="GET /a", total=3, last_s=9, limited_s=2),
        make_row(endpoint="POST /a", total=1, last_s=7),
    ]

    assert compute("route-stats", *rows) == [
        {
            "http_method": "GET",
            "api_route": "/a",
            "last_rate_limited_timestamp": "2027-01-15T08:00:04Z",
            "last_request_timestamp": "2027-01-15T08:00:09Z",
            "total_request_count": 5,
            "rate_limited_request_count": 1,
            "secondary_limited_request_count": 0,
        },
        {
            "http_method": "POST",
            "api_route": "/a",
            "last_rate_limited_timestamp": None,
            "last_request_timestamp": "2027-01-15T08:00:07Z",
            "total_request_count": 1,
            "rate_limited_request_count": 0,
            "secondary_limited_request_count": 0,
        },
    ]


def test_routes_can_be_selected_by_a_part_of_them() -> None:
    rows = [make_row(endpoint=endpoint) for endpoint in ("GET /a/b", "GET /b/a", "GET /c")]

    assert [route["api_route"] for route in compute("route-stats", *rows, api_route_substring="/b")] == ["/a/b", "/b/a"]


def test_requests_are_grouped_by_the_owner_of_their_limits() -> None:
    rows = [make_row(a_user("ada", token="t1")), make_row(a_user("ada", token="t2")), make_row(an_installation(71))]
    rows += [make_row(anonymous()), make_row(anonymous("192.0.2.8"))]

    groups = compute("subject-stats", *rows, sort="subject_name", direction="desc")
    groups.sort(key=lambda group: ("user", "installation", "address").index(group["subject_type"]))

    fields = ("subject_type", "subject_name", "subject_id", "total_request_count")
    assert [tuple(group[field] for field in fields) for group in groups] == [
        ("user", "ada", 5, 2),
        ("installation", "71", "71", 1),
        ("address", "anonymous", "anonymous", 2),
    ]


def test_requests_are_grouped_by_resource_with_the_number_of_their_senders() -> None:
    rows = [
        make_row(a_user("ada"), total=2, last_s=3),
        make_row(a_user("eve"), total=3, primary=1, last_s=1, limited_s=1),
        make_row(anonymous(), resource="acme", total=1),
        make_row(a_user("ada"), resource="acme/tool", total=1),
        make_row(a_user("ada"), resource="other/site", total=9),
    ]

    groups = compute("resource-stats", *rows)

    assert groups[0] == {
        "resource_type": "repository",
        "resource_name": "acme/site",
        "subject_count": 2,
        "last_rate_limited_timestamp": "2027-01-15T08:00:01Z",
        "last_request_timestamp": "2027-01-15T08:00:03Z",
        "total_request_count": 5,
        "rate_limited_request_count": 1,
        "secondary_limited_request_count": 0,
    }
    assert [(group["resource_type"], group["resource_name"]) for group in groups[1:]] == [
        ("organization", "acme"),
        ("repository", "acme/tool"),
    ]
    assert [group["resource_name"] for group in compute("resource-stats", *rows, resource_name_substring="too")] == [
        "acme/tool"
    ]


def test_requests_are_grouped_by_bucket() -> None:
    rows = [make_row(total=2), make_row(bucket="search", total=3), make_row(bucket="search", total=1)]

    groups = compute("bucket-stats", *rows)

    assert [(group["bucket"], group["total_request_count"]) for group in groups] == [("search", 4), ("core", 2)]


def test_requests_are_grouped_by_actor_and_resource_with_membership() -> None:
    rows = (
        make_row(a_user("ada"), total=3, primary=1),
        make_row(a_user("ada"), total=2, resource="acme/tool"),
        make_row(a_user("eve")),
        make_row(an_installation(71), resource="acme"),
    )

    groups = compute("actor-resource-stats", *rows, sort="actor_name", direction="asc")

    assert [(each["user_name"], each["is_member"], each["resource_type"]) for each in groups] == [
        (None, None, "organization"),
        ("ada", True, "repository"),
        ("ada", True, "repository"),
        ("eve", False, "repository"),
    ]
    assert sorted(
        (each["resource_name"], each["total_request_count"], each["rate_limited_request_count"])
        for each in groups
        if each["user_name"] == "ada"
    ) == [("acme/site", 3, 1), ("acme/tool", 2, 0)]


def test_numbers_are_sorted_before_texts() -> None:
    rows = [make_row(a_user("ada")), make_row(a_user("eve")), make_row(a_user("12"))]

    groups = compute("subject-stats", *rows, sort="subject_id", direction="asc")

    assert [group["subject_id"] for group in groups] == [5, 6, "eve"]


ACTOR_FIELDS = (
    "actor_type",
    "actor_name",
    "actor_id",
    "integration_id",
    "oauth_application_id",
    "user_name",
    "user_id",
)


@pytest.mark.parametrize(
    ("caller", "expected"),
    [
        (a_user("ada"), ("classic_pat", "token:t1", "t1", None, None, "ada", 5)),
        (
            a_user("ada", kind=CredentialKind.OAUTH_TOKEN, app="app:8"),
            ("oauth_app", "app:8", "8", None, "8", "ada", 5),
        ),
        (
            a_user("ada", kind=CredentialKind.APP_USER_TOKEN, app="app:7"),
            ("github_app_user_to_server", "app:7", "7", "7", None, "ada", 5),
        ),
        (an_installation(71), ("installation", "installation:71", "71", "7", None, None, None)),
        (a_workflow(), ("installation", "token:w1", "w1", None, None, None, None)),
        (
            Caller(
                kind=CredentialKind.MACHINE, caller_class=CallerClass.MACHINE, owner="node:n1", address="", user="user:ada"
            ),
            ("none", "node:n1", "n1", None, None, "ada", 5),
        ),
        (anonymous(), ("none", "address:anonymous", "anonymous", None, None, None, None)),
        (
            a_user("eve"),
            ("classic_pat", "token:t1", "t1", None, None, "eve", None),
        ),
    ],
)  # fmt: skip
def test_an_actor_is_described_by_its_credential(caller: Caller, expected: tuple[str | int | None, ...]) -> None:
    (actor,) = compute("user-stats", make_row(caller))

    assert tuple(actor[field] for field in ACTOR_FIELDS) == expected
    assert actor["total_request_count"] == 1


def test_requests_are_grouped_by_actor() -> None:
    rows = [
        make_row(a_user("ada", token="t1")),
        make_row(a_user("ada", token="t2")),
        make_row(a_user("ada", token="t1", address="192.0.2.9")),
        make_row(a_user("ada", token="t1", kind=CredentialKind.OAUTH_TOKEN)),
    ]

    assert [group["total_request_count"] for group in compute("user-stats", *rows)] == [2, 1, 1]


def test_each_installation_of_an_app_is_an_actor() -> None:
    rows = [make_row(a_user("ada", app="app:7")), make_row(an_installation(71)), make_row(a_workflow())]
    directory = msgspec.structs.replace(
        DIRECTORY, installations={number: Installation(id=number, app=7, account="acme") for number in (71, 73)}
    )

    groups = compute_insights([*rows, make_row(an_installation(73))], directory, "acme", "user-stats", {})

    assert sorted(group["actor_name"] for group in groups) == [
        "app:7",
        "installation:71",
        "installation:73",
        "token:w1",
    ]


@pytest.mark.parametrize(
    ("query", "expected"), [({}, (1, 2)), ({"per_page": "15", "page": "3"}, (3, 3)), ({"page": "9"}, (9, 2))]
)
def test_a_page_is_returned_with_its_number_and_the_number_of_pages(
    query: dict[str, str], expected: tuple[int, int]
) -> None:
    rows = [make_row(endpoint=f"GET /{number}") for number in range(45)]

    page = compute_insights_page(rows, DIRECTORY, "acme", "route-stats", query)

    assert (page.page, page.page_count) == expected


def list_routes(query: dict[str, str], *, count: int = 3) -> list[str]:
    rows = [make_row(endpoint=f"GET /{number}", total=number % 3 + 1, last_s=number) for number in range(count)]
    return [route["api_route"].removeprefix("/") for route in compute("route-stats", *rows, **query)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "210"),
        ({"direction": "asc"}, "012"),
        ({"direction": "desc"}, "210"),
        ({"sort": "api_route"}, "210"),
        ({"sort": "last_request_timestamp", "direction": "asc"}, "012"),
        ({"per_page": "2"}, "21"),
        ({"per_page": "2", "page": "2"}, "0"),
        ({"per_page": "2", "page": "3"}, ""),
        ({"per_page": "0"}, "2"),
        ({"page": "0"}, "210"),
        ({"page": "1"}, "210"),
    ],
)
def test_rows_are_sorted_and_paged(query: dict[str, str], expected: str) -> None:
    assert "".join(list_routes(query)) == expected


@pytest.mark.parametrize(("per_page", "expected"), [(None, 30), ("100", 100), ("101", 100), ("999999999", 100)])
def test_a_page_has_thirty_rows_and_at_most_a_hundred(per_page: str | None, expected: int) -> None:
    query = {} if per_page is None else {"per_page": per_page}

    assert len(list_routes(query, count=120)) == expected


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_rows_without_a_value_are_sorted_before_or_after_all_others(direction: str) -> None:
    rows = [
        make_row(endpoint="GET /a", limited_s=3),
        make_row(endpoint="GET /b"),
        make_row(endpoint="GET /c", limited_s=1),
    ]

    routes = compute("route-stats", *rows, sort="last_rate_limited_timestamp", direction=direction)

    assert "".join(route["api_route"] for route in routes) == ("/b/c/a" if direction == "asc" else "/a/c/b")


def test_no_rows_make_an_empty_page_whatever_the_order() -> None:
    assert compute("route-stats", sort="anything") == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"sort": "color"}, "'color' is not a field"),
        ({"per_page": "x"}, "per_page is not a number"),
        ({"page": "-1"}, "page is not a number"),
        ({"page": "1000000000"}, "page is not a number"),
        ({"page": ""}, "page is not a number"),
    ],
)
def test_an_invalid_order_or_page_is_refused(query: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInsightsQuery, match=message):
        list_routes(query)


def test_unknown_insights_are_refused() -> None:
    with pytest.raises(InvalidInsightsQuery, match="unknown insights 'other'"):
        compute("other")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"min_timestamp": "2027-01-15T08:00:00Z"}, (1_800_000_000_000, None)),
        ({"min_timestamp": "2027-01-15T08:00:00"}, (1_800_000_000_000, None)),
        ({"min_timestamp": "2027-01-15T09:00:00+01:00"}, (1_800_000_000_000, None)),
        (
            {"min_timestamp": "2027-01-15", "max_timestamp": "2027-01-15T08:00:00.5Z"},
            (1_799_971_200_000, 1_800_000_000_500),
        ),
    ],
)
def test_a_time_range_is_read_from_the_query(query: dict[str, str], expected: tuple[int, int | None]) -> None:
    assert read_time_range(query) == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "min_timestamp is missing"),
        ({"max_timestamp": "2027-01-15"}, "min_timestamp is missing"),
        ({"min_timestamp": "soon"}, "min_timestamp is not a time"),
        ({"min_timestamp": "2027-01-15", "max_timestamp": "x"}, "max_timestamp is not a time"),
    ],
)
def test_an_invalid_time_range_is_refused(query: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInsightsQuery, match=message):
        read_time_range(query)
