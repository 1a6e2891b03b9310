"""What is answered in the service's place, and who may see it."""

from typing import Any

import pytest

from tests.limits.front.desks import (
    ADA,
    DIRECTORY,
    INSTALLATION,
    OAUTH,
    Caller,
    Heard,
    MovingWorld,
    a_desk,
    ask,
    replies,
)
from wharf.limits.configuration import Settings
from wharf.limits.desk import Desk
from wharf.limits.rules import read_directory

SINCE = "min_timestamp=2020-01-01T00:00:00Z"
INSIGHTS = "/orgs/acme/insights/api"


def a_desk_with_insights(*, owners: str = '["ada"]') -> Desk:
    world = MovingWorld()
    desk = a_desk(world=world, settings=Settings(has_insights=True))
    desk.callers.use(read_directory(DIRECTORY.replace('members = ["ada"]', f'members = ["ada"]\nowners = {owners}')))
    return desk


def look(desk: Desk, path: str, *, token: str | None = ADA, query: str = SINCE) -> Heard:
    return ask(desk, Caller(f"{INSIGHTS}/{path}", token=token, query=query), replies(body=[b"the service's"]))


def test_an_owner_sees_what_was_asked_in_the_name_of_the_organization_in_the_shape_that_clients_know() -> None:
    desk = a_desk_with_insights()
    for token in (ADA, OAUTH, INSTALLATION, INSTALLATION):
        ask(desk, Caller("/repos/acme/site/issues", token=token))

    told: dict[str, Any] = {
        path: look(desk, path).json()
        for path in ("summary-stats", "route-stats/installation/71", "subject-stats", "user-stats/ada")
    }

    assert told["summary-stats"] == {
        "total_request_count": 5,  # This question is one of them.
        "rate_limited_request_count": 0,
        "secondary_limited_request_count": 0,
    }
    (route,) = told["route-stats/installation/71"]
    assert (route["http_method"], route["total_request_count"]) == ("GET", 2)
    assert set(route) >= {"api_route", "last_rate_limited_timestamp", "last_request_timestamp"}
    assert {subject["subject_name"] for subject in told["subject-stats"]} == {"ada", "71"}
    assert {actor["actor_type"] for actor in told["user-stats/ada"]} == {"classic_pat", "oauth_app"}


def test_insights_cost_and_tell_like_any_request() -> None:
    heard = look(a_desk_with_insights(), "summary-stats")

    assert (heard.status, heard.headers["x-ratelimit-used"]) == (200, "1")


@pytest.mark.parametrize(
    ("token", "owners", "path", "status"),
    [
        (None, '["ada"]', INSIGHTS, 404),
        (INSTALLATION, '["ada"]', INSIGHTS, 404),
        (ADA, "[]", INSIGHTS, 403),
        (ADA, '["ada"]', "/orgs/nobody/insights/api", 404),
        (OAUTH, '["ada"]', INSIGHTS, 200),
    ],
    ids=["nobody", "an installation", "a member", "another organization", "a token with read:org"],
)
def test_only_owners_see_an_organization_and_others_learn_no_more_than_they_know(
    token: str | None, owners: str, path: str, status: int
) -> None:
    desk = a_desk_with_insights(owners=owners)

    assert ask(desk, Caller(f"{path}/summary-stats", token=token, query=SINCE)).status == status


def test_a_token_with_other_scopes_is_told_which_it_needs() -> None:
    desk = a_desk_with_insights()
    bound = DIRECTORY.replace('members = ["ada"]', 'owners = ["ada"]').replace('"repo", "read:org"', '"repo"')
    desk.callers.use(read_directory(bound))

    heard = look(desk, "summary-stats", token=OAUTH)

    assert (heard.status, heard.json()["message"]) == (403, "This token needs one of the scopes admin:org, read:org.")


@pytest.mark.parametrize(
    ("path", "query"), [("summary-stats", ""), ("nothing", SINCE), ("time-stats", f"{SINCE}&page=x")]
)
def test_a_question_that_cannot_be_answered_is_told_why(path: str, query: str) -> None:
    desk = a_desk_with_insights()
    ask(desk, Caller(token=ADA))

    assert look(desk, path, query=query).status == 422


def test_unless_it_is_switched_on_the_service_answers_for_organizations() -> None:
    heard = ask(a_desk(), Caller(f"{INSIGHTS}/summary-stats", token=ADA, query=SINCE), replies(body=[b"the service's"]))

    assert heard.body == b"the service's"


def test_a_token_that_expires_says_when_also_while_its_user_is_limited() -> None:
    desk = a_desk('[[rule]]\nname = "core"\nceiling = 1\n')
    expiring = DIRECTORY.replace('name = "laptop",', 'name = "laptop", expires = 2030-06-14T15:09:46Z,')
    desk.callers.use(read_directory(expiring))

    heard = [ask(desk, Caller(token=ADA)) for _ in range(2)]

    assert [each.status for each in heard] == [200, 403]
    assert {each.headers["github-authentication-token-expiration"] for each in heard} == {"2030-06-14 15:09:46 UTC"}
