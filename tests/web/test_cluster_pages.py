"""The pages of the queue, the servers, access, and the records of the cluster."""

import html
import json
import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_service, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from tests.web.browsing import CONFIRMED, Browser, ShownPage, a_browser, a_server_with_access
from tests.web.strict_html import find_problems
from tests.web.test_pages import SECRET_VALUE, a_cluster_with_work, is_waiting
from tests.web.test_sign_in import sign_in
from wharf.cluster.state.tables import HOST_VOLUMES, JOBS, SERVICES
from wharf.contract.model.jobs.steps import Lock
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.volumes import HostVolume, HostVolumeState
from wharf.web.views.access import describe_browser

READER_RULES = 'namespace "default" { policy = "read" }'


def read_text(page: ShownPage) -> str:
    """Return the text of a page as a person reads it."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.text)).split())


async def register_waiting(server: OneServer, name: str, *, priority: int = 45, namespace: str = "default") -> None:
    """Register a job that no node has room for."""
    task = a_task("server", resources=some_resources(memory_mb=900_000))
    job = a_job(name, a_group("web", task, count=1), priority=priority, namespace=namespace)
    await server.client.jobs.register(json.loads(msgspec.json.encode(job)))
    await until(lambda: is_waiting(server, name), what=f"{name} waits")


def list_jobs(page: ShownPage) -> list[str]:
    return re.findall(r'<tr id="eval-[^"]*" data-row>.*?<th scope="row"><a [^>]*>([^<]*)</a>', page.text, re.DOTALL)


def test_the_queue_shows_who_waits_in_which_order_and_why() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            await register_waiting(server, "later")
            await register_waiting(server, "urgent", priority=80)

            page = await browser.get("/ui/queue")
            from_second = await browser.get("/ui/queue?place=2")

            assert list_jobs(page) == ["urgent", "huge", "later"]
            assert list_jobs(from_second) == ["huge", "later"]
            assert "3 jobs wait for capacity" in read_text(page)
            assert "web: too little memory on 3 nodes" in read_text(page)

    look()


def test_the_queue_names_the_run_that_holds_the_lock_of_a_waiting_step() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            task = a_task(driver="mock", config={"run_for": "600s"})
            for job_id in ("nightly-7", "nightly-8"):
                step = a_group("deploy", task, lock=Lock(key="production"))
                await server.client.jobs.register(a_batch_job(job_id, step))
                await pass_time(2)

            page = await browser.get("/ui/queue")

            assert list_jobs(page) == ["huge", "nightly-8"]
            assert "deploy waits for the lock production, which the run nightly-7 holds since" in read_text(page)

    look()


def test_the_queue_shows_the_share_of_each_namespace_by_its_weight() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            await server.client.namespaces.store(Namespace(name="heavy", weight=4))
            await register_waiting(server, "other", namespace="heavy")

            queue = (await server.client.evaluations.queue(namespace="*")).value
            page = await browser.get("/ui/queue")

            assert [(share.namespace, share.weight, share.waiting) for share in queue.shares] == [
                ("default", 1, 1), ("heavy", 4, 1),
            ]  # fmt: skip
            assert queue.shares[0].used_share > queue.shares[1].used_share == 0.0
            assert '<tr id="share-heavy">' in page.text

    look()


def test_the_page_of_servers_names_the_leader_and_how_far_each_has_read() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)

            page = await browser.get("/ui/servers")

            assert f"{server.name}" in page.text
            assert "leads" in read_text(page)
            assert "Records in memory, by table" in read_text(page)

    look()


async def sign_in_with_policy(server: OneServer, management: str, rules: str, *, name: str = "reader") -> Browser:
    """Return the browser of a person whose token has one policy."""
    headers = {"x-cluster-token": management}
    browser = a_browser(server)
    policy = json.dumps({"Name": name, "Rules": rules}).encode()
    await browser.send("PUT", f"/v1/acl/policy/{name}", headers=headers, body=policy)
    token = json.dumps({"Name": "ann", "Type": "client", "Policies": [name, "gone"]}).encode()
    created = await browser.send("PUT", "/v1/acl/token", headers=headers, body=token)
    await sign_in(browser, json.loads(created.text)["SecretID"])
    return browser


def test_the_page_of_access_shows_who_one_is_and_what_one_may() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, management = await a_server_with_access(cluster)
            browser = await sign_in_with_policy(server, management, READER_RULES)

            page = await browser.get("/ui/access")

            assert find_problems(page.text) == []
            assert "You are ann" in page.text
            assert READER_RULES in read_text(page)
            assert "The policy gone does not exist" in read_text(page)
            assert "This browser:" in page.text

    look()


def test_a_person_ends_the_session_of_another_browser_and_the_own_one() -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, management = await a_server_with_access(cluster)
            first, second = a_browser(server), a_browser(server)
            await sign_in(first, management)
            await sign_in(second, management)
            sessions = re.findall(r'action="(/ui/access/sessions/[^"]*/end)"', (await first.get("/ui/access")).text)
            assert len(sessions) == 2

            ended = await first.post(sessions[0])
            assert ended.status == 303
            assert (await second.get("/ui/jobs")).status == 303
            assert (await first.get("/ui/jobs")).status == 200
            own = await first.post(sessions[1])

            assert (own.get_header("location"), first.cookies.get("wharf-session")) == ("/ui/sign-in", None)

    act()


def test_management_sees_tokens_and_policies_without_secrets() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, management = await a_server_with_access(cluster)
            await sign_in_with_policy(server, management, READER_RULES)
            browser = a_browser(server)
            await sign_in(browser, management)

            tokens, policies, policy = [
                await browser.get(f"/ui/access/{path}") for path in ("tokens", "policies", "policies/reader")
            ]

            assert [find_problems(page.text) for page in (tokens, policies, policy)] == [[], [], []]
            assert "ann" in tokens.text
            assert management not in tokens.text
            assert READER_RULES in read_text(policy)

    look()


def test_a_refused_page_names_the_right_that_is_missing() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, management = await a_server_with_access(cluster)
            browser = await sign_in_with_policy(server, management, READER_RULES)

            servers, stopped = await browser.get("/ui/servers"), await browser.post("/ui/jobs/shop/stop", CONFIRMED)

            assert (servers.status, stopped.status) == (403, 403)
            assert 'lacks operator { policy = "read" }' in read_text(servers)
            assert "submit-job" in read_text(stopped)
            assert 'namespace "default"' in read_text(stopped)

    look()


def test_lists_that_anybody_may_read_lead_to_the_sign_in_if_they_are_empty() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, _ = await a_server_with_access(cluster)
            browser = a_browser(server)
            paths = ("namespaces", "quotas", "pools", "variables", "volumes", "activity", "access", "queue", "servers")

            pages = {path: await browser.get(f"/ui/{path}") for path in paths}
            search = await browser.get("/ui/search?q=shop")

            assert {path: (page.status, page.get_header("location")) for path, page in pages.items()} == {
                path: (303, f"/ui/sign-in?next=%2Fui%2F{path}") for path in paths
            }
            assert search.get_header("location") == "/ui/sign-in?next=%2Fui%2Fsearch%3Fq%3Dshop"

    look()


def test_values_of_a_variable_are_shown_only_after_a_click() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_cluster_with_work(cluster)

            listed, page = await browser.get("/ui/variables"), await browser.get("/ui/variables/app%2Fdatabase")
            by_link = await browser.get("/ui/variables/app%2Fdatabase/values?namespace=default")
            clicked = await browser.post("/ui/variables/app%2Fdatabase/values?namespace=default")

            assert [SECRET_VALUE in each.text for each in (listed, page, by_link, clicked)] == [False] * 3 + [True]
            assert (by_link.status, clicked.status, find_problems(clicked.text)) == (404, 200, [])
            assert clicked.get_header("cache-control") == "no-store"

    look()


def test_a_namespace_is_created_changed_and_deleted_by_forms() -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)

            fields = {"name": "shop", "description": "all shops", "quota": "team", "weight": "3"}
            created = await browser.post("/ui/namespaces", fields)
            stored = (await server.client.namespaces.read("shop")).value
            await server.client.namespaces.store(msgspec.structs.replace(stored, meta={"owner": "ann"}))
            await browser.post("/ui/namespaces/shop", {**fields, "quota": "", "weight": "5"})
            changed = (await server.client.namespaces.read("shop")).value
            deleted = await browser.post("/ui/namespaces/shop/delete", CONFIRMED)

            assert created.get_header("location") == "/ui/namespaces/shop"
            assert (stored.description, stored.quota, stored.weight) == ("all shops", "team", 3)
            assert (changed.weight, changed.quota, changed.meta) == (5, "", {"owner": "ann"})
            assert deleted.get_header("location") == "/ui/namespaces"

    act()


def test_a_form_with_a_wrong_number_is_refused_and_changes_nothing() -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)

            refused = await browser.post("/ui/namespaces", {"name": "shop", "weight": "many"})
            invalid = await browser.post("/ui/namespaces", {"name": "shop", "weight": "5000"})

            names = {each.name for each in (await server.client.namespaces.list()).value}
            assert (refused.status, "weight: expected a whole number" in refused.text) == (400, True)
            assert (invalid.status, "weight must be between 1 and 1000" in invalid.text) == (400, True)
            assert "shop" not in names

    act()


def test_a_quota_shows_its_use_and_is_changed_by_a_form() -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)

            fields = {"name": "team", "region": "global", "cpu": "2000", "memory": "4096", "count": "5"}
            await browser.post("/ui/quotas/team", fields)
            quota = (await server.client.quotas.read("team")).value
            page = await browser.get("/ui/quotas/team")

            assert quota.limits is not None
            limit: Any = quota.limits[0].region_limit
            assert (limit.cpu, limit.memory_mb, limit.count) == (2_000, 4_096, 5)
            assert "0 of 4 096 MB" in read_text(page)

    act()


def test_the_activity_shows_the_newest_changes_first_with_links() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            await register_waiting(server, "newest")

            page = await browser.get("/ui/activity?kind=jobs")

            names = re.findall(
                r'<th scope="row"><span class="detail">job</span> <a href="/ui/jobs/[^"]*">([^<]*)</a>', page.text
            )
            assert names[0] == "newest"
            assert {"shop", "huge", "old"} <= set(names)

    look()


def test_the_activity_leaves_out_what_the_person_may_not_see() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, management = await a_server_with_access(cluster)
            browser = await sign_in_with_policy(server, management, READER_RULES)

            page = await browser.get("/ui/activity?kind=tokens")

            assert (page.status, "Nothing of this kind has changed" in page.text) == (200, True)

    look()


HOSTILE_NAME = "<script>alert(1)</script>"


def test_services_and_volumes_are_listed_with_links_and_hostile_texts_are_harmless() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            allocation = (await server.client.jobs.allocations("shop")).value[0]
            service = ServiceRegistration(
                id="s1", service_name="shop-http", namespace="default", node_id=allocation.node_id, job_id="shop",
                alloc_id=allocation.id, tags=(HOSTILE_NAME,), address="fd00::1", port=8080,
            )  # fmt: skip
            volume = HostVolume(
                id="11111111-1111-1111-1111-111111111111", name=HOSTILE_NAME, node_id=allocation.node_id,
                node_pool="default", host_path="/data", capacity_bytes=5 * 1024 * 1024, parameters={"key": SECRET_VALUE},
                state=HostVolumeState.READY, create_index=WRITE_INDEX,
            )  # fmt: skip
            job = server.replica.get(JOBS, "default", "shop")
            assert job is not None
            groups = tuple(replace(group, services=(a_service("shop-http"),)) for group in job.groups)
            declaring = JOBS.build_put(replace(job, task_groups=groups))
            await commit(server, SERVICES.build_put(service), HOST_VOLUMES.build_put(volume), declaring)

            paths = (
                "services",
                "services/shop-http",
                "jobs/shop",
                "volumes",
                f"volumes/{volume.id}",
                "activity",
                "search?q=script",
            )
            pages = {path: await browser.get(f"/ui/{path}") for path in paths}

            assert {path: (page.status, find_problems(page.text)) for path, page in pages.items()} == {
                path: (200, []) for path in paths
            }
            assert all("<script>alert" not in page.text and SECRET_VALUE not in page.text for page in pages.values())
            for path in ("services/shop-http", "jobs/shop"):
                assert '<a href="http://[fd00::1]:8080/" rel="noreferrer">[fd00::1]:8080</a>' in pages[path].text
            assert f"/ui/nodes/{allocation.node_id}" in pages[f"volumes/{volume.id}"].text

    look()


def test_hostile_names_of_a_search_and_of_variables_add_no_element() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            await server.client.variables.put("app/x", {HOSTILE_NAME: HOSTILE_NAME})

            shown = await browser.post("/ui/variables/app%2Fx/values?namespace=default")
            searched = await browser.get("/ui/search?q=%3Cscript%3Ealert%281%29%3C%2Fscript%3E")
            missing = await browser.get("/ui/variables/%3Cscript%3E")

            assert [page.status for page in (shown, searched, missing)] == [200, 200, 404]
            assert [find_problems(page.text) for page in (shown, searched, missing)] == [[], [], []]
            assert all("<script>" not in page.text for page in (shown, searched, missing))

    look()


def test_browsers_are_named_as_people_name_them() -> None:
    chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36"
    phone = (
        "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 Version/19.0 Mobile Safari/604.1"
    )

    assert [describe_browser(text) for text in (chrome, phone, "curl/8", "")] == [
        "Chrome on Linux", "Safari on iOS", "curl/8", "a browser that does not say its name",
    ]  # fmt: skip


@in_virtual_time
async def test_a_variable_is_created_changed_and_deleted_by_its_forms() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        browser = a_browser(server)
        item = {"key.1": "user", "value.1": "shop", "key.2": "", "value.2": ""}
        changed = {"key.1": "user", "value.1": "a\r\nb", "key.2": "port", "value.2": "5432"}

        created = await browser.post("/ui/variables", {"path": "app/db", "namespace": "default", **item})
        stored = (await server.client.variables.read("app/db")).value
        again = await browser.post("/ui/variables", {"path": "app/db", **item})
        values = (await browser.post("/ui/variables/app%2Fdb/values")).text
        index = {"index": str(stored.modify_index)}
        await browser.post("/ui/variables/app%2Fdb", {**changed, **index})
        late = await browser.post("/ui/variables/app%2Fdb", {**item, **index})
        now = (await server.client.variables.read("app/db")).value
        await browser.post("/ui/variables/app%2Fdb/delete", CONFIRMED)

        assert (created.status, created.get_header("location")) == (303, "/ui/variables/app%2Fdb?namespace=default")
        assert stored.items == {"user": "shop"}
        assert f'name="index" value="{stored.modify_index}"' in values
        assert ((again.status, "exists already" in again.text), (late.status, "has changed" in late.text)) == (
            (409, True),
            (409, True),
        )
        assert now.items == {"user": "a\nb", "port": "5432"}
        assert (await browser.get("/ui/variables/app%2Fdb")).status == 404


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"path": "", "key.1": "a"}, "Enter the path"),
        ({"path": "app/x"}, "at least one key"),
        ({"path": "app/x", "key.1": "a", "key.2": " a "}, "occurs twice"),
    ],
)
def test_a_form_of_a_variable_that_is_not_complete_is_refused(form: dict[str, str], text: str) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            browser = a_browser(await cluster.a_server("m1"))

            refused = await browser.post("/ui/variables", form)

            assert (refused.status, text in refused.text) == (400, True)

    visit()
