"""Content that the service reports with `x-wharf-content`: it counts, and then the limit holds for further requests."""

import asyncio
from collections.abc import Awaitable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.builders import build_rules_text
from tests.limits.decision_services import ADA, OAUTH, WORKFLOW, count_used
from tests.limits.decisions.test_service_with_shared_counters import make_service
from wharf.limits.decisions import AdmittedRequest, DecisionService, IncomingRequest, LocalReply
from wharf.limits.decisions.marked_endpoints import MAX_UNEXPECTED_MARKS

RULES = build_rules_text(
    '[[rule]]\nname = "content"\ncounts = "content"\nwindow = "1m"\nceiling = 2',
    '[[rule]]\nname = "wiki"\nmatch = ["POST /wiki/*"]\ncounts = "content"\nwindow = "1m"\nceiling = 1',
    '[[endpoint]]\nmatch = ["POST /issues"]\ncontent = true',
    '[[endpoint]]\nmatch = ["POST /forms/{form}"]\ncontent_marked = true',
    '[[endpoint]]\nmatch = ["POST /graphql"]\ninterface = "graphql"',
)
MANY_RULES = build_rules_text('[[rule]]\nname = "content"\ncounts = "content"\nwindow = "1h"\nceiling = 20')
MUTATION = b'{"query": "mutation { createPage { id } }"}'
QUERY = b'{"query": "{ viewer { id } }"}'


class Sender:
    """Sends requests of one caller, of which the service marks some."""

    def __init__(self, service: DecisionService) -> None:
        self.service = service

    def send(
        self, line: str, *, is_marked: bool = False, route: str = "", token: str = ADA, body: bytes | None = None
    ) -> AdmittedRequest | LocalReply:
        """Send one request to its end, and return the decision about it. `route` is the one that a mark names."""
        method, _, path = line.partition(" ")
        incoming = IncomingRequest(method, path, "", "192.0.2.7", f"Bearer {token}")

        async def scenario() -> AdmittedRequest | LocalReply:
            result = await self.service.admit(incoming, body)
            if isinstance(result, AdmittedRequest):
                if is_marked:
                    await self.service.on_content_created(result, route)
                await self.service.end_request(result)
            return result

        return run(scenario())

    def is_refused(self, line: str, *, token: str = ADA, body: bytes | None = None) -> bool:
        return isinstance(self.send(line, token=token, body=body), LocalReply)


def run(scenario: Awaitable[AdmittedRequest | LocalReply]) -> AdmittedRequest | LocalReply:
    async def wait() -> AdmittedRequest | LocalReply:
        return await scenario

    return asyncio.run(wait())


@pytest.fixture(params=["local", "shared"])
def sender(request: pytest.FixtureRequest) -> Sender:
    return Sender(make_service(RULES, is_local=request.param == "local"))


def test_marked_actions_beyond_the_limit_are_refused(sender: Sender) -> None:
    results = [sender.send("POST /new-page", is_marked=True) for _ in range(3)]

    assert [isinstance(result, AdmittedRequest) for result in results] == [True, True, False]
    assert isinstance(results[2], LocalReply)
    assert b"temporarily blocked from content creation" in results[2].body
    assert count_used(sender.service, "content") == 2


def test_marked_actions_leave_no_room_for_requests_that_the_rules_name(sender: Sender) -> None:
    for _ in range(2):
        sender.send("POST /new-page", is_marked=True)

    assert sender.is_refused("POST /issues")


def test_a_mark_that_comes_with_a_reply_can_exceed_the_limit_once(sender: Sender) -> None:
    for _ in range(2):
        sender.send("POST /issues")

    assert not sender.is_refused("POST /first-of-its-kind")
    sender.send("POST /first-of-its-kind", is_marked=True)
    assert count_used(sender.service, "content") == 3
    assert sender.is_refused("POST /first-of-its-kind")


def test_a_route_that_the_rules_mark_is_refused_before_its_first_mark(sender: Sender) -> None:
    for _ in range(2):
        sender.send("POST /issues")

    assert sender.is_refused("POST /forms/1")


def test_requests_without_a_mark_are_not_counted(sender: Sender) -> None:
    sender.send("POST /forms/1", is_marked=True)
    for _ in range(3):
        sender.send("POST /forms/2")

    assert count_used(sender.service, "content") == 1


def test_a_request_that_the_rules_count_is_counted_once_although_it_is_marked(sender: Sender) -> None:
    sender.send("POST /issues", is_marked=True)

    assert count_used(sender.service, "content") == 1


def test_other_endpoints_and_other_callers_are_not_refused(sender: Sender) -> None:
    for _ in range(2):
        sender.send("POST /new-page", is_marked=True)

    assert [sender.is_refused("GET /new-page"), sender.is_refused("POST /other")] == [False, False]
    assert not sender.is_refused("POST /new-page", token=WORKFLOW)


def test_requests_are_admitted_again_when_the_window_has_room(sender: Sender) -> None:
    for _ in range(2):
        sender.send("POST /new-page", is_marked=True)
    sender.service.world.advance(66)  # type: ignore[attr-defined] # The world of `make_service` has it.

    assert not sender.is_refused("POST /new-page")


def test_a_mark_counts_only_in_the_limits_of_its_endpoint(sender: Sender) -> None:
    sender.send("POST /new-page", is_marked=True)
    sender.send("POST /wiki/a", is_marked=True)

    assert (count_used(sender.service, "content"), count_used(sender.service, "wiki")) == (2, 1)


def test_after_a_marked_mutation_only_mutations_need_room(sender: Sender) -> None:
    for _ in range(2):
        sender.send("POST /graphql", is_marked=True, body=MUTATION)

    refused = [sender.is_refused("POST /graphql", body=body) for body in (QUERY, MUTATION)]

    assert refused == [False, True]


def test_the_same_action_on_many_objects_is_refused_too() -> None:
    sender = Sender(make_service(MANY_RULES, is_local=True))
    for number in range(20):
        sender.send(f"POST /owner-{number}/repository-{number}/wiki/page-{number}", is_marked=True)

    assert [
        sender.is_refused(f"POST {path}")
        for path in ("/eve/notes/wiki/start", "/eve/notes/labels/new", "/eve/notes/wiki")
    ] == [True, False, False]


def test_a_route_that_the_service_names_is_refused_for_all_its_paths_and_callers(sender: Sender) -> None:
    for _ in range(2):
        sender.send("POST /acme/site/wiki/start", is_marked=True, route="/{owner}/{repository}/wiki/{page}")
        sender.send("POST /issues", token=OAUTH)

    assert [
        sender.is_refused(f"POST {path}", token=OAUTH)
        for path in ("/eve/notes/wiki/other", "/Eve/notes/WIKI/other", "/eve/notes/labels/other", "/eve/notes/wiki/a/b")
    ] == [True, True, False, False]


@pytest.mark.parametrize("route", ["/{owner}/{repository}/labels/{label}", "/wiki", "/{", "/*/*"])
def test_a_route_that_does_not_match_the_request_is_ignored(sender: Sender, route: str) -> None:
    for _ in range(2):
        sender.send("POST /acme/site/wiki/start", is_marked=True, route=route)

    assert [sender.is_refused(f"POST /acme/site/{path}") for path in ("wiki/start", "labels/x")] == [True, False]


def test_a_caller_whose_paths_always_differ_creates_ten_more_than_the_limit() -> None:
    sender = Sender(make_service(MANY_RULES, is_local=True))
    admitted = 0
    for number in range(100):  # Each path has another number of segments, so that no pattern fits.
        result = sender.send("POST /wiki" + "/sub" * (number % 16) + f"/p{number}" * (number // 16), is_marked=True)
        admitted += isinstance(result, AdmittedRequest)

    assert admitted <= 20 + MAX_UNEXPECTED_MARKS
    assert sender.is_refused("POST /other")
    assert not sender.is_refused("GET /other")


@given(
    st.lists(st.sampled_from([1, 2, 5, 1_000]), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)
def test_no_choice_of_paths_creates_more_than_ten_beyond_the_limit(value_counts: list[int], random: Random) -> None:
    """A caller varies owner, repository, page and depth of its paths, each with few or many values."""
    ceiling = 5
    rules = build_rules_text(f'[[rule]]\nname = "content"\ncounts = "content"\nwindow = "1h"\nceiling = {ceiling}')
    sender = Sender(make_service(rules, is_local=True))
    created = 0
    for _ in range(40):
        owner, repository, page, depth = (random.randrange(count) for count in value_counts)
        path = f"/o{owner}x/r{repository}x/wiki{'/sub' * (depth % 20)}/p{page}x"
        created += isinstance(sender.send(f"POST {path}", is_marked=True), AdmittedRequest)

    assert ceiling <= created <= ceiling + MAX_UNEXPECTED_MARKS
