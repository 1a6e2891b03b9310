"""Endpoints of flows and their runs."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job
from tests.cluster.api.test_read_limits import send, store_all
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.loop_holds import MeasuredCluster
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.steps import MAX_STEPS, Flow, Gate, Need
from wharf.contract.model.times import to_datetime


def a_run(job_id: str = "nightly") -> Job:
    return a_batch_job(job_id, a_group("build"), a_group("test", depends=(Need(on="build"),)))


def a_flow(job_id: str = "release") -> Job:
    return a_parameterized_job(job_id, a_group("build"), flow=Flow(overlap="queue"))


async def with_jobs(cluster: ACluster, *jobs: Job) -> tuple[OneServer, ApiClient]:
    server = await cluster.a_server()
    client = ApiClient(server)
    for job in jobs:
        await client.put("/v1/jobs", {"Job": job})
    await pass_time(0.1)
    return server, client


@in_virtual_time
async def test_a_run_shows_its_steps_in_layers() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_run())

        run = await client.get("/v1/job/nightly/run")

        assert [(step["Name"], step["Layer"], step["Needs"]) for step in run["Steps"]] == [
            ("build", 0, []),
            ("test", 1, ["build"]),
        ]
        assert (run["JobID"], run["Namespace"], run["LayerCount"]) == ("nightly", "default", 2)


@in_virtual_time
async def test_a_job_without_steps_is_no_run_and_a_flow_is_none_either() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_job("web"), a_flow())

        assert await client.refusal("GET", "/v1/job/web/run") == (
            400,
            'job "web" has no steps: a run is a job with a group that has Depends or another field of steps',
        )
        assert (await client.refusal("GET", "/v1/job/release/run"))[1].startswith('job "release" is a flow, not a run')
        assert (await client.refusal("GET", "/v1/job/none/run"))[0] == 404


@in_virtual_time
async def test_runs_and_flows_are_listed_without_other_jobs() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_run(), a_flow(), a_job("web"))
        child = (await client.put("/v1/job/release/dispatch", {}))["DispatchedJobID"]

        assert [(each["JobID"], each["Flow"]) for each in await client.get("/v1/runs")] == [
            ("nightly", ""),
            (child, "release"),
        ]
        assert [each["JobID"] for each in await client.get("/v1/runs", flow="release")] == [child]
        (flow,) = await client.get("/v1/flows")
        assert (flow["JobID"], flow["Overlap"], flow["StepCount"]) == ("release", "queue", 1)
        assert (flow["Latest"]["JobID"], flow["Waiting"] + flow["Running"]) == (child, 1)


@in_virtual_time
async def test_a_blocking_read_of_a_run_returns_when_the_run_changes() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_run())
        first = await client.raw("GET", "/v1/job/nightly/run")
        waiting = asyncio.ensure_future(
            client.raw("GET", "/v1/job/nightly/run", index=first.headers["x-cluster-index"], wait="60s")
        )
        await pass_time(1)
        assert not waiting.done()

        await client.delete("/v1/job/nightly")
        await pass_time(1)

        assert int((await waiting).headers["x-cluster-index"]) > int(first.headers["x-cluster-index"])


@in_virtual_time
async def test_a_caller_needs_the_capability_to_read_jobs() -> None:
    async with ACluster() as cluster:
        server, _ = await with_jobs(cluster, a_run())
        enable_acl(server)
        denied = ApiClient(server, await a_token(server))

        for path in ("/v1/job/nightly/run", "/v1/runs", "/v1/flows"):
            assert (await denied.raw("GET", path)).status == 403


@in_virtual_time
async def test_the_largest_run_is_read_in_a_short_step() -> None:
    names = [f"step{number}" for number in range(MAX_STEPS)]
    steps = [
        a_group(name, depends=tuple(Need(on=each) for each in names[max(0, at - 2) : at]))
        for at, name in enumerate(names)
    ]
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_all(server, [JOBS.build_put(a_batch_job("nightly", *steps))])

        reply, holds = await send(server, "/v1/job/nightly/run")

        assert reply.status == 200
        holds.require_short("flow.run")


# -- changes of runs


def a_gated_run(policy: str = "") -> Job:
    return a_batch_job("nightly", a_group("ship", gate=Gate(ask="now?", policy=policy)))


def read_step(run: dict[str, Any], name: str) -> dict[str, Any]:
    return next(step for step in run["Steps"] if step["Name"] == name)


@in_virtual_time
async def test_an_approved_gate_says_who_approved_it() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_gated_run())

        reply = await client.put("/v1/job/nightly/answer", {"Step": "ship", "Answer": "approve", "Text": "checked"})

        gate = read_step(await client.get("/v1/job/nightly/run"), "ship")["Gate"]
        assert (gate["IsOpen"], gate["Answer"], gate["AnsweredBy"], gate["AnswerText"]) == (
            False, "approved", "anonymous", "checked",
        )  # fmt: skip
        assert reply["EvalID"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"Step": "ship", "Answer": "yes"}, 400, 'Answer is "yes"; it must be one of approve, reject'),
        ({"Step": "ship", "Answer": ""}, 400, 'Answer is ""; it must be one of approve, reject'),
        ({"Step": "none", "Answer": "reject"}, 404, 'run "nightly" has no step "none"; its steps are ship'),
        ({"Step": "shp", "Answer": "reject"}, 404, 'run "nightly" has no step "shp"; did you mean "ship"?'),
        ({"Step": "ship", "Answer": "reject", "Text": "x" * 1_025}, 400, "Text must be at most 1024 bytes long"),
    ],
)
def test_an_answer_that_is_not_valid_is_refused(body: dict[str, str], status: int, text: str) -> None:
    @in_virtual_time
    async def answer() -> None:
        async with ACluster() as cluster:
            _, client = await with_jobs(cluster, a_gated_run())

            assert await client.refusal("PUT", "/v1/job/nightly/answer", body) == (status, text)

    answer()


async def with_callers(cluster: ACluster, job: Job, **rules: str) -> dict[str, ApiClient]:
    """Return clients of callers with these rules, and of one with a management token, at a server with a job."""
    server, _ = await with_jobs(cluster, job)
    enable_acl(server)
    tokens = {name: await a_token(server, text, name=name) for name, text in rules.items()}
    tokens["management"] = await a_token(server, management=True)
    return {name: ApiClient(server, headers) for name, headers in tokens.items()}


READ = 'namespace "default" { capabilities = ["read-job", "list-jobs"] }'
SUBMIT = 'namespace "default" { capabilities = ["read-job", "submit-job"] }'
APPROVE = {"Step": "ship", "Answer": "approve"}


@in_virtual_time
async def test_a_gate_with_a_policy_is_answered_only_by_callers_that_have_it() -> None:
    async with ACluster() as cluster:
        callers = await with_callers(cluster, a_gated_run("deployers"), deployers=READ, writers=SUBMIT)

        denied = await callers["writers"].raw("PUT", "/v1/job/nightly/answer", APPROVE)
        accepted = await callers["deployers"].raw("PUT", "/v1/job/nightly/answer", APPROVE)

        assert (denied.status, accepted.status) == (403, 200)
        assert b'only tokens with the policy "deployers" may answer' in denied.body


@in_virtual_time
async def test_a_management_token_may_answer_each_gate() -> None:
    async with ACluster() as cluster:
        callers = await with_callers(cluster, a_gated_run("deployers"))

        assert (await callers["management"].raw("PUT", "/v1/job/nightly/answer", APPROVE)).status == 200


@in_virtual_time
async def test_a_gate_without_a_policy_is_answered_by_those_who_may_submit_jobs() -> None:
    async with ACluster() as cluster:
        callers = await with_callers(cluster, a_gated_run(), readers=READ, writers=SUBMIT)

        statuses = [
            (await callers[name].raw("PUT", "/v1/job/nightly/answer", APPROVE)).status
            for name in ("readers", "writers")
        ]

        assert statuses == [403, 200]


EVALUATE = 'namespace "default" { capabilities = ["read-job", "evaluate-job"] }'


@in_virtual_time
async def test_a_retry_of_a_stopped_run_needs_the_permission_to_submit_jobs() -> None:
    async with ACluster() as cluster:
        callers = await with_callers(cluster, a_gated_run(), evaluators=EVALUATE, writers=SUBMIT)
        await callers["management"].raw("DELETE", "/v1/job/nightly")
        await pass_time(1)

        statuses = [
            (await callers[name].raw("PUT", "/v1/job/nightly/retry", {})).status for name in ("evaluators", "writers")
        ]

        assert statuses == [403, 200]


@in_virtual_time
async def test_a_rerun_of_a_stopped_job_needs_the_permission_to_submit_jobs() -> None:
    async with ACluster() as cluster:
        sweep = a_batch_job("nightly", a_group("points", array=GroupArray(size=2)))
        callers = await with_callers(cluster, sweep, evaluators=EVALUATE, writers=SUBMIT)
        await callers["management"].raw("DELETE", "/v1/job/nightly")
        await pass_time(1)

        statuses = [
            (await callers[name].raw("PUT", "/v1/job/nightly/rerun", {"Indexes": "0-1"})).status
            for name in ("evaluators", "writers")
        ]

        assert statuses == [403, 200]


@in_virtual_time
async def test_a_reader_may_neither_cancel_nor_retry_a_run() -> None:
    async with ACluster() as cluster:
        callers = await with_callers(cluster, a_gated_run(), readers=READ)

        statuses = [
            (await callers["readers"].raw("PUT", f"/v1/job/nightly/{verb}", {})).status for verb in ("cancel", "retry")
        ]

        assert statuses == [403, 403]


@in_virtual_time
async def test_the_first_cancellation_ends_the_run_and_names_its_caller() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_gated_run())

        reply = await client.put("/v1/job/nightly/cancel", {"Text": "wrong input"})

        run = await client.get("/v1/job/nightly/run")
        assert (run["Status"], run["Text"]) == ("canceled", "canceled by anonymous: wrong input")
        assert reply["IsStopped"] is False
        assert await client.refusal("PUT", "/v1/job/nightly/cancel") == (409, 'run "nightly" has ended')


@in_virtual_time
async def test_a_cancellation_that_is_repeated_after_a_lost_reply_does_not_stop_final_steps() -> None:
    async with ACluster() as cluster:
        job = a_batch_job("nightly", a_group("ship"), a_group("tidy", final=True))
        server, client = await with_jobs(cluster, job)
        repeating = ApiClient(server, {"idempotency-key": "cancel-1"})

        replies = [await repeating.put("/v1/job/nightly/cancel", {}) for _ in range(2)]

        assert [reply["IsStopped"] for reply in replies] == [False, False]
        assert (await client.get("/v1/job/nightly"))["Stop"] is False
        assert (await client.put("/v1/job/nightly/cancel", {}))["IsStopped"] is True


@in_virtual_time
async def test_a_cancellation_at_once_stops_the_job() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_gated_run())

        reply = await client.put("/v1/job/nightly/cancel", {"AtOnce": True})

        assert reply["IsStopped"] is True
        assert (await client.get("/v1/job/nightly"))["Stop"] is True


@in_virtual_time
async def test_a_plan_of_a_retry_changes_nothing() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(cluster, a_gated_run())
        await client.put("/v1/job/nightly/cancel", {})
        index = server.replica.index

        plan = await client.put("/v1/job/nightly/retry", {"Plan": True})

        assert [(step["Name"], step["Reason"]) for step in plan["Steps"]] == [
            ("ship", "it was canceled before it began")
        ]
        assert (plan["Attempt"], server.replica.index) == (0, index)


@in_virtual_time
async def test_a_retry_is_a_new_attempt() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_gated_run())
        await client.put("/v1/job/nightly/cancel", {})

        reply = await client.put("/v1/job/nightly/retry", {"Steps": ["ship"]})

        run = await client.get("/v1/job/nightly/run")
        assert (reply["Attempt"], [each["Attempt"] for each in run["Attempts"]]) == (2, [1, 2])
        assert read_step(run, "ship")["Status"] == "gated"


@in_virtual_time
async def test_a_retry_with_more_names_than_a_run_has_steps_is_refused() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_gated_run())

        refusal = await client.refusal("PUT", "/v1/job/nightly/retry", {"Steps": ["ship"] * 501})

        assert refusal == (400, "Steps has 501 names; a run has at most 500 steps")


# -- backfill


@in_virtual_time
async def test_a_backfill_creates_the_runs_of_past_slots_once() -> None:
    async with ACluster() as cluster:
        flow = a_periodic_job("report", a_group("build"), flow=Flow(overlap="queue"))
        _, client = await with_jobs(cluster, flow)
        body = {"From": "2025-12-01T00:00:00Z", "To": "2025-12-03T00:00:00Z"}

        plan = await client.put("/v1/job/report/backfill", {**body, "Plan": True})
        first = await client.put("/v1/job/report/backfill", body)
        second = await client.put("/v1/job/report/backfill", body)

        assert [each["Created"] for each in (plan, first, second)] == [2, 2, 0]
        assert [each["Exists"] for each in second["Slots"]] == [True, True]
        assert [each["JobID"] for each in await client.get("/v1/runs", flow="report")] == [
            each["JobID"] for each in first["Slots"]
        ]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"From": "2025-12-01T00:00:00Z"}, "From and To must both be set"),
        ({"From": "2025-12-01T00:00:00Z", "To": "2099-12-01T00:00:00Z"}, "the time To lies in the future"),
        ({"From": "2025-12-01T00:00:00Z", "To": "2025-12-05T00:00:00Z", "Max": 2}, "more than 2 slots of report"),
        ({"From": "2025-12-01T00:00:00Z", "To": "2025-12-05T00:00:00Z", "Max": 500}, "Max is 500; it must be"),
    ],
)
def test_a_backfill_that_is_not_valid_is_refused(body: dict[str, Any], text: str) -> None:
    @in_virtual_time
    async def backfill() -> None:
        async with ACluster() as cluster:
            _, client = await with_jobs(cluster, a_periodic_job("report", a_group("build"), flow=Flow()))

            status, refused = await client.refusal("PUT", "/v1/job/report/backfill", body)

            assert (status, refused.startswith(text)) == (400, True), refused

    backfill()


# -- order and states of lists


def list_ids(runs: list[dict[str, Any]]) -> list[str]:
    return [each["JobID"] for each in runs]


async def with_three_runs(cluster: ACluster) -> ApiClient:
    """Return a client of a server with runs that began in the order b, c, a. A step of b waits for approval."""
    _, client = await with_jobs(cluster)
    gated = a_batch_job("b", a_group("ship", gate=Gate(ask="now?")))
    for job in (gated, a_run("c"), a_run("a")):
        await client.put("/v1/jobs", {"Job": job})
        await pass_time(1)
    return client


@in_virtual_time
async def test_the_newest_run_is_the_one_that_began_last() -> None:
    async with ACluster() as cluster:
        client = await with_three_runs(cluster)
        await client.delete("/v1/job/c")  # A stop changes the run, and not when it began.

        assert list_ids(await client.get("/v1/runs", sort="newest")) == ["a", "c", "b"]
        assert list_ids(await client.get("/v1/runs", sort="newest", reverse="true")) == ["b", "c", "a"]
        assert list_ids(await client.get("/v1/runs", sort="newest", namespace="*")) == ["a", "c", "b"]
        assert list_ids(await client.get("/v1/runs")) == ["a", "b", "c"]


@in_virtual_time
async def test_a_run_changes_when_a_step_does() -> None:
    async with ACluster() as cluster:
        client = await with_three_runs(cluster)

        await client.put("/v1/job/b/answer", {"Step": "ship", "Answer": "approve"})

        assert list_ids(await client.get("/v1/runs", sort="changed")) == ["b", "a", "c"]


@pytest.mark.parametrize("sort", ["newest", "changed"])
@in_virtual_time
async def test_pages_of_sorted_runs_have_each_run_once(sort: str) -> None:
    async with ACluster() as cluster:
        client = await with_three_runs(cluster)
        whole = list_ids(await client.get("/v1/runs", sort=sort))

        found: list[str] = []
        token = ""
        while len(found) < len(whole):
            page = await client.raw("GET", "/v1/runs", sort=sort, per_page="1", next_token=token)
            found += list_ids(json.loads(page.body))
            token = page.headers.get("x-cluster-nexttoken", "")

        assert (found, token) == (whole, "")


@in_virtual_time
async def test_runs_are_listed_by_their_state() -> None:
    async with ACluster() as cluster:
        client = await with_three_runs(cluster)
        await client.put("/v1/job/c/cancel", {"AtOnce": True})
        await pass_time(1)

        states = {
            state: list_ids(await client.get("/v1/runs", state=state))
            for state in ("gated", "active", "waiting", "canceled", "failed")
        }

        assert states == {
            "gated": ["b"],
            "active": ["a", "b"],
            "waiting": ["a", "b"],
            "canceled": ["c"],
            "failed": [],
        }
        assert list_ids(await client.get("/v1/runs", state="active", sort="newest", filter='ID != "b"')) == ["a"]


@in_virtual_time
async def test_an_unknown_order_or_state_of_runs_is_refused_with_the_known_ones() -> None:
    async with ACluster() as cluster:
        client = await with_three_runs(cluster)

        assert await client.refusal("GET", "/v1/runs", sort="age") == (
            400,
            'sort is "age"; it must be newest or changed, or be left out',
        )
        assert await client.refusal("GET", "/v1/runs", state="dead") == (
            400,
            'state is "dead"; it must be one of gated, active, waiting, running, canceling, succeeded, failed, canceled, skipped, or be '
            "left out",
        )
        assert (await client.refusal("GET", "/v1/runs", sort="newest", next_token=f"{'9' * 30}.default.a"))[0] == 400


@in_virtual_time
async def test_a_second_cancellation_says_who_made_it() -> None:
    async with ACluster() as cluster:
        final = a_batch_job("nightly", a_group("build", gate=Gate()), a_group("tidy", final=True))
        _, client = await with_jobs(cluster, final)

        await client.put("/v1/job/nightly/cancel", {"Text": "wrong input"})
        await client.put("/v1/job/nightly/cancel", {"Text": "no time"})

        run = await client.get("/v1/job/nightly/run")
        (attempt,) = run["Attempts"]
        assert (attempt["CancelCause"]["Actor"], attempt["CancelCause"]["Detail"]) == ("anonymous", "wrong input")
        assert (attempt["StopCause"]["Actor"], attempt["StopCause"]["Detail"]) == ("anonymous", "no time")
        assert run["Text"] == ("canceled by anonymous: wrong input; then stopped at once by anonymous: no time")


@in_virtual_time
async def test_many_runs_are_sorted_and_selected_in_short_steps() -> None:
    steps = [a_group(f"s{number}", gate=Gate() if not number else None) for number in range(20)]
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_all(server, [JOBS.build_put(a_batch_job(f"run{number}", *steps)) for number in range(500)])

        for query in ("sort=newest", "sort=changed", "state=gated", "state=active&sort=newest"):
            reply, holds = await send(server, "/v1/runs", f"{query}&per_page=10")

            assert (reply.status, len(json.loads(reply.body)) <= 10) == (200, True)
            holds.require_short("flow.runs")


@in_virtual_time
async def test_a_list_of_jobs_has_the_progress_of_runs_and_arrays_if_it_is_requested() -> None:
    async with ACluster() as cluster:
        array = a_batch_job("sweep", a_group("work", array=GroupArray(size=3)))
        _, client = await with_jobs(cluster, a_run(), array, a_flow(), a_job("web"))

        plain = {each["ID"]: "Progress" in each for each in await client.get("/v1/jobs")}
        for order in ({}, {"sort": "changed"}):
            jobs = await client.get("/v1/jobs", progress="true", **order)
            found = {each["ID"]: each.get("Progress") for each in jobs}

            assert (found["release"], found["web"]) == (None, None)
            assert (found["nightly"]["RunStatus"], found["nightly"]["IsGated"]) == ("waiting", False)
            assert (found["nightly"]["Elements"]["Waiting"], found["sweep"]["Elements"]["Waiting"]) == (2, 3)
            assert found["sweep"]["RunStatus"] == ""
        assert plain == {"nightly": False, "sweep": False, "release": False, "web": False}


@in_virtual_time
async def test_a_run_that_is_registered_again_counts_once_among_the_runs_of_its_flow() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_flow())
        run_id = (await client.put("/v1/job/release/dispatch", {}))["DispatchedJobID"]
        path = f"/v1/job/{run_id.replace('/', '%2F')}"
        await client.delete(path)
        await pass_time(1)
        run = await client.get(path)

        for priority in (60, 70):
            await client.put("/v1/jobs", {"Job": {**run, "Stop": False, "Priority": priority}})
            await pass_time(1)
            summary = await client.get("/v1/job/release/summary")
            assert summary["Children"] == {"Pending": 1, "Running": 0, "Dead": 0}
            await client.delete(path)
            await pass_time(1)

        assert (await client.get("/v1/job/release/summary"))["Children"] == {"Pending": 0, "Running": 0, "Dead": 1}


@in_virtual_time
async def test_two_backfills_at_the_same_time_report_each_run_as_created_once() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(
            cluster, a_periodic_job("nightly", a_group("build"), flow=Flow(overlap="queue"))
        )
        now = to_datetime(server.world.now_ns())
        slots = {"From": (now - timedelta(days=3)).isoformat(), "To": now.isoformat()}

        replies = await asyncio.gather(*(client.put("/v1/job/nightly/backfill", slots) for _ in range(2)))

        created = [slot["JobID"] for reply in replies for slot in reply["Slots"] if not slot["Exists"]]
        assert (len(created), len(set(created))) == (3, 3)
        assert sum(reply["Created"] for reply in replies) == 3
