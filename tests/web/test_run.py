"""The page of a job file: mistakes with their lines, the plan, and the submission."""

import html
import re

import pytest

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import ShownPage, a_browser, a_server_with_access
from tests.web.strict_html import find_problems
from tests.web.test_pages import a_cluster_with_work
from wharf.web.views.run import FileMistake, list_problems

HCL_JOB = """job "new" {
  group "web" {
    count = 2
    task "server" {
      driver = "mock"
    }
  }
}
"""
FILES = {
    "HCL": HCL_JOB,
    "YAML": "id: new\ngroup:\n  - name: web\n    count: 2\n    task:\n      - name: server\n        driver: mock\n",
    "JSON": '{"ID": "new", "TaskGroups": [{"Name": "web", "Count": 2, "Tasks": [{"Name": "server", "Driver": "mock"}]}]}',
    "TOML": 'id = "new"\n[[group]]\nname = "web"\ncount = 2\n[[group.task]]\nname = "server"\ndriver = "mock"\n',
}


def list_mistakes(page: ShownPage) -> list[str]:
    items = re.findall(r"<li>(.*?)(?:<pre>|</li>)", page.text[page.text.find('class="problems"') :], re.DOTALL)
    return [html.unescape(re.sub("<[^>]*>", "", item)) for item in items]


def read_form(page: ShownPage) -> dict[str, str]:
    return {
        name: html.unescape(value)
        for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
    }


@pytest.mark.parametrize("language", FILES)
def test_a_file_of_each_language_is_planned_and_submitted(language: str) -> None:
    @in_virtual_time
    async def act() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            source = FILES[language]

            planned = await browser.post("/ui/run", {"source": source.replace("\n", "\r\n")})
            reply = await browser.post("/ui/run/submit", {"source": source, **read_form(planned)})
            job = (await server.client.jobs.read("new")).value
            stored = (await server.client.jobs.submission("new", version=0)).value

            assert (planned.status, find_problems(planned.text)) == (200, [])
            assert f"read as {language}" in planned.text
            assert "+ Job new, new" in re.sub("<[^>]*>", "", planned.text)
            assert (reply.status, reply.get_header("location")) == (303, "/ui/jobs/new")
            assert (job.groups[0].count, stored.source) == (2, source)

    act()


@in_virtual_time
async def test_a_plan_says_once_what_would_help() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)
        source = HCL_JOB.replace(
            'driver = "mock"', 'driver = "mock"\n      resources {\n        memory = 900000\n      }'
        )

        planned = (await browser.post("/ui/run", {"source": source})).text

        assert "0 of 2 can be placed" in planned
        assert planned.count("lower MemoryMB of web/server from 900000") == 1
        assert "for one more allocation: lower MemoryMB" in planned.partition("What would help:")[2]


@in_virtual_time
async def test_mistakes_have_their_lines() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        syntax = HCL_JOB.replace("driver", "drivr")
        value = HCL_JOB.replace("count = 2", "count = -2")

        pages = [await browser.post("/ui/run", {"source": source}) for source in (syntax, value, "  ", "[1]")]
        jobs = (await server.client.jobs.list(prefix="new")).value

        assert [list_mistakes(page)[0][:40] for page in pages[:2]] == [
            'Line 5: no argument "drivr" is allowed i', "Line 3: group.count: Task group count ca",
        ]  # fmt: skip
        assert [find_problems(page.text) for page in pages] == [[]] * 4
        assert (all(list_mistakes(page) for page in pages), jobs) == (True, [])


@in_virtual_time
async def test_variables_get_their_values_from_the_form() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)
        source = 'variable "copies" {\n  type = number\n}\n' + HCL_JOB.replace("count = 2", "count = var.copies")

        without = await browser.post("/ui/run", {"source": source})
        with_value = await browser.post("/ui/run", {"source": source, "variables": "copies = 3"})
        wrong = await browser.post("/ui/run", {"source": source, "variables": "\ncopies = ="})

        assert list_mistakes(without)[0].startswith("Line 1: ")
        assert "3 to place" in with_value.text
        assert list_mistakes(wrong)[0].startswith("Variables, line 2: ")


@in_virtual_time
async def test_a_changed_job_or_text_is_planned_again_instead_of_submitted() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        form = read_form(await browser.post("/ui/run", {"source": HCL_JOB}))

        changed_text = await browser.post(
            "/ui/run/submit", {"source": HCL_JOB.replace("count = 2", "count = 1"), **form}
        )
        missing = (await server.client.jobs.list(prefix="new")).value
        await browser.post("/ui/run/submit", {"source": HCL_JOB, **form})
        changed_job = await browser.post("/ui/run/submit", {"source": HCL_JOB, **form})

        assert ("The text has changed since the plan." in changed_text.text, missing) == (True, [])
        assert (changed_job.status, "Not submitted: " in changed_job.text) == (200, True)


@in_virtual_time
async def test_a_text_that_is_too_large_is_refused() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)

        page = await browser.post("/ui/run", {"source": "x" * 300_000})

        assert (page.status, "Use wharf job run" in page.text) == (413, True)


@in_virtual_time
async def test_nobody_without_the_right_gets_a_file_read() -> None:
    async with ACluster() as cluster:
        server, _ = await a_server_with_access(cluster)

        page = await a_browser(server).post("/ui/run", {"source": "job"})

        assert (page.status, page.get_header("location").startswith("/ui/sign-in")) == (303, True)


@in_virtual_time
async def test_hostile_text_adds_no_element() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)

        page = await browser.post(
            "/ui/run", {"source": 'job "</textarea><script>" {\n<b>\n', "variables": "</textarea>"}
        )

        assert find_problems(page.text) == []
        assert "<script>" not in page.text.replace("<script src=", "")


def test_a_mistake_without_a_place_has_no_line() -> None:
    assert list_problems("Permission denied\njob file:2:3: no\n   2 | x\n") == (
        FileMistake(0, 0, is_in_values=False, text="Permission denied", excerpt=""),
        FileMistake(2, 3, is_in_values=False, text="no", excerpt="   2 | x"),
    )
