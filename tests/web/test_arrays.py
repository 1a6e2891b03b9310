"""Arrays on the pages of their jobs: the states of all elements, those that failed, and the button that runs these again."""

import re

import pytest

from tests.builders import a_group, a_job, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from tests.web.browsing import Browser, a_browser
from tests.web.strict_html import find_problems
from tests.web.test_pages import register
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, JOBS
from wharf.contract.model.allocations.allocation import Allocation, AllocationStub, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.array_views import ArrayCounts, ArrayView
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, RestartPolicy
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.web.views.arrays import (
    MAX_CELLS,
    MAX_FAILED_ELEMENTS,
    MAX_INDEX_TEXT_CHARS,
    describe_counts,
    draw_states,
    find_failed_elements,
    list_indexes,
)


def build_sweep(*, succeeding: int, failing: int) -> Job:
    """Return a job with an array whose elements succeed, and one whose elements fail."""
    groups = [
        a_group(
            name,
            a_task("main", driver="mock", config={"run_for": "1s", "exit_code": exit_code}),
            array=GroupArray(size=size),
            restart_policy=RestartPolicy(attempts=0, mode="fail"),
            reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
        )
        for name, size, exit_code in (("train", succeeding, 0), ("check", failing, 3))
        if size
    ]
    return a_job("sweep", *groups, type="batch")


def list_runs(server: OneServer) -> list[Allocation]:
    return list(server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", "sweep"))


async def a_sweep(cluster: ACluster, *, succeeding: int, failing: int = 0) -> tuple[OneServer, Browser]:
    """Return a server with arrays whose elements have ended, and a browser."""
    server = await cluster.a_server("m1")
    await cluster.ready_nodes(server, 1)
    await register(server, build_sweep(succeeding=succeeding, failing=failing))

    def has_ended() -> bool:
        job = server.replica.get(JOBS, "default", "sweep")
        return job is not None and job.status is JobStatus.DEAD

    await until(has_ended, what="all elements have ended")
    return server, a_browser(server)


@in_virtual_time
async def test_failed_elements_are_listed_with_links_to_their_allocations() -> None:
    async with ACluster() as cluster:
        server, browser = await a_sweep(cluster, succeeding=2, failing=2)
        failed = [each.id for each in list_runs(server) if each.client_status is ClientStatus.FAILED]

        text = (await browser.get("/ui/jobs/sweep")).text

        assert find_problems(text) == []
        assert sorted(re.findall(r'id="failed-([^"]+)"', text)) == sorted(failed)
        assert ("0 of 2 succeeded, 2 failed" in text, "2 of 2 succeeded" in text) == (True, True)
        assert '<code class="indexes">0-1</code>' in text


@in_virtual_time
async def test_failed_elements_run_again_by_a_button_that_then_disappears() -> None:
    async with ACluster() as cluster:
        server, browser = await a_sweep(cluster, succeeding=1, failing=1)
        before = (await browser.get("/ui/jobs/sweep")).text

        reply = await browser.post("/ui/jobs/sweep/rerun")
        shown = (await browser.get("/ui/jobs/sweep")).text
        arrays = (await server.client.jobs.arrays("sweep")).value.arrays

        assert "Run what failed again" in before
        assert reply.get_header("location") == "/ui/jobs/sweep"
        assert "1 element runs again, as attempt 2." in shown
        assert ("Run what failed again" in shown, [len(each.attempts) for each in arrays]) == (False, [1, 2])


@in_virtual_time
async def test_a_rerun_without_a_failed_element_says_so() -> None:
    async with ACluster() as cluster:
        _, browser = await a_sweep(cluster, succeeding=2)

        page = (await browser.get("/ui/jobs/sweep")).text
        await browser.post("/ui/jobs/sweep/rerun")

        assert "Run what failed again" not in page
        assert "No element failed or was canceled." in (await browser.get("/ui/jobs/sweep")).text


@in_virtual_time
async def test_an_array_is_not_offered_to_be_scaled_and_an_ended_job_not_to_be_stopped() -> None:
    async with ACluster() as cluster:
        _, browser = await a_sweep(cluster, succeeding=2)

        actions, page = (await browser.get("/ui/jobs/sweep/actions")).text, (await browser.get("/ui/jobs/sweep")).text

        assert ("Scale" in actions, "Stop" in actions, "Restart" in actions, "Process again" in actions) == (
            False, False, False, True,
        )  # fmt: skip
        assert "/ui/jobs/sweep/stop" not in page


@in_virtual_time
async def test_a_list_does_not_count_running_allocations_of_an_ended_job() -> None:
    async with ACluster() as cluster:
        _, browser = await a_sweep(cluster, succeeding=2)

        for path in ("/ui/jobs", "/ui"):
            assert '<td class="counts">2 of 2 succeeded</td>' in (await browser.get(path)).text


@in_virtual_time
async def test_lists_count_an_element_that_ran_again_once() -> None:
    async with ACluster() as cluster:
        server, browser = await a_sweep(cluster, succeeding=2, failing=1)

        await browser.post("/ui/jobs/sweep/rerun")
        await pass_time(30)

        assert len([each for each in list_runs(server) if each.client_status is ClientStatus.FAILED]) == 2
        for path in ("/ui/jobs", "/ui/jobs?sort=changed", "/ui"):
            assert '<td class="counts">2 of 3 succeeded, 1 failed</td>' in (await browser.get(path)).text


def make_allocation(index: int, number: int) -> AllocationStub:
    return AllocationStub(
        id=f"a{number}",
        name=f"sweep.train[{index}]",
        task_group="train",
        desired_status=DesiredStatus.RUN,
        client_status=ClientStatus.FAILED,
        create_index=number,
    )


def test_a_failed_element_has_its_newest_allocation_and_one_that_runs_again_none() -> None:
    array = ArrayView(group="train", size=3, states="1f1r1f")
    failed = [make_allocation(0, 1), make_allocation(1, 2), make_allocation(2, 3), make_allocation(0, 4)]

    assert [each.id for each in find_failed_elements((array,), failed)] == ["a4", "a3"]


def test_only_some_of_many_failed_elements_are_listed() -> None:
    array = ArrayView(group="train", size=100, states="100f")

    found = find_failed_elements((array,), [make_allocation(number, number) for number in range(100)])

    assert [each.id for each in found] == [f"a{number}" for number in range(99, 99 - MAX_FAILED_ELEMENTS, -1)]


def test_the_counts_of_elements_are_told_in_words() -> None:
    counts = ArrayCounts(waiting=3, starting=1, running=2, succeeded=1_000, failed=4, canceled=5)

    text = "1,000 of 1,015 succeeded, 2 running, 1 starting, 3 waiting, 5 canceled, 4 failed"
    assert describe_counts(counts, 1_015) == text


@pytest.mark.parametrize(
    ("states", "per_cell", "cells"),
    [
        (b"sf", 1, {"failed": 1, "succeeded": 1}),
        (b"s" * 1_000, 1, {"succeeded": 1_000}),
        (b"s" * 1_001, 2, {"succeeded": 501}),
        (b"s" * 50_000 + b"f" + b"." * 49_999, 100, {"failed": 1, "succeeded": 500, "waiting": 499}),
    ],
)
def test_a_picture_has_a_cell_for_each_element_or_for_several(
    states: bytes, per_cell: int, cells: dict[str, int]
) -> None:
    picture = draw_states(states)

    assert {each.state: each.path.count("M") for each in picture.cells} == cells
    assert (picture.per_cell, sum(cells.values()) <= MAX_CELLS) == (per_cell, True)


def test_the_indexes_of_many_failed_elements_are_cut_at_a_comma() -> None:
    text = list_indexes(b"sf" * 50_000)

    assert len(text) <= MAX_INDEX_TEXT_CHARS + 3
    assert re.fullmatch(r"(?:\d+,)*\d+, …", text)
