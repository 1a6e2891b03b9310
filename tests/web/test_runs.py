"""Runs on pages: their steps, and the forms that answer gates, cancel and retry."""

import json
from typing import Any

from msgspec.structs import replace

from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.web.browsing import Browser, a_browser, a_server_with_access
from tests.web.small_cluster import FixedToken, a_failed_import, a_flow, a_release, create_reader, register, sign_in
from tests.web.strict_html import find_problems
from wharf.contract.model.jobs.array_views import ArrayCounts
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.run_views import RunStatus, RunView, StepStatus, StepView
from wharf.contract.model.jobs.steps import Gate
from wharf.web.views.runs import MAX_BOXES, MAX_ROWS, build_run_section, select_rows


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


@in_virtual_time
async def test_a_form_rejects_a_gate() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_release())

        await browser.post("/ui/jobs/release/answer", {"step": "ship", "answer": "reject", "text": ""})

        assert await find_status(server, "release", "ship") is StepStatus.FAILED


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


@in_virtual_time
async def test_the_overview_names_the_question_of_a_run_that_waits_for_an_answer() -> None:
    async with ACluster() as cluster:
        server, browser = await with_run(cluster, a_release())

        during = (await browser.get("/ui")).text
        await server.client.flows.answer("release", "ship", "approve")
        await pass_time(20)
        after = (await browser.get("/ui")).text

        text = "release waits for an answer: Release to production?"
        assert (text in during, "step ship; without an answer it fails in" in during, text in after) == (
            True,
            True,
            False,
        )


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
