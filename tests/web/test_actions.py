"""The actions of a job, its versions, and the return to one of them."""

import html
import re
from urllib.parse import quote

import pytest

from tests.builders import a_group, a_job, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, until
from tests.web.browsing import CONFIRMED, ShownPage
from tests.web.strict_html import find_problems
from tests.web.test_pages import a_cluster_with_work, build_job, count_running, register
from wharf.contract.model.jobs.group_policies import ReschedulePolicy


def read_hidden(page: ShownPage, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text)
    assert found is not None, name
    return html.unescape(found[1])


async def end_rollout(server: OneServer, job_id: str) -> None:
    deployment = (await server.client.jobs.deployment(job_id)).value
    assert deployment is not None
    await server.client.deployments.fail(deployment.id)


@in_virtual_time
async def test_a_group_is_scaled_by_its_form() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        index = read_hidden(await browser.get("/ui/jobs/shop/actions"), "index")
        form = {"group": "web", "count": "3", "index": index, "message": "more visitors"}

        during_rollout = await browser.post("/ui/jobs/shop/scale", form)
        await end_rollout(server, "shop")
        reply = await browser.post("/ui/jobs/shop/scale", form)
        await until(lambda: count_running(server, "shop") == 3, what="three allocations")

        assert "wait until the rollout of shop is complete" in during_rollout.text
        assert reply.get_header("location") == "/ui/jobs/shop"
        assert "web of shop is scaled to 3." in (await browser.get("/ui/jobs/shop")).text


@pytest.mark.parametrize("count", ["", "-1", "many", "1e3", "9" * 30])
def test_a_count_that_is_none_is_refused(count: str) -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)

            reply = await browser.post("/ui/jobs/shop/scale", {"group": "web", "count": count, "index": "1"})

            assert (reply.status, (await server.client.jobs.read("shop")).value.groups[0].count) == (400, 2)

    act()


@in_virtual_time
async def test_a_group_is_not_scaled_if_the_job_has_changed_since_the_form() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        index = read_hidden(await browser.get("/ui/jobs/shop/actions"), "index")
        await register(server, build_job("shop", 1))

        reply = await browser.post("/ui/jobs/shop/scale", {"group": "web", "count": "3", "index": index})

        assert reply.status >= 400
        assert (await server.client.jobs.read("shop")).value.groups[0].count == 1


@in_virtual_time
async def test_a_dispatched_job_has_the_actions_of_a_job_that_runs() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        child = (await server.client.jobs.dispatch("encode", meta={"input": "a.mp4"})).dispatched_job_id
        await until(lambda: count_running(server, child) == 1, what="an allocation")

        page = (await browser.get(f"/ui/jobs/{quote(child, safe='')}/actions")).text

        assert ("Dispatch" in page, "Restart" in page) == (False, True)


@in_virtual_time
async def test_a_form_dispatches_a_job_with_its_meta_keys_once() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        page = await browser.get("/ui/jobs/encode/actions")
        form = {"meta.input": "a.mp4", "meta.profile": "", "payload": "x", "once": read_hidden(page, "once")}

        replies = [await browser.post("/ui/jobs/encode/dispatch", form) for _ in range(2)]
        children = [each for each in (await server.client.jobs.list()).value if each.parent_id == "encode"]
        child = (await server.client.jobs.read(children[0].id)).value

        assert re.search('name="meta.input" required', page.text)
        assert [reply.status for reply in replies] == [303, 303]
        assert (len(children), child.meta, child.payload) == (1, {"input": "a.mp4"}, b"x")


@in_virtual_time
async def test_a_dispatch_without_a_required_key_says_which() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)

        reply = await browser.post("/ui/jobs/encode/dispatch", {"meta.profile": "x"})

        assert (reply.status, "input" in reply.text) == (400, True)


@in_virtual_time
async def test_a_periodic_job_is_launched_now() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)

        await browser.post("/ui/jobs/nightly/launch")

        assert [each.parent_id for each in (await server.client.jobs.list(prefix="nightly/")).value] == ["nightly"]


@in_virtual_time
async def test_a_stopped_job_is_started_again() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)

        await browser.post("/ui/jobs/old/start")
        await until(lambda: count_running(server, "old") == 1, what="the job runs")

        assert "old is started." in (await browser.get("/ui/jobs/old")).text


@in_virtual_time
async def test_a_job_is_evaluated() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        before = len((await server.client.jobs.evaluations("shop")).value)

        reply = await browser.post("/ui/jobs/shop/evaluate", {"force": "1"})

        assert (reply.status, len((await server.client.jobs.evaluations("shop")).value) > before) == (303, True)


@in_virtual_time
async def test_the_page_does_not_promise_to_replace_failed_allocations_that_are_not_rescheduled() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        policy = ReschedulePolicy(attempts=0, unlimited=False)
        await register(server, a_job("once", a_group("web", a_task("server"), reschedule_policy=policy), type="batch"))

        await browser.post("/ui/jobs/once/evaluate", {"force": "1"})
        once = (await browser.get("/ui/jobs/once")).text
        await browser.post("/ui/jobs/shop/evaluate", {"force": "1"})
        shop = (await browser.get("/ui/jobs/shop")).text

        assert "Failed allocations are not replaced: no group of the job is rescheduled." in once
        assert "Failed allocations of groups that are rescheduled are replaced at once." in shop
        assert "Replace failed allocations now" not in (await browser.get("/ui/jobs/once/actions")).text
        assert "Replace failed allocations now" in (await browser.get("/ui/jobs/shop/actions")).text


@in_virtual_time
async def test_a_restart_names_the_allocations_whose_nodes_cannot_be_reached() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)

        reply = await browser.post("/ui/jobs/shop/restart", CONFIRMED)

        assert "0 of 2 allocations are being restarted. The others were not restarted, such as shop.web[" in reply.text
        assert "the node cannot be reached, because it is down or out of contact" in reply.text


@in_virtual_time
async def test_a_restart_of_a_job_without_running_allocations_is_refused() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)

        reply = await browser.post("/ui/jobs/huge/restart", CONFIRMED)

        assert (reply.status, "huge has no running allocation." in reply.text) == (400, True)


@in_virtual_time
async def test_versions_show_what_changed_and_hide_secrets() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        for count, secret in ((3, "hunter2"), (4, "hunter3")):
            group = a_group("web", a_task("server", env={"DB_PASSWORD": secret}), count=count)
            await register(server, a_job("shop", group, meta={"a": "<script>"}))

        page = await browser.get("/ui/jobs/shop/versions")

        assert (page.status, find_problems(page.text)) == (200, [])
        text = html.unescape(page.text)
        assert 'Count  "3" → "4"' in text
        assert 'Meta[a]  "<script>"' in text
        assert "hunter" not in text


@in_virtual_time
async def test_a_job_returns_to_an_earlier_version_after_a_question() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        await register(server, build_job("shop", 1))

        question = await browser.get("/ui/jobs/shop/versions/0/revert")
        unchanged = (await server.client.jobs.read("shop")).value.version
        reply = await browser.post("/ui/jobs/shop/versions/0/revert", {"current": read_hidden(question, "current")})
        again = await browser.post("/ui/jobs/shop/versions/0/revert", {"current": read_hidden(question, "current")})
        job = (await server.client.jobs.read("shop")).value

        assert 'Count  "1" → "2"' in html.unescape(question.text)
        assert (unchanged, reply.status, again.status >= 400) == (1, 303, True)
        assert (job.version, job.groups[0].count) == (2, 2)


@pytest.mark.parametrize("version", ["7", "x", "9" * 30])
def test_the_return_to_a_version_that_does_not_exist_is_refused(version: str) -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_cluster_with_work(cluster)

            page = await browser.get(f"/ui/jobs/shop/versions/{version}/revert")

            assert (page.status in (400, 404), find_problems(page.text)) == (True, [])

    look()


@in_virtual_time
async def test_a_rollout_is_paused_and_goes_on() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        deployment = read_hidden(await browser.get("/ui/jobs/shop"), "deployment")

        await browser.post("/ui/jobs/shop/pause", {"deployment": deployment})
        paused = (await server.client.deployments.read(deployment)).value.status
        page = await browser.get("/ui/jobs/shop")
        await browser.post("/ui/jobs/shop/pause", {"deployment": deployment, "resume": read_hidden(page, "resume")})

        assert paused == "paused"
        assert "The rollout is paused." in page.text
        assert (await server.client.deployments.read(deployment)).value.status == "running"
