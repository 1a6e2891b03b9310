"""Updates of open pages: browsers with the same rights share them and the stream of changes, others do not."""

import json
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit, put, send
from tests.kit.state import a_node
from tests.kit.streams import AStream
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from tests.web.browsing import LOCAL_HOST, Browser, ShownPage, a_browser, a_server_with_access
from wharf.cluster.api.handlers.acl.sessions import SessionFinder
from wharf.cluster.state.tables import JOBS, NODES
from wharf.contract.model.nodes.node import DrainMetadata, DrainStatus, NodeStatus, SchedulingEligibility
from wharf.web import shared_updates
from wharf.web.app import PageServer
from wharf.web.shared_updates import MAX_UNSENT


class CountedApi:
    """The API of a server, with the paths that its pages requested."""

    def __init__(self, server: OneServer) -> None:
        self._api = server.api
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        await self._api(scope, receive, send)


def open_pages(server: OneServer) -> tuple[CountedApi, PageServer]:
    a_browser(server)  # Reads the static files.
    api = CountedApi(server)
    return api, PageServer(server.world, api, SessionFinder(server.server))


async def refresh(browser: Browser, index: int) -> ShownPage:
    return await browser.get("/ui/jobs", **{"wharf-refresh": str(index)})


async def add_job(server: OneServer, name: str) -> int:
    return await commit(server, JOBS.build_put(a_job(name)))


async def sign_in(pages: PageServer, secret: str) -> Browser:
    browser = Browser(pages)
    await browser.post("/ui/sign-in", {"token": secret, "next": "/ui/jobs"})
    assert browser.cookies, "signed in"
    return browser


async def create_token(server: OneServer, management: str, policy: str, rules: str) -> str:
    """Create a policy and a token with it. Return the secret of the token."""
    headers = {"x-cluster-token": management}
    await put(server, f"/v1/acl/policy/{policy}", {"Name": policy, "Rules": rules}, headers=headers)
    reply = await put(server, "/v1/acl/token", {"Type": "client", "Policies": [policy]}, headers=headers)
    secret: str = json.loads(reply.body)["SecretID"]
    return secret


@in_virtual_time
async def test_browsers_that_know_the_same_changes_share_an_update() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        api, pages = open_pages(server)
        index = await add_job(server, "one")

        shown = [await refresh(Browser(pages), index) for _ in range(3)]

        assert api.paths == ["/v1/jobs"]
        assert {page.text for page in shown} == {shown[0].text}
        assert "one" in shown[0].text


@in_virtual_time
async def test_an_update_is_never_older_than_the_changes_that_its_browser_knows() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        _, pages = open_pages(server)

        for name in ("one", "two"):
            index = await add_job(server, name)
            assert name in (await refresh(Browser(pages), index)).text


@in_virtual_time
async def test_a_page_that_is_loaded_is_not_shared() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        _, pages = open_pages(server)
        index = await add_job(server, "one")
        await refresh(Browser(pages), index)
        await add_job(server, "two")

        assert "two" in (await Browser(pages).get("/ui/jobs")).text


@in_virtual_time
async def test_a_shared_update_ends_after_some_seconds() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        _, pages = open_pages(server)
        index = await add_job(server, "one")
        await refresh(Browser(pages), index)
        await add_job(server, "two")
        await pass_time(5.0)

        assert "two" in (await refresh(Browser(pages), index)).text


@in_virtual_time
async def test_an_update_is_shared_only_with_browsers_that_have_the_same_rights() -> None:
    async with ACluster() as cluster:
        server, management = await a_server_with_access(cluster)
        api, pages = open_pages(server)
        index = await add_job(server, "secret")
        reader = 'namespace "default" { policy = "read" }'
        readers = [await create_token(server, management, "reader", reader) for _ in range(2)]
        other = await create_token(server, management, "other", 'namespace "other" { policy = "read" }')
        browsers = [await sign_in(pages, token) for token in (*readers, other)]
        api.paths.clear()

        first, second, third = [await refresh(browser, index) for browser in browsers]

        assert ("secret" in first.text, "secret" in second.text, "secret" in third.text) == (True, True, False)
        assert api.paths == 2 * ["/v1/jobs", "/v1/acl/check"]


@in_virtual_time
async def test_forms_are_shared_only_with_those_who_may_use_them() -> None:
    async with ACluster() as cluster:
        server, management = await a_server_with_access(cluster)
        _, pages = open_pages(server)
        rules = 'namespace "default" { policy = "%s" }'
        names = ("write", "read")
        browsers = [await sign_in(pages, await create_token(server, management, name, rules % name)) for name in names]
        index = await add_job(server, "one")

        before = ["Run a job" in (await refresh(browser, index)).text for browser in browsers]
        await create_token(server, management, "write", rules % "read")  # It replaces the policy.
        after = ["Run a job" in (await refresh(browser, index)).text for browser in browsers]

        assert (before, after) == ([True, False], [False, False])


def follow(cluster: ACluster, server: OneServer, pages: PageServer, browser: Browser | None = None) -> AStream:
    """Open the stream of changes in a browser."""
    server.api = pages  # type: ignore[assignment]  # It passes what is no page on to the API.
    headers = {"host": LOCAL_HOST}
    if browser is not None:
        headers["cookie"] = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    return AStream(cluster, server, "/ui/changes", [], headers)


def has_received(stream: AStream, name: str) -> bool:
    return name.encode() in b"".join(stream.parts)


@in_virtual_time
async def test_browsers_with_the_same_rights_share_one_stream_of_the_api() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        api, pages = open_pages(server)
        streams = [follow(cluster, server, pages) for _ in range(50)]
        await until(lambda: all(stream.parts for stream in streams), what="all streams are open")

        await add_job(server, "one")
        await until(lambda: all(has_received(stream, "one") for stream in streams), what="all browsers know the change")
        assert api.paths == ["/v1/event/changes"]

        for stream in streams:
            stream.disconnected.set()
        feed = server.server.events
        assert feed is not None
        await until(lambda: not feed.subscription_count, what="the stream of the API has ended")


@in_virtual_time
async def test_a_page_can_tell_whether_its_stream_lacks_changes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        _, pages = open_pages(server)
        page = await Browser(pages).get("/ui/jobs")
        missed = await add_job(server, "one")
        first = follow(cluster, server, pages)
        await until(lambda: b"start" in b"".join(first.parts), what="the first stream begins")
        index = await add_job(server, "two")
        await until(lambda: has_received(first, "two"), what="the first browser knows the change")
        second = follow(cluster, server, pages)
        await until(lambda: b"start" in b"".join(second.parts), what="the second stream begins")

        shown = int(page.text.partition('data-index="')[2].partition('"')[0])
        texts = [b"".join(each.parts).partition(b'start\ndata: {"Index":')[2] for each in (first, second)]
        starts = [int(text.partition(b"}")[0]) for text in texts]
        assert shown < missed <= starts[0] < index == starts[1]


@in_virtual_time
async def test_a_stream_ends_with_its_session_and_others_with_the_same_rights_go_on() -> None:
    async with ACluster() as cluster:
        server, management = await a_server_with_access(cluster)
        _, pages = open_pages(server)
        first, second = [await sign_in(pages, management) for _ in range(2)]
        streams = [follow(cluster, server, pages, browser) for browser in (first, second)]
        await until(lambda: all(stream.parts for stream in streams), what="both streams are open")

        await second.post("/ui/sign-out")
        await add_job(server, "one")
        await until(lambda: has_received(streams[0], "one"), what="the first browser knows the change")
        await until(lambda: streams[1].is_over, what="the stream of the second browser has ended")

        assert not has_received(streams[1], "one")
        assert [has_received(stream, "event: ended") for stream in streams] == [False, True]
        assert not streams[0].is_over


@in_virtual_time
async def test_a_stream_says_that_somebody_else_has_ended_its_session() -> None:
    async with ACluster() as cluster:
        server, management = await a_server_with_access(cluster)
        _, pages = open_pages(server)
        stream = follow(cluster, server, pages, await sign_in(pages, management))
        await until(lambda: stream.parts, what="the stream is open")

        headers = {"x-cluster-token": management}
        for session in json.loads((await send(server, "GET", "/v1/acl/sessions", headers=headers)).body):
            await send(server, "DELETE", f"/v1/acl/session/{session['ID']}", headers=headers)
        await until(lambda: stream.is_over, what="the stream has ended")

        assert b"".join(stream.parts).endswith(b"event: ended\ndata: {}\n\n")


@in_virtual_time
async def test_more_browsers_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_updates, "MAX_BROWSERS", 1)
    async with ACluster() as cluster:
        server = await cluster.a_server()
        _, pages = open_pages(server)
        first = follow(cluster, server, pages)
        await until(lambda: first.parts, what="the first stream is open")
        second = follow(cluster, server, pages)
        await until(lambda: second.is_over, what="the second browser is refused")

        assert (first.status, second.status) == (200, 503)


@in_virtual_time
async def test_a_browser_that_reads_nothing_is_disconnected_and_delays_nobody() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        _, pages = open_pages(server)
        slow, quick = [follow(cluster, server, pages) for _ in range(2)]
        await until(lambda: slow.parts and quick.parts, what="both streams are open")

        slow.reads.clear()
        for number in range(MAX_UNSENT + 3):
            await add_job(server, f"job-{number}")
            await until(lambda: has_received(quick, f"job-{number}"), what="the quick browser knows the change")  # noqa: B023  # called at once
        slow.reads.set()

        await until(lambda: slow.is_over, what="the slow browser is disconnected")


@in_virtual_time
async def test_a_sign_in_ends_the_stream_of_the_person_who_was_signed_in_before() -> None:
    async with ACluster() as cluster:
        server, management = await a_server_with_access(cluster)
        _, pages = open_pages(server)
        rules = 'namespace "other" { policy = "read" }'
        browser = await sign_in(pages, management)
        former = Browser(pages)
        former.cookies = dict(browser.cookies)
        stream = follow(cluster, server, pages, former)
        await until(lambda: stream.parts, what="the stream is open")

        token = await create_token(server, management, "other", rules)
        await browser.post("/ui/sign-in", {"token": token, "next": "/ui/jobs"})
        await add_job(server, "one")
        await until(lambda: stream.is_over, what="the stream of the first person has ended")

        assert not has_received(stream, "one")
        assert (await former.get("/ui/jobs")).status == 303


class FailingApi:
    """The API of a server that is overloaded for a while."""

    def __init__(self, server: OneServer) -> None:
        self._api = server.api
        self.fails = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not self.fails:
            await self._api(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b"overloaded"})


@in_virtual_time
async def test_a_failure_of_the_server_is_not_shared_with_browsers_that_ask_later() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        open_pages(server)
        api = FailingApi(server)
        pages = PageServer(server.world, api, SessionFinder(server.server))
        index = await add_job(server, "one")

        failed = await refresh(Browser(pages), index)
        api.fails = False
        answered = await refresh(Browser(pages), index)

        assert (failed.status, answered.status) == (503, 200)


async def add_drained_node(server: OneServer, secret: str) -> None:
    """Store a node that the token with this secret has drained."""
    own = await send(server, "GET", "/v1/acl/token/self", headers={"x-cluster-token": secret})
    drain = DrainMetadata(status=DrainStatus.COMPLETE, accessor_id=json.loads(own.body)["AccessorID"])
    node = a_node(
        "n1", status=NodeStatus.READY, scheduling_eligibility=SchedulingEligibility.INELIGIBLE, last_drain=drain
    )
    await commit(server, NODES.build_put(node))


@in_virtual_time
async def test_a_shared_page_shows_nobody_the_name_of_the_token_of_another_person() -> None:
    async with ACluster() as cluster:
        server, management = await a_server_with_access(cluster)
        _, pages = open_pages(server)
        rules = 'namespace "default" { policy = "read" }\nnode { policy = "read" }'
        await create_token(server, management, "operators", rules)
        secrets = []
        for name in ("mia", "zoe"):
            token = {"Name": name, "Type": "client", "Policies": ["operators"]}
            created = await put(server, "/v1/acl/token", token, headers={"x-cluster-token": management})
            secrets.append(json.loads(created.body)["SecretID"])
        await add_drained_node(server, secrets[0])
        people = [await sign_in(pages, each) for each in secrets]
        for each in people:
            await each.get("/ui")  # Shows the notice of the sign-in, which is not shared.

        index = str(server.replica.index)
        shown = [(await each.get("/ui", **{"wharf-refresh": index})).text for each in people]

        assert ["by mia" in text for text in shown] == [False, False]
        assert ["by token " in text for text in shown] == [True, True]


@in_virtual_time
async def test_people_who_may_read_all_tokens_see_who_drained_a_node() -> None:
    async with ACluster() as cluster:
        server, management = await a_server_with_access(cluster)
        _, pages = open_pages(server)
        await add_drained_node(server, management)
        operator = await sign_in(pages, management)

        assert "by Bootstrap Token" in (await operator.get("/ui")).text


class OnceRefusingApi:
    """The API of a server that refuses one request because of a limit."""

    def __init__(self, server: OneServer) -> None:
        self._api = server.api
        self._has_refused = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._has_refused:
            await self._api(scope, receive, send)
            return
        self._has_refused = True
        await send({"type": "http.response.start", "status": 429, "headers": [(b"x-cluster-limits-id", b"1")]})
        await send({"type": "http.response.body", "body": b"{}"})


@in_virtual_time
async def test_only_the_browser_that_met_a_limit_gets_no_stream_of_changes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        open_pages(server)
        pages = PageServer(server.world, OnceRefusingApi(server), SessionFinder(server.server))

        streams = [follow(cluster, server, pages) for _ in range(3)]
        await until(lambda: all(stream.status for stream in streams), what="all are answered")

        assert sorted(stream.status for stream in streams) == [200, 200, 429]
