"""The limiter's own pages: insights and status, and the callers that may read them."""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tests.limits.decision_services import (
    ADA,
    APP_USER,
    DIRECTORY,
    INSTALLATION,
    OAUTH,
    WORKFLOW,
    AdvancingWorld,
    AsgiCaller,
    RecordedReply,
    count_slots,
    make_application,
    make_decision_service,
    run_async,
    send_request,
)
from tests.waiting import wait_on_loop_until
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config import LimiterSettings
from wharf.limits.core.callers.addresses import ProxySettings
from wharf.limits.core.callers.directory import Directory, Organization
from wharf.limits.core.limiter import Grant
from wharf.limits.core.plans import Charge
from wharf.limits.core.store_calls import CounterReading
from wharf.limits.decisions import DecisionService
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.rules import read_directory, read_rules
from wharf.limits.stores.memory import MemoryStore

SINCE = "min_timestamp=2020-01-01T00:00:00Z"
INSIGHTS = "/orgs/acme/insights/api"


def make_service_with_insights(*, owners: str = '["ada"]', proxies: ProxySettings | None = None) -> DecisionService:
    world = AdvancingWorld()
    settings = LimiterSettings(has_insights=True, proxies=proxies or ProxySettings())
    decision_service = make_decision_service(world=world, settings=settings)
    decision_service.caller_resolver.set_directory(
        read_directory(DIRECTORY.replace('members = ["ada"]', f'members = ["ada"]\nowners = {owners}'))
    )
    return decision_service


def request_insights(
    decision_service: DecisionService, path: str, *, token: str | None = ADA, query: str = SINCE
) -> RecordedReply:
    return send_request(
        decision_service,
        AsgiCaller(f"{INSIGHTS}/{path}", token=token, query=query),
        make_application(body=[b"the service's"]),
    )


def test_an_owner_sees_the_requests_for_an_organization_in_the_format_that_clients_know() -> None:
    decision_service = make_service_with_insights()
    for token in (ADA, OAUTH, INSTALLATION, INSTALLATION):
        send_request(decision_service, AsgiCaller("/repos/acme/site/issues", token=token))

    pages: dict[str, Any] = {
        path: request_insights(decision_service, path).json()
        for path in ("summary-stats", "route-stats/installation/71", "subject-stats", "user-stats/ada")
    }

    assert pages["summary-stats"] == {
        "total_request_count": 5,  # Including the request for this page.
        "rate_limited_request_count": 0,
        "secondary_limited_request_count": 0,
    }
    (route,) = pages["route-stats/installation/71"]
    assert (route["http_method"], route["total_request_count"]) == ("GET", 2)
    assert set(route) >= {"api_route", "last_rate_limited_timestamp", "last_request_timestamp"}
    assert {subject["subject_name"] for subject in pages["subject-stats"]} == {"ada", "71"}
    assert {actor["actor_type"] for actor in pages["user-stats/ada"]} == {"classic_pat", "oauth_app"}


def test_insights_are_charged_and_have_limit_headers_as_any_request() -> None:
    reply = request_insights(make_service_with_insights(), "summary-stats")

    assert (reply.status, reply.headers["x-ratelimit-used"]) == (200, "1")


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
def test_only_owners_see_insights_and_others_do_not_learn_whether_the_organization_exists(
    token: str | None, owners: str, path: str, status: int
) -> None:
    decision_service = make_service_with_insights(owners=owners)

    assert (
        send_request(decision_service, AsgiCaller(f"{path}/summary-stats", token=token, query=SINCE)).status == status
    )


def test_a_token_without_a_required_scope_gets_403_with_the_scopes_it_needs() -> None:
    decision_service = make_service_with_insights()
    directory = DIRECTORY.replace('members = ["ada"]', 'owners = ["ada"]').replace('"repo", "read:org"', '"repo"')
    decision_service.caller_resolver.set_directory(read_directory(directory))

    reply = request_insights(decision_service, "summary-stats", token=OAUTH)

    assert (reply.status, reply.json()["message"]) == (403, "This token needs one of the scopes admin:org, read:org.")


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("summary-stats", ""),
        ("nothing", SINCE),
        ("time-stats", f"{SINCE}&page=x"),
        (
            "time-stats",
            f"{SINCE}&timestamp_increment=%C2%B2h",
        ),  # Python treats this character as a digit, but it is not a number.
    ],
)
def test_an_invalid_insights_request_gets_422(path: str, query: str) -> None:
    decision_service = make_service_with_insights()
    send_request(decision_service, AsgiCaller(token=ADA))

    assert request_insights(decision_service, path, query=query).status == 422


class _BrokenDirectory:
    """A directory that raises while `is_broken` is set."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:  # All other methods of the directory.
        return getattr(self._directory, name)

    def find_organization(self, login: str) -> Organization | None:
        if self.is_broken:
            raise LookupError(login)
        return self._directory.find_organization(login)


def test_a_page_that_fails_is_a_500_with_limit_headers_and_its_slot_is_freed() -> None:
    decision_service = make_service_with_insights()
    directory = _BrokenDirectory(decision_service.caller_resolver.directory)
    decision_service.caller_resolver.set_directory(directory)
    assert request_insights(decision_service, "summary-stats").headers["x-ratelimit-used"] == "1"
    directory.is_broken = True

    reply = request_insights(decision_service, "summary-stats")

    assert (reply.status, reply.json()["message"]) == (500, "Server Error")
    assert reply.headers["x-ratelimit-used"] == "1"  # Refunded, as any error of the service.
    assert (count_slots(decision_service), decision_service.running_requests) == (0, {})


class _StuckStore(MemoryStore):
    """A store that charges, and never returns a reading."""

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        await asyncio.Event().wait()
        return await super().peek(charges)


def test_a_caller_that_disconnects_while_a_page_is_rendered_holds_no_slot() -> None:
    world, rules = AdvancingWorld(), read_rules("")

    async def scenario() -> tuple[int, int]:
        decision_service = DecisionService(
            LimitEvaluator(rules, _StuckStore(world, rules), lambda: world.now_ns() // 1_000_000), world
        )
        caller = AsgiCaller("/rate_limit")
        task = asyncio.ensure_future(caller.call(LimitsMiddleware(make_application(), decision_service)))
        await wait_on_loop_until(lambda: bool(decision_service.running_requests), what="the page is rendered")
        slots_while_rendering = count_slots(decision_service, "address:192.0.2.7")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return slots_while_rendering, count_slots(decision_service, "address:192.0.2.7")

    assert run_async(scenario) == (1, 0)


def test_requests_refused_for_other_reasons_than_a_limit_do_not_count_as_limited() -> None:
    decision_service = make_service_with_insights()
    batch = msgspec.json.encode({"objects": [{"oid": str(number)} for number in range(101)]})
    malformed = AsgiCaller("/graphql", method="POST", token=ADA, body=b"no query")
    too_many = AsgiCaller("/acme/site.git/info/lfs/objects/batch", method="POST", token=ADA, body=batch)

    assert [send_request(decision_service, caller).status for caller in (malformed, too_many)] == [400, 413]

    assert request_insights(decision_service, "summary-stats").json() == {
        "total_request_count": 2,  # The batch and the request for this page; a GraphQL request names no resource.
        "rate_limited_request_count": 0,
        "secondary_limited_request_count": 0,
    }


@pytest.mark.parametrize(
    ("owner", "path", "token"),
    [
        ("user:ada", "/rate_limit", ADA),
        ("address:192.0.2.7", "/rate_limit", None),
        ("address:192.0.2.7", "/things", "unknown"),
        ("address:192.0.2.7", "/a/../b", None),
    ],
)
def test_replies_that_charge_no_bucket_report_it_with_grants_too(owner: str, path: str, token: str | None) -> None:
    decision_service = make_decision_service()
    until_ms = decision_service.now_ms() + 3_600_000
    grant = Grant(owner=owner, resource="core", amount=7, until_ms=until_ms, by="ops", reason="a move")
    charged = send_request(decision_service, AsgiCaller(token=ADA if owner == "user:ada" else None))
    decision_service.evaluator.limiter.set_grants([grant])

    headers = send_request(decision_service, AsgiCaller(path, token=token)).headers

    limit = int(charged.headers["x-ratelimit-limit"]) + 7
    assert (int(headers["x-ratelimit-limit"]), int(headers["x-ratelimit-remaining"])) == (limit, limit - 1)


def test_the_service_answers_insights_requests_unless_insights_are_enabled() -> None:
    reply = send_request(
        make_decision_service(),
        AsgiCaller(f"{INSIGHTS}/summary-stats", token=ADA, query=SINCE),
        make_application(body=[b"the service's"]),
    )

    assert reply.body == b"the service's"


def test_replies_show_the_expiry_of_a_token_even_while_its_user_is_limited() -> None:
    decision_service = make_decision_service('[[rule]]\nname = "core"\nceiling = 1\n')
    expiring = DIRECTORY.replace('name = "laptop",', 'name = "laptop", expires = 2030-06-14T15:09:46Z,')
    decision_service.caller_resolver.set_directory(read_directory(expiring))

    replies = [send_request(decision_service, AsgiCaller(token=ADA)) for _ in range(2)]

    assert [reply.status for reply in replies] == [200, 403]
    assert {reply.headers["github-authentication-token-expiration"] for reply in replies} == {"2030-06-14 15:09:46 UTC"}


def send_issue_requests(decision_service: DecisionService, count: int) -> None:
    for number in range(count):
        send_request(decision_service, AsgiCaller(f"/repos/acme/r{number}/issues", token=APP_USER))


def test_owners_see_what_outsiders_do_in_their_repositories_and_not_what_members_do_elsewhere() -> None:
    decision_service = make_service_with_insights()
    send_request(decision_service, AsgiCaller("/repos/acme/site/issues"))
    send_request(decision_service, AsgiCaller("/repos/Acme/site.git/info/refs", token=ADA))
    send_request(decision_service, AsgiCaller("/acme/site.git/info/refs", token=ADA))
    send_request(decision_service, AsgiCaller("/repos/other/tool/issues", token=ADA))
    send_request(decision_service, AsgiCaller("/repos/other/tool/issues", token=INSTALLATION))
    send_request(decision_service, AsgiCaller("/user", token=ADA))

    subjects = request_insights(decision_service, "subject-stats").json()
    resources = request_insights(decision_service, "resource-stats").json()

    assert {(subject["subject_name"], subject["total_request_count"]) for subject in subjects} == {
        ("anonymous", 1),
        ("ada", 3),  # Including the request for this page.
    }
    assert {(resource["resource_name"], resource["total_request_count"]) for resource in resources} == {
        ("acme/site", 3),
        ("acme", 2),
    }


def test_requests_without_a_resource_belong_to_the_account_of_their_installation_or_workflow() -> None:
    decision_service = make_service_with_insights()
    for token in (INSTALLATION, WORKFLOW, ADA):
        send_request(decision_service, AsgiCaller("/search/issues", token=token))

    resources = request_insights(decision_service, "resource-stats").json()

    assert {(resource["resource_name"], resource["total_request_count"]) for resource in resources} == {
        ("acme", 2),  # The installation, and the request for this page.
        ("acme/site", 1),
    }


def test_a_directory_that_fails_after_the_decision_does_not_fail_the_request() -> None:
    decision_service = make_service_with_insights()
    directory = _BrokenDirectory(decision_service.caller_resolver.directory)
    decision_service.caller_resolver.set_directory(directory)
    directory.is_broken = True

    reply = send_request(decision_service, AsgiCaller("/repos/acme/site/issues", token=ADA))

    assert (reply.status, count_slots(decision_service)) == (200, 0)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("", '<{url}&page=2>; rel="next", <{url}&page=3>; rel="last"'),
        (
            "&page=2",
            '<{url}&page=1>; rel="prev", <{url}&page=3>; rel="next", <{url}&page=3>; rel="last", <{url}&page=1>; rel="first"',
        ),
        ("&page=3", '<{url}&page=2>; rel="prev", <{url}&page=1>; rel="first"'),
        ("&page=9", '<{url}&page=3>; rel="prev", <{url}&page=1>; rel="first"'),
    ],
)
@pytest.mark.parametrize(
    ("host", "proxies", "base"),
    [
        ("code.example:8080", ProxySettings(), "http://code.example:8080"),
        ("", ProxySettings(), ""),
        ("a>b", ProxySettings(), ""),
        ("code.example", ProxySettings(hops=1), ""),
    ],
)
def test_a_list_of_insights_links_to_its_other_pages(
    page: str, expected: str, host: str, proxies: ProxySettings, base: str
) -> None:
    decision_service = make_service_with_insights(proxies=proxies)
    send_issue_requests(decision_service, 5)
    query = f"{SINCE}&per_page=2"

    caller = AsgiCaller(
        f"{INSIGHTS}/resource-stats", token=ADA, query=query + page, headers=[("host", host)] if host else []
    )
    link = send_request(decision_service, caller).headers["link"]

    url = f"{base}{INSIGHTS}/resource-stats?min_timestamp=2020-01-01T00%3A00%3A00Z&per_page=2"
    assert link == expected.replace("{url}", url)


def test_a_list_of_one_page_and_a_summary_have_no_links() -> None:
    decision_service = make_service_with_insights()
    send_issue_requests(decision_service, 2)

    replies = [request_insights(decision_service, path) for path in ("resource-stats", "summary-stats")]

    assert [("link" in reply.headers, reply.status) for reply in replies] == [(False, 200)] * 2
