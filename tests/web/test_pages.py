"""Each page: valid for strict readers, safe with hostile texts, and with a status that says what happened."""

import html
import json
import re
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, until
from tests.web.browsing import CONFIRMED, Browser, a_browser
from tests.web.strict_html import StrictHtml, find_problems
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, EVALUATIONS_BY_STATUS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job, Parameterized, Periodic
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit

SECRET_VALUE = "a secret value"
HOSTILE = "\"><img src=x onerror=alert(1)>'{{7*7}}"

TEMPLATE = Parameterized(meta_required=("input",), meta_optional=("profile",))


CLUSTER_ADDRESSES = (
    "/ui/search", "/ui/search?q=hu", "/ui/search?q=nothing-has-this", "/ui/queue", "/ui/queue?place=2", "/ui/queue?namespace=default",
    "/ui/servers", "/ui/access", "/ui/namespaces", "/ui/namespaces/default", "/ui/quotas", "/ui/quotas/team", "/ui/pools",
    "/ui/pools/default", "/ui/services", "/ui/variables", "/ui/variables/app%2Fdatabase", "/ui/volumes", "/ui/activity",
    "/ui/activity?kind=nodes", "/ui/limits", "/ui/limits/cost",
)  # fmt: skip
"""The read pages of what belongs to the cluster as a whole."""


def build_job(name: str, count: int = 2, **fields: Any) -> Job:
    return a_job(name, a_group("web", a_task("server"), count=count), **fields)


async def register(server: OneServer, job: Job) -> None:
    await server.client.jobs.register(json.loads(msgspec.json.encode(job)))


async def a_cluster_with_work(cluster: ACluster) -> tuple[OneServer, Browser]:
    """Return a server with three nodes, a job that runs, one that waits, and one that is stopped; and a browser."""
    server = await cluster.a_server("m1")
    await cluster.ready_nodes(server, 3)
    for name, count in (("shop", 2), ("old", 1)):
        await register(server, build_job(name, count))
    await register(
        server, a_job("huge", a_group("web", a_task("server", resources=some_resources(memory_mb=900_000)), count=2))
    )
    await register(server, build_job("encode", 1, type="batch", parameterized_job=TEMPLATE))
    await register(server, build_job("nightly", 1, type="batch", periodic=Periodic(specs=("0 3 * * *",))))
    await server.client.jobs.deregister("old")
    await server.client.quotas.store(
        Quota(name="team", limits=(QuotaLimit(region="global", region_limit=RegionLimit(cpu=1_000)),))
    )
    await server.client.variables.put("app/database", {"password": SECRET_VALUE})

    await until(lambda: count_running(server, "shop") == 2, what="the job runs")
    await until(lambda: has_ended(server, "old"), what="the stopped job has ended")
    await until(lambda: is_waiting(server, "huge"), what="the large job waits")
    return server, a_browser(server)


def is_waiting(server: OneServer, job_id: str) -> bool:
    """Return whether a job of the default namespace waits for capacity."""
    evaluations = server.replica.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
    return any(evaluation.job_id == job_id for evaluation in evaluations)


def has_ended(server: OneServer, job_id: str) -> bool:
    allocations = server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", job_id)
    return all(each.client_status.is_terminal for each in allocations)


def count_running(server: OneServer, job_id: str) -> int:
    allocations = server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", job_id)
    return sum(each.client_status is ClientStatus.RUNNING for each in allocations)


async def list_addresses(server: OneServer) -> list[str]:
    """Return the address of each read page, of objects that exist."""
    allocation = (await server.client.jobs.allocations("shop")).value[0]
    node = (await server.client.nodes.list()).value[0]
    return [
        "/ui", "/ui/jobs", "/ui/jobs?filter=Type+%3D%3D+%22batch%22", "/ui/jobs?filter=%28", "/ui/flows", "/ui/jobs/shop", "/ui/jobs/huge",
        "/ui/jobs/old", f"/ui/allocations/{allocation.id}", "/ui/nodes", f"/ui/nodes/{node.id}", "/ui/jobs/missing",
        "/ui/fleet", "/ui/fleet?by=use", "/ui/fleet?by=job", "/ui/jobs/shop/timeline", "/ui/jobs/shop/timeline?window=1h&rows=1000", "/ui/jobs/huge/timeline",
        "/ui/nothing", "/ui/jobs/shop/logs", f"/ui/allocations/{allocation.id}/logs", "/ui/jobs/shop/logs?q=x&stream=stderr",
        "/ui/jobs/shop/versions", "/ui/jobs/old/versions/0/revert", "/ui/jobs/shop/actions", "/ui/jobs/old/actions",
        "/ui/jobs/nightly/actions", "/ui/jobs/encode/actions", "/ui/run", "/ui/run?job=shop", *CLUSTER_ADDRESSES,
    ]  # fmt: skip


def test_each_page_is_valid_for_strict_readers() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)

            problems = {
                address: found
                for address in await list_addresses(server)
                if (found := find_problems((await browser.get(address)).text))
            }

            assert problems == {}

    look()


def test_each_link_of_each_page_leads_to_a_page_or_file() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            links = {
                link
                for address in await list_addresses(server)
                for link in StrictHtml((await browser.get(address)).text).links
                if link.startswith("/ui")
            }
            # A log that does not exist cannot be downloaded, fake nodes have neither files nor terminals, and a server without an
            # agent has no audit log.
            reads = {
                link
                for link in links
                if not is_action(link)
                and "/logs/raw?" not in link
                and not link.endswith(("/files", "/terminal", "/audit"))
            }

            statuses = {link: (await browser.get(link)).status for link in reads}

            assert {link: status for link, status in statuses.items() if status not in (200, 303)} == {}

    look()


def is_action(link: str) -> bool:
    """Return whether a form of a page sends to this address, so that a GET finds no page."""
    names = (
        "stop",
        "start",
        "restart",
        "fail",
        "promote",
        "pause",
        "eligibility",
        "drain",
        "signal",
        "scale",
        "dispatch",
        "launch",
        "evaluate",
        "submit",
        "delete",
        "values",
    )
    return link.partition("?")[0].endswith(tuple(f"/{name}" for name in names))


def test_the_first_page_says_what_waits() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_cluster_with_work(cluster)

            page = await browser.get("/ui")

            assert "huge waits for capacity for 2 allocations" in page.text

    look()


def test_hostile_names_and_texts_add_no_element() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            await cluster.a_fake_node(server, '"><script>n</script>').wait_ready()
            await register(server, build_job("<script>alert(1)</script>", 1, meta={"a": HOSTILE}))
            browser = a_browser(server)

            pages = [
                await browser.get(address)
                for address in ("/ui", "/ui/jobs", "/ui/jobs/%3Cscript%3Ealert%281%29%3C%2Fscript%3E", "/ui/nodes")
            ]
            echoed = await browser.get(f"/ui/jobs?filter={'%3Cscript%3Ea%3C%2Fscript%3E'}")

            assert [page.status for page in pages] == [200] * 4
            for page in (*pages, echoed):
                assert find_problems(page.text) == []
                assert "<script>" not in page.text
                assert "<img src=x" not in page.text

    look()


def test_a_refused_filter_is_an_error_beside_the_filter() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_cluster_with_work(cluster)

            page = await browser.get("/ui/jobs?filter=Colour+%3D%3D+%22red%22")

            assert (page.status, 'role="alert"' in page.text, "Colour" in page.text) == (200, True, True)

    look()


def test_a_list_has_pages_forward_and_back() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            for number in range(120):
                await register(server, build_job(f"job-{number:03}", 1))
            browser = a_browser(server)

            first = await browser.get("/ui/jobs?rows=50")
            second_url = find_link(first.text, "Next")
            second = await browser.get(second_url)
            third = await browser.get(find_link(second.text, "Next"))
            back = await browser.get(find_link(third.text, "Previous"))
            first_again = await browser.get(find_link(second.text, "Previous"))

            assert [list_jobs(page.text)[::49] for page in (first, second, third)] == [
                ["job-000", "job-049"], ["job-050", "job-099"], ["job-100"],
            ]  # fmt: skip
            assert back.get_header("location") == second_url
            assert first_again.get_header("location") == "/ui/jobs?rows=50"

    look()


def find_link(text: str, title: str) -> str:
    found = re.search(rf'<a href="([^"]*)"[^>]*>{title}</a>', text)
    assert found is not None, text
    return html.unescape(found[1])


def list_jobs(text: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="[^"]*">([^<]*)</a>', text)


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/ui/jobs/missing", 404),
        ("/ui/nothing", 404),
        ("/ui/allocations/x", 400),
        ("/ui/static/x/y.js", 404),
        ("/ui/static/../app.py", 404),
        ("/ui/static/%2e%2e/app.py", 404),
    ],
)
def test_a_page_that_cannot_be_shown_says_so_with_its_status(address: str, status: int) -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            browser = a_browser(await cluster.a_server("m1"))

            page = await browser.get(address)

            assert (page.status, find_problems(page.text)) == (status, [])

    look()


def test_a_form_of_a_page_changes_the_job_and_shows_what_happened() -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)

            stopped = await browser.post("/ui/jobs/shop/stop", CONFIRMED)
            shown = await browser.get(stopped.get_header("location"))
            shown_again = await browser.get(stopped.get_header("location"))

            assert (stopped.status, (await server.client.jobs.read("shop")).value.stop) == (303, True)
            assert ("shop is being stopped." in shown.text, "is being stopped." in shown_again.text) == (True, False)

    act()


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:4646"},  # Another scheme.
        {"origin": "http://127.0.0.1:9999"},
    ],
)
def test_a_form_of_another_site_changes_nothing(headers: dict[str, str]) -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)

            refused = await browser.post("/ui/jobs/shop/stop", headers=headers)

            assert (refused.status, (await server.client.jobs.read("shop")).value.stop) == (403, False)

    act()


def test_a_get_of_an_action_changes_nothing() -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)

            assert (await browser.get("/ui/jobs/shop/stop")).status == 404
            assert (await server.client.jobs.read("shop")).value.stop is False

    act()


def test_every_reply_has_the_headers_that_protect_the_browser() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            browser = a_browser(await cluster.a_server("m1"))

            for address in ("/ui", "/ui/jobs/missing", "/ui/static/x/y.js", "/ui/sign-in"):
                page = await browser.get(address)
                policy = page.get_header("content-security-policy")
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert page.get_header("x-content-type-options") == "nosniff"
                assert page.get_header("x-frame-options") == "DENY"

    look()


def test_pages_are_compressed_for_browsers_that_accept_it() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_cluster_with_work(cluster)

            page = await browser.send("HEAD", "/ui/jobs", headers={"accept-encoding": "gzip, br"})

            assert page.get_header("content-encoding") == "gzip"
            assert int(page.get_header("content-length")) < 15_000

    look()


@in_virtual_time
async def test_each_suggested_filter_is_accepted() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)
        for path in ("/ui/jobs", "/ui/nodes"):
            suggestions = re.findall(r'<option value="([^"]+)">', (await browser.get(path)).text)
            refused = {
                text: page.text
                for text in map(html.unescape, suggestions)
                if "filter-error" in (page := await browser.get(f"{path}?{urlencode({'filter': text})}")).text
            }

            assert len(suggestions) >= 10
            assert refused == {}


@in_virtual_time
async def test_jobs_are_listed_by_their_last_change_and_the_order_stays_with_a_filter() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        await server.client.jobs.evaluate("old")
        await register(server, build_job("aaa", 1, type="batch"))

        page = (await browser.get("/ui/jobs?sort=changed&rows=50")).text

        assert list_jobs(page)[0] == "aaa"
        assert 'name="sort" value="changed"' in page
        assert "sort=changed" in find_link_of_order(page)


def find_link_of_order(text: str) -> str:
    found = re.search(r'href="([^"]+)" aria-current="true">changed last first', text)
    return html.unescape(found[1]) if found else ""


@in_virtual_time
async def test_allocations_of_one_plan_are_listed_by_their_number() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await cluster.ready_nodes(server, 3)
        await register(server, build_job("many", 11))
        await until(lambda: count_running(server, "many") == 11, what="the job runs")

        page = (await a_browser(server).get("/ui/jobs/many")).text

        assert re.findall(r">many\.web\[(\d+)\]<", page.partition('<h2 id="allocations">')[2]) == list(
            map(str, range(11))
        )


@in_virtual_time
async def test_a_job_is_shown_with_its_name_if_that_is_not_its_id() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await register(server, replace(build_job("4711", type="batch"), name="train the model"))
        browser = a_browser(server)

        pages = {path: (await browser.get(path)).text for path in ("/ui", "/ui/jobs", "/ui/jobs/4711")}

    assert [path for path, text in pages.items() if "train the model" not in text] == []
