"""The search: an exact ID or name opens the object, everything else is a list with links."""

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import a_browser
from tests.web.test_pages import a_cluster_with_work, build_job, list_addresses, register
from wharf.contract.model.namespaces import Namespace


def test_an_exact_name_or_id_opens_its_page() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            allocation = (await server.client.jobs.allocations("shop")).value[0]
            evaluation = (await server.client.evaluations.list()).value[0]
            texts = (allocation.id, allocation.id[:8], "huge", evaluation.id, "team", "app/database")

            opened = [(await browser.get(f"/ui/search?q={text}")).get_header("location") for text in texts]

            assert opened == [
                f"/ui/allocations/{allocation.id}", f"/ui/allocations/{allocation.id}", "/ui/jobs/huge",
                f"/ui/evaluations/{evaluation.id}", "/ui/quotas/team", "/ui/variables/app%2Fdatabase?namespace=default",
            ]  # fmt: skip

    look()


def test_an_evaluation_is_shown_on_the_page_of_its_job() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            evaluation = (await server.client.evaluations.list(job="huge")).value[0]

            page = await browser.get(f"/ui/evaluations/{evaluation.id}")

            assert (page.status, page.get_header("location")) == (303, "/ui/jobs/huge?namespace=default")

    look()


def test_a_part_of_a_name_lists_objects_and_parts_of_jobs() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_cluster_with_work(cluster)

            page = await browser.get("/ui/search?q=erver")

            assert page.status == 200
            assert '<h2 id="found-tasks">Tasks</h2>' in page.text
            assert "of job shop" in page.text

    look()


def test_a_name_in_two_namespaces_is_a_list_that_says_where() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            await server.client.namespaces.store(Namespace(name="other"))
            await register(server, build_job("shop", 1))
            await register(server, build_job("shop", 1, namespace="other"))

            page = await a_browser(server).get("/ui/search?q=shop")

            assert page.status == 200
            assert '<a href="/ui/jobs/shop?namespace=other">shop</a> <span class="detail">in other</span>' in page.text

    look()


def test_a_search_without_a_result_says_so_and_keeps_the_text() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            assert await list_addresses(server)

            page = await browser.get("/ui/search?q=no+such+%3Cb%3E")

            assert "Nothing that you may see has this ID or name." in page.text
            assert 'value="no such &lt;b&gt;"' in page.text

    look()
