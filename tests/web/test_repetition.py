"""The form that runs a failed batch job again."""

import re
from collections import Counter

import pytest

from tests.builders import a_group, a_job, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.web.browsing import CONFIRMED, Browser, a_browser, enable_access
from tests.web.small_cluster import FixedToken, create_reader, register, sign_in
from tests.web.strict_html import find_problems
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, JOBS
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, RestartPolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import HOUR, SECOND


def build_group(name: str, *, exit_code: int, attempts: int) -> TaskGroup:
    return a_group(
        name,
        a_task("main", driver="mock", config={"run_for": "1s", "exit_code": exit_code}),
        restart_policy=RestartPolicy(attempts=0, mode="fail"),
        reschedule_policy=ReschedulePolicy(
            attempts=attempts, interval=24 * HOUR, delay=5 * SECOND, delay_function="constant", unlimited=False
        ),
    )


def build_import(attempts: int) -> Job:
    """Return a batch job with a group that fails and one that completes."""
    groups = (build_group("load", exit_code=3, attempts=attempts), build_group("check", exit_code=0, attempts=attempts))
    return a_job("import", *groups, type="batch")


async def run_import(server: OneServer, attempts: int) -> None:
    await register(server, build_import(attempts))
    await pass_time(60)


async def with_failed_import(cluster: ACluster, *, attempts: int) -> tuple[OneServer, Browser]:
    """Return a server with a batch job that has failed and used up its attempts, and a browser."""
    server = await cluster.a_server("m1")
    await cluster.ready_nodes(server, 1)
    await run_import(server, attempts)
    return server, a_browser(server)


def count_allocations(server: OneServer) -> Counter[str]:
    return Counter(each.task_group for each in server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", "import"))


def get_version(server: OneServer) -> tuple[int, bool]:
    job = server.replica.get(JOBS, "default", "import")
    assert job is not None
    return job.version, job.stop


async def read_index(browser: Browser) -> str:
    page = (await browser.get("/ui/jobs/import")).text
    found = re.search(r'action="/ui/jobs/import/repeat".*?name="index" value="([0-9]+)"', page)
    assert found is not None, "the page has the form"
    return found[1]


@in_virtual_time
async def test_only_what_failed_runs_again_if_the_groups_are_rescheduled() -> None:
    async with ACluster() as cluster:
        server, browser = await with_failed_import(cluster, attempts=1)
        before, page = count_allocations(server), (await browser.get("/ui/jobs/import")).text
        form = {"index": await read_index(browser)}

        question = await browser.post("/ui/jobs/import/repeat", form)
        unconfirmed = count_allocations(server)
        reply = await browser.post("/ui/jobs/import/repeat", form | CONFIRMED)
        await pass_time(60)

        assert find_problems(page) == []
        assert ">Run what failed again</button>" in page
        assert "Those that completed do not run again." in question.text
        assert (before, unconfirmed) == ({"load": 2, "check": 1}, {"load": 2, "check": 1})
        assert reply.get_header("location") == "/ui/jobs/import"
        assert (count_allocations(server), get_version(server)) == ({"load": 3, "check": 1}, (0, False))


@in_virtual_time
async def test_all_of_a_job_runs_again_if_its_groups_are_not_rescheduled() -> None:
    async with ACluster() as cluster:
        server, browser = await with_failed_import(cluster, attempts=0)
        form = {"index": await read_index(browser)}

        question = await browser.post("/ui/jobs/import/repeat", form)
        reply = await browser.post("/ui/jobs/import/repeat", form | CONFIRMED)
        await pass_time(60)

        assert "all of its allocations run again, also those that completed" in question.text
        assert reply.get_header("location") == "/ui/jobs/import"
        assert (count_allocations(server), get_version(server)) == ({"load": 2, "check": 2}, (2, False))


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_form_from_before_a_change_of_the_job_is_refused(attempts: int) -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await with_failed_import(cluster, attempts=attempts)
            form = {"index": await read_index(browser)}
            await run_import(server, 1 - attempts)  # The reschedule policy makes it a new version.
            before = count_allocations(server)

            reply = await browser.post("/ui/jobs/import/repeat", form | CONFIRMED)
            await pass_time(60)

            assert (reply.status, "has changed since the page was shown" in reply.text) == (409, True)
            assert count_allocations(server) == before

    act()


@in_virtual_time
async def test_a_job_that_has_not_failed_cannot_run_again() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await cluster.ready_nodes(server, 1)
        await register(server, a_job("import", build_group("check", exit_code=0, attempts=0), type="batch"))
        await pass_time(60)
        browser = a_browser(server)

        page = (await browser.get("/ui/jobs/import")).text
        reply = await browser.post("/ui/jobs/import/repeat", {"index": "1"} | CONFIRMED)

        assert "/ui/jobs/import/repeat" not in page
        assert (reply.status, count_allocations(server)) == (409, {"check": 1})


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_person_who_may_only_read_gets_no_form_and_is_refused(attempts: int) -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await with_failed_import(cluster, attempts=attempts)
            index, before = await read_index(browser), count_allocations(server)
            server.client = server.client.with_token_source(FixedToken(await enable_access(server)))
            browser = a_browser(server)
            await sign_in(browser, await create_reader(server))

            page = await browser.get("/ui/jobs/import")
            reply = await browser.post("/ui/jobs/import/repeat", {"index": index} | CONFIRMED)
            await pass_time(60)

            assert ("/ui/jobs/import/repeat" in page.text, reply.status) == (False, 403), reply.text
            assert (count_allocations(server), get_version(server)) == (before, (0, False))

    act()
