"""What is answered in the service's place, and who may see it."""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
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
    held,
    replies,
    run,
)
from tests.waiting import wait_on_loop_until
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config import LimiterSettings
from wharf.limits.core.callers.directory import Directory, Organization
from wharf.limits.core.plans import Charge
from wharf.limits.core.store_calls import CounterReading
from wharf.limits.decisions import DecisionService
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.rules import read_directory, read_rules
from wharf.limits.stores.memory import MemoryStore

SINCE = "min_timestamp=2020-01-01T00:00:00Z"
INSIGHTS = "/orgs/acme/insights/api"


def a_desk_with_insights(*, owners: str = '["ada"]') -> DecisionService:
    world = MovingWorld()
    desk = a_desk(world=world, settings=LimiterSettings(has_insights=True))
    desk.caller_resolver.set_directory(
        read_directory(DIRECTORY.replace('members = ["ada"]', f'members = ["ada"]\nowners = {owners}'))
    )
    return desk


def look(desk: DecisionService, path: str, *, token: str | None = ADA, query: str = SINCE) -> Heard:
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
    desk.caller_resolver.set_directory(read_directory(bound))

    heard = look(desk, "summary-stats", token=OAUTH)

    assert (heard.status, heard.json()["message"]) == (403, "This token needs one of the scopes admin:org, read:org.")


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("summary-stats", ""),
        ("nothing", SINCE),
        ("time-stats", f"{SINCE}&page=x"),
        ("time-stats", f"{SINCE}&timestamp_increment=%C2%B2h"),  # A digit to Python, and no number.
    ],
)
def test_a_question_that_cannot_be_answered_is_told_why(path: str, query: str) -> None:
    desk = a_desk_with_insights()
    ask(desk, Caller(token=ADA))

    assert look(desk, path, query=query).status == 422


class _BrokenDirectory:
    """A directory that fails one day."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:  # Whatever else is asked.
        return getattr(self._directory, name)

    def find_organization(self, login: str) -> Organization | None:
        if self.is_broken:
            raise LookupError(login)
        return self._directory.find_organization(login)


def test_a_page_that_fails_is_a_500_with_limits_and_its_slot_is_free() -> None:
    desk = a_desk_with_insights()
    directory = _BrokenDirectory(desk.caller_resolver.directory)
    desk.caller_resolver.set_directory(directory)
    assert look(desk, "summary-stats").headers["x-ratelimit-used"] == "1"
    directory.is_broken = True

    heard = look(desk, "summary-stats")

    assert (heard.status, heard.json()["message"]) == (500, "Server Error")
    assert heard.headers["x-ratelimit-used"] == "1"  # It costs no more than any fault of the service.
    assert (held(desk), desk.running_requests) == (0, {})


class _SilentStore(MemoryStore):
    """Charges, and never tells what a counter is."""

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        await asyncio.Event().wait()
        return await super().peek(charges)


def test_a_caller_who_leaves_while_a_page_is_looked_up_holds_no_slot() -> None:
    world, rules = MovingWorld(), read_rules("")

    async def scenario() -> tuple[int, int]:
        desk = DecisionService(
            LimitEvaluator(rules, _SilentStore(world, rules), lambda: world.now_ns() // 1_000_000), world
        )
        caller = Caller("/rate_limit")
        asking = asyncio.ensure_future(caller.call(LimitsMiddleware(replies(), desk)))
        await wait_on_loop_until(lambda: bool(desk.running_requests), what="the page is looked up")
        while_asked = held(desk, "address:192.0.2.7")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return while_asked, held(desk, "address:192.0.2.7")

    assert run(scenario) == (1, 0)


def test_what_no_limit_refused_is_not_told_as_limited() -> None:
    desk = a_desk_with_insights()
    batch = msgspec.json.encode({"objects": [{"oid": str(number)} for number in range(101)]})
    malformed = Caller("/graphql", method="POST", token=ADA, body=b"no query")
    too_many = Caller("/acme/site.git/info/lfs/objects/batch", method="POST", token=ADA, body=batch)

    assert [ask(desk, caller).status for caller in (malformed, too_many)] == [400, 413]

    assert look(desk, "summary-stats").json() == {
        "total_request_count": 3,  # This question is one of them.
        "rate_limited_request_count": 0,
        "secondary_limited_request_count": 0,
    }


def test_unless_it_is_switched_on_the_service_answers_for_organizations() -> None:
    heard = ask(a_desk(), Caller(f"{INSIGHTS}/summary-stats", token=ADA, query=SINCE), replies(body=[b"the service's"]))

    assert heard.body == b"the service's"


def test_a_token_that_expires_says_when_also_while_its_user_is_limited() -> None:
    desk = a_desk('[[rule]]\nname = "core"\nceiling = 1\n')
    expiring = DIRECTORY.replace('name = "laptop",', 'name = "laptop", expires = 2030-06-14T15:09:46Z,')
    desk.caller_resolver.set_directory(read_directory(expiring))

    heard = [ask(desk, Caller(token=ADA)) for _ in range(2)]

    assert [each.status for each in heard] == [200, 403]
    assert {each.headers["github-authentication-token-expiration"] for each in heard} == {"2030-06-14 15:09:46 UTC"}
