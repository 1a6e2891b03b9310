"""Runs on pages: their steps, and the forms that answer gates, cancel and retry."""

import json
import re
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.web.browsing import Browser, a_browser, a_server_with_access
from tests.web.small_cluster import (
    FixedToken,
    a_failed_import,
    a_flow,
    a_release,
    a_step,
    create_reader,
    register,
    sign_in,
)
from tests.web.strict_html import StrictHtml, find_problems
from wharf.cluster.state.tables import STEP_OUTPUTS
from wharf.contract.model.jobs.array_views import ArrayCounts
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.run_views import RunStatus, RunView, StepStatus, StepView
from wharf.contract.model.jobs.step_outputs import ElementOutputs, StepOutputs, StepOutputsView
from wharf.contract.model.jobs.steps import Gate, Need, Outputs
from wharf.contract.model.log import WRITE_INDEX
from wharf.web.views.runs import MAX_BOXES, MAX_ROWS, build_run_section, select_rows
from wharf.web.views.step_outputs import OutputSummary, summarize_outputs
from wharf.web.views.steps import build_step_page


async def with_run(cluster: ACluster, job: Job) -> tuple[OneServer, Browser]:
    """Return a server with a run that goes on until it ends or waits for an answer."""
    server = await cluster.a_server("m1")
    await cluster.ready_nodes(server, 1)
    await register(server, job)
    await pass_time(30)
    return server, a_browser(server)


async def read(server: OneServer, job_id: str) -> RunView:
    return (await server.client.flows.read_run(job_id)).value


async def find_status(server: OneServer, job_id: str, step: str) -> str:
    return next(each.status for each in (await read(server, job_id)).steps if each.name == step)


@in_virtual_time
async def test_a_form_approves_a_gate() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_release())

        form = {"step": "ship", "answer": "approve", "text": "checked"}
        reply = await browser.post("/ui/jobs/release/answer", form)
        await pass_time(20)

        assert reply.get_header("location") == "/ui/jobs/release"
        page = await browser.get("/ui/jobs/release")
        assert "ship is approved." in page.text
        assert "approved by anonymous: checked" in page.text
        assert (await read(server, "release")).status is RunStatus.SUCCEEDED


def find_listed_states(page: str, job_id: str) -> list[str]:
    """Return the state of a job in a list, with its symbol."""
    rows = re.findall(rf'<tr id="job-default/{job_id}".*?</tr>', page, re.DOTALL)
    return [re.sub("<[^>]+>", "", re.findall("<td>(.*?)</td>", row, re.DOTALL)[0]).strip() for row in rows]


@in_virtual_time
async def test_lists_of_jobs_show_the_state_of_a_run_in_the_words_of_its_page() -> None:
    async with ACluster() as cluster:
        _, browser = await with_run(cluster, a_release())

        pages = [(await browser.get(path)).text for path in ("/ui/jobs", "/ui/jobs?sort=changed")]
        own = (await browser.get("/ui/jobs/release")).text

        assert [find_listed_states(page, "release") for page in pages] == [["▲ waits for approval"]] * 2
        assert "waits for approval" in own[own.index("<h1>") : own.index("</h1>")]


@in_virtual_time
async def test_a_run_with_a_failed_step_that_may_fail_has_the_same_state_on_its_page_as_in_lists() -> None:
    job = a_job(
        "import", a_step("load", {"run_for": "2s"}), a_step("lint", {"exit_code": 1}, may_fail=True), type="batch"
    )
    async with ACluster() as cluster:
        _, browser = await with_run(cluster, job)

        own, jobs, runs = [(await browser.get(path)).text for path in ("/ui/jobs/import", "/ui/jobs", "/ui/flows")]

        assert "succeeded with failures" in own[own.index("<h1>") : own.index("</h1>")]
        assert find_listed_states(jobs, "import") == ["▲ succeeded with failures"]
        row = runs[runs.index('href="/ui/jobs/import"') :].partition("</tr>")[0]
        assert re.findall("succeeded with failures|lint failed", row) == ["succeeded with failures", "lint failed"]


@in_virtual_time
async def test_a_list_of_jobs_shows_that_a_run_waits_for_the_job_that_it_needs() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_release())
        job = replace(a_job("later", a_group("report"), type="batch"), depends=(Need(on="release"),))
        await register(server, job)

        states = find_listed_states((await browser.get("/ui/jobs")).text, "later")

        assert states == ["▲ waiting"]


@in_virtual_time
async def test_a_form_rejects_a_gate() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_release())

        await browser.post("/ui/jobs/release/answer", {"step": "ship", "answer": "reject", "text": ""})

        assert await find_status(server, "release", "ship") is StepStatus.FAILED


@in_virtual_time
async def test_a_form_of_a_page_from_before_a_retry_does_not_approve_the_gate_of_the_new_attempt() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_release())
        page = await browser.get("/ui/jobs/release")
        (deadline,) = re.findall('name="deadline" value="([0-9]+)"', page.text)
        await server.client.flows.cancel("release")
        await pass_time(20)
        await server.client.flows.retry("release", steps=["ship"])
        await pass_time(20)

        form = {"step": "ship", "answer": "approve", "text": "", "deadline": deadline}
        reply = await browser.post("/ui/jobs/release/answer", form)

        assert (reply.status, "was opened again" in reply.text) == (409, True)
        assert await find_status(server, "release", "ship") is StepStatus.GATED


@in_virtual_time
async def test_an_answer_to_a_gate_that_is_not_open_is_refused_with_its_reason() -> None:
    async with ACluster() as cluster:
        _, browser = await with_run(cluster, a_failed_import())

        reply = await browser.post("/ui/jobs/import/answer", {"step": "load", "answer": "approve"})

        assert (reply.status, "has no gate" in reply.text) == (400, True)


@in_virtual_time
async def test_the_page_about_a_refused_answer_has_the_comment_and_keeps_what_the_button_chose() -> None:
    async with ACluster() as cluster:
        _, browser = await with_run(cluster, a_failed_import())

        form = {"step": "load", "answer": "approve", "text": "checked"}
        page = (await browser.post("/ui/jobs/import/answer", form)).text

        assert '<input type="hidden" name="answer" value="approve">' in page
        assert 'name="text" value="checked"' in page


@in_virtual_time
async def test_a_form_cancels_a_run() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_release())

        await browser.post("/ui/jobs/release/cancel", {})
        await pass_time(20)

        assert (await read(server, "release")).status is RunStatus.CANCELED
        page = await browser.get("/ui/jobs/release")
        assert "Cancel the run" not in page.text
        assert "Run failed steps again" in page.text


@in_virtual_time
async def test_a_retry_is_shown_before_it_is_made() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_failed_import())

        plan = await browser.get("/ui/jobs/import/retry")
        assert find_problems(plan.text) == []
        assert "<dt>load</dt><dd>it failed</dd>" in plan.text
        assert "<dt>fetch</dt><dd>it succeeded</dd>" in plan.text
        assert len((await read(server, "import")).attempts) == 1

        await browser.post("/ui/jobs/import/retry", {})

        assert [each.steps for each in (await read(server, "import")).attempts][1:] == [("load", "index")]


@in_virtual_time
async def test_the_page_of_a_retry_says_that_the_run_has_not_ended() -> None:
    async with ACluster() as cluster:
        _server, browser = await with_run(cluster, a_release())

        page = await browser.get("/ui/jobs/release/retry")

        assert "The run has not ended" in page.text
        assert "<dt>ship</dt><dd>it waits for approval</dd>" in page.text


@in_virtual_time
async def test_a_step_is_run_again_with_what_follows_it() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_failed_import())
        assert "/ui/jobs/import/retry?step=fetch" in (await browser.get("/ui/jobs/import")).text

        await browser.post("/ui/jobs/import/retry", {"step": "fetch"})

        assert (await read(server, "import")).attempts[-1].steps == ("fetch", "load", "index")


@in_virtual_time
async def test_the_runs_of_a_flow_are_listed_with_what_they_wait_for() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_flow())
        runs = [(await server.client.jobs.dispatch("report")).dispatched_job_id for _ in range(2)]
        await pass_time(5)

        page = await browser.get("/ui/jobs/report/runs")

        assert find_problems(page.text) == []
        assert all(each.removeprefix("report/") in page.text for each in runs)
        assert f"waits for the run {runs[0]} to end" in page.text


@in_virtual_time
async def test_a_person_who_may_only_read_sees_the_steps_and_no_form_to_change_the_run() -> None:
    async with ACluster() as cluster:
        server, secret = await a_server_with_access(cluster)
        server.client = server.client.with_token_source(FixedToken(secret))
        await register(server, a_release())
        reader = a_browser(server)
        await sign_in(reader, await create_reader(server))

        page = await reader.get("/ui/jobs/release")

        assert "Steps in layers" in page.text
        assert "Cancel the run" not in page.text


def a_view(count: int, **fields: Any) -> RunView:
    """Return a run with this number of steps, of which the last one failed."""
    steps = [
        StepView(name=f"s{at}", size=1, counts=ArrayCounts(succeeded=1), status=StepStatus.SUCCEEDED)
        for at in range(count)
    ]
    steps.append(StepView(name="last", size=1, counts=ArrayCounts(failed=1), status=StepStatus.FAILED))
    return RunView(job_id="r", namespace="default", steps=tuple(steps), **fields)


def test_a_large_run_shows_the_failed_steps_and_counts_the_others() -> None:
    section = build_run_section(a_view(499), "", 0)

    assert (len(section.rows), section.hidden_rows, section.rows[-1].name) == (MAX_ROWS, 500 - MAX_ROWS, "last")
    assert (sum(len(layer.boxes) for layer in section.layers), section.hidden_boxes) == (MAX_BOXES, 500 - MAX_BOXES)


def test_a_small_run_shows_all_of_its_steps() -> None:
    assert len(select_rows(a_view(3).steps)) == 4


async def create_writer(server: OneServer, secret: str, policy: str) -> str:
    """Return the secret of a token with a policy of this name, which may submit jobs."""
    operator, headers = a_browser(server), {"x-cluster-token": secret}
    rules = {"Name": policy, "Rules": 'namespace "default" { policy = "write" }'}
    await operator.send("PUT", f"/v1/acl/policy/{policy}", headers=headers, body=json.dumps(rules).encode())
    token = json.dumps({"Name": policy, "Type": "client", "Policies": [policy]}).encode()
    created = await operator.send("PUT", "/v1/acl/token", headers=headers, body=token)
    return str(json.loads(created.text)["SecretID"])


@in_virtual_time
async def test_the_form_of_a_gate_with_a_policy_is_shown_only_to_people_with_this_policy() -> None:
    async with ACluster() as cluster:
        server, management = await a_server_with_access(cluster)
        server.client = server.client.with_token_source(FixedToken(management))
        (ship,) = (each for each in a_release().groups if each.gate is not None)
        gate = Gate(ask="Release to production?", policy="deployers")
        await register(server, replace(a_release(), task_groups=(replace(ship, depends=None, gate=gate),)))
        await pass_time(5)
        secrets = {name: await create_writer(server, management, name) for name in ("writers", "deployers")}

        shown = {}
        for name, secret in {**secrets, "management": management}.items():
            browser = a_browser(server)
            await sign_in(browser, secret)
            text = (await browser.get("/ui/jobs/release")).text
            shown[name] = ("/jobs/release/answer" in text, "your token does not have it" in text)

        assert shown == {"writers": (False, True), "deployers": (True, False), "management": (True, False)}


# -- outputs, the page of a step, and the page of all runs


async def with_outputs(cluster: ACluster, *elements: ElementOutputs) -> Browser:
    """Return a browser of a cluster with a run whose step `build` has left these outputs."""
    steps = (
        a_step("build", {"run_for": "2s"}, outputs=Outputs(text=("version", "notes"), keep=("data/",))),
        a_step("ship", {"run_for": "2s"}, "build"),
    )
    server, browser = await with_run(cluster, a_job("shop", *steps, type="batch"))
    stored = StepOutputs(
        namespace="default", job_id="shop", attempt=1, group="build", elements=elements, create_index=WRITE_INDEX
    )
    await commit(server, STEP_OUTPUTS.build_put(stored))
    return browser


@in_virtual_time
async def test_the_page_of_a_run_shows_the_first_outputs_of_its_steps() -> None:
    async with ACluster() as cluster:
        texts = {"version": "1.2", "notes": "<b>\n" + "faster " * 40}
        browser = await with_outputs(cluster, ElementOutputs(index=0, texts=texts))

        page = await browser.get("/ui/jobs/shop")

        assert find_problems(page.text) == []
        assert "<code>version</code> 1.2" in page.text
        assert "<code>notes</code> &lt;b&gt; faster faster" in page.text
        assert 'href="/ui/jobs/shop/steps/build"' in page.text


@in_virtual_time
async def test_the_page_of_a_step_shows_all_lines_of_its_outputs_and_its_kept_files() -> None:
    async with ACluster() as cluster:
        notes = "faster\n" * 500 + "the last line\u202e"
        browser = await with_outputs(
            cluster, ElementOutputs(index=0, texts={"notes": notes}, problem="line 7 has no =")
        )

        page = await browser.get("/ui/jobs/shop/steps/build")

        assert find_problems(page.text) == []
        assert "faster\nfaster\n" in page.text
        assert "the last line\N{REPLACEMENT CHARACTER}" in page.text
        assert "The program did not write it." in page.text  # `version`
        assert "line 7 has no =" in page.text
        assert "wharf job fetch shop alloc/data/ --group build" in page.text
        assert '<a href="/ui/jobs/shop/steps/ship">ship</a>' in page.text


@in_virtual_time
async def test_a_step_that_does_not_exist_is_a_page_that_says_so() -> None:
    async with ACluster() as cluster:
        browser = await with_outputs(cluster)

        page = await browser.get("/ui/jobs/shop/steps/paint")

        assert (page.status, "has no step" in page.text) == (404, True)


@in_virtual_time
async def test_all_runs_are_listed_by_their_state_the_newest_first() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_release())
        await register(server, a_failed_import())
        await register(server, a_flow())
        child = (await server.client.jobs.dispatch("report")).dispatched_job_id
        await pass_time(30)

        every, gated, failed = [
            await browser.get(path) for path in ("/ui/flows", "/ui/flows?state=gated", "/ui/flows?state=failed")
        ]

        assert [find_problems(each.text) for each in (every, gated, failed)] == [[], [], []]
        places = [every.text.index(f'href="/ui/jobs/{quote(name, safe="")}"') for name in (child, "import", "release")]
        assert places == sorted(places)
        assert "ship waits for approval" in gated.text
        assert "/ui/jobs/import" not in gated.text
        assert "load failed" in failed.text
        assert "/ui/jobs/release" not in failed.text
        assert "wharf flow list --state failed" in failed.text
        assert "/v1/runs?namespace=*&amp;sort=newest&amp;state=failed" in failed.text
        for sort, command in (("changed", "wharf flow list --sort changed"), ("name", "wharf flow list --sort name")):
            assert command in (await browser.get(f"/ui/flows?sort={sort}")).text
        assert "wharf flow list --sort" not in every.text


@in_virtual_time
async def test_pages_of_runs_keep_their_state_order_and_filter() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_flow())
        for _ in range(51):
            await server.client.jobs.dispatch("report")
        await pass_time(5)

        first = await browser.get("/ui/flows?state=active&sort=changed&filter=report&rows=50")
        (link,) = [each for each in StrictHtml(first.text).links if "token=" in each]
        second = await browser.get(link)

        assert (first.text.count('id="run-'), second.text.count('id="run-')) == (50, 1)
        assert parse_qs(urlsplit(link).query).keys() == {"state", "sort", "filter", "rows", "token"}


@in_virtual_time
async def test_a_filter_that_is_not_valid_is_an_error_beside_the_filter_of_runs() -> None:
    async with ACluster() as cluster:
        _, browser = await with_run(cluster, a_release())

        page = await browser.get("/ui/flows?filter=Colour+%3D%3D+1")

        assert (page.status, "The filter is not valid" in page.text) == (200, True)


@in_virtual_time
async def test_the_overview_names_the_runs_that_wait_for_approval() -> None:
    async with ACluster() as cluster:
        _, browser = await with_run(cluster, a_release())

        page = await browser.get("/ui")

        assert '<a href="/ui/jobs/release">The run release waits for approval</a>' in page.text


@in_virtual_time
async def test_a_second_cancellation_is_shown_with_the_person() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        (node,) = await cluster.ready_nodes(server, 1)
        steps = (a_step("build", {"run_for": "24h"}), a_step("tidy", {"run_for": "24h"}, final=True))
        await register(server, a_job("shop", *steps, type="batch"))
        await pass_time(30)
        browser = a_browser(server)
        await browser.post("/ui/jobs/shop/cancel", {})
        await pass_time(10)
        assert "Stop its final steps too" in (await browser.get("/ui/jobs/shop")).text
        await node.die()  # Otherwise the tasks would stop at once.
        await server.client.flows.cancel("shop", text="no time")
        stopping = await browser.get("/ui/jobs/shop")
        assert "is being stopped by anonymous" in stopping.text
        assert 'action="/ui/jobs/shop/cancel"' not in stopping.text
        await node.restart(cluster)
        await pass_time(10)

        page = await browser.get("/ui/jobs/shop")

        assert "then stopped at once by anonymous: no time" in page.text


def a_stored_step(**texts: str) -> StepOutputsView:
    return StepOutputsView(group="build", elements=(ElementOutputs(index=0, texts=texts),))


def test_outputs_beside_a_step_are_short() -> None:
    summary = summarize_outputs(a_stored_step(a="1", b="x\n y", c="z" * 200, d="4", e="5"), is_array=False)

    assert summary is not None
    assert [(each.name, each.text) for each in summary.texts] == [("a", "1"), ("b", "x y"), ("c", "z" * 80 + "…")]
    assert summary.more == "2 more outputs"


def test_outputs_of_an_array_are_counted_beside_the_step() -> None:
    summary = summarize_outputs(a_stored_step(a="1"), is_array=True)

    assert summary == OutputSummary((), "outputs of 1 element")
    assert summarize_outputs(StepOutputsView(group="build"), is_array=True) is None


def test_the_page_of_a_large_array_shows_the_outputs_of_some_elements_and_leads_to_the_others() -> None:
    names = tuple(f"n{at}" for at in range(30))
    group = a_group("sweep", outputs=Outputs(text=names), array=GroupArray(size=20))
    outputs = StepOutputsView(
        group="sweep", elements=tuple(ElementOutputs(index=at, texts={"n0": str(at)}) for at in range(20))
    )
    step = StepView(name="sweep", size=20, is_array=True)
    run = RunView(job_id="r", namespace="default", steps=(step,))

    first = build_step_page(run, step, group, outputs, (), "", 0, 0)
    last = build_step_page(run, step, group, outputs, (), "", 18, 0)

    assert [row.index for row in first.outputs] == [0, 1, 2, 3, 4, 5]
    assert (first.next_url, first.first_url) == ("/ui/jobs/r/steps/sweep?element=6", "")
    assert [row.index for row in last.outputs] == [18, 19]
    assert (last.next_url, last.first_url) == ("", "/ui/jobs/r/steps/sweep")
