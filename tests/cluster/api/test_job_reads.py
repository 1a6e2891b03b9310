"""Reads of jobs and of their allocations, deployments and services (jobs.md 1.1, 1.2 and 1.5)."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job, a_task
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import JOB_SETTINGS, ACluster, OneServer
from tests.kit.state import an_allocation
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import a_namespace, store
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, JOBS, SERVICES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.jobs.groups import TaskAction
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.services import ServiceRegistration


async def with_jobs(cluster: ACluster, *jobs: Job) -> tuple[OneServer, ApiClient]:
    server = await cluster.a_server()
    client = ApiClient(server)
    for job in jobs:
        await client.put("/v1/jobs", {"Job": job})
    await pass_time(0.1)
    return server, client


def the_job(server: OneServer, job_id: str = "shop") -> Job:
    job = server.replica.get(JOBS, "default", job_id)
    assert job is not None
    return job


# -- the list


@in_virtual_time
async def test_a_job_stub_has_the_fields_of_lists() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(cluster, a_job("shop", meta={"a": "b"}))
        job = the_job(server)

        (stub,) = await client.get("/v1/jobs")

        assert stub == {
            "ID": "shop",
            "ParentID": "",
            "Name": "shop",
            "Namespace": "default",
            "Datacenters": ["*"],
            "NodePool": "default",
            "Multiregion": None,
            "Type": "service",
            "Priority": JOB_SETTINGS.default_priority,
            "Periodic": False,
            "ParameterizedJob": False,
            "Stop": False,
            "Status": job.status,
            "StatusDescription": "",
            "JobSummary": stub["JobSummary"],
            "GroupCountSum": 1,
            "CreateIndex": job.create_index,
            "ModifyIndex": job.modify_index,
            "JobModifyIndex": job.job_modify_index,
            "SubmitTime": job.submit_time,
        }
        assert stub["JobSummary"]["Summary"]["web"]["Queued"] == 1


@in_virtual_time
async def test_meta_is_listed_on_request_if_the_job_has_any() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_job("a", meta={"k": "v"}), a_job("b"))

        views = [stub.get("Meta") for stub in await client.get("/v1/jobs", meta="true")]

        assert (views, "Meta" in (await client.get("/v1/jobs"))[0]) == ([{"k": "v"}, None], False)
        assert (await client.refusal("GET", "/v1/jobs", meta="maybe"))[0] == 400


@in_virtual_time
async def test_a_stopped_job_has_the_time_of_its_submission_if_progress_is_requested() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_job("a"), a_job("b"))
        (before, _) = await client.get("/v1/jobs")
        await pass_time(60)
        await client.delete("/v1/job/a")

        stopped, running = await client.get("/v1/jobs", progress="true")

        assert stopped["SubmissionTime"] == before["SubmitTime"] < stopped["SubmitTime"]
        assert "SubmissionTime" not in running
        assert "SubmissionTime" not in (await client.get("/v1/jobs"))[0]


@in_virtual_time
async def test_jobs_are_listed_by_namespace_and_id_and_tokens_name_the_next_job() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(cluster, a_job("b"), a_job("a.x"), a_job("c"))
        await a_namespace(server, "aaa")
        await client.put("/v1/jobs", {"Job": a_job("z", namespace="aaa")})

        first = await client.raw("GET", "/v1/jobs", namespace="*", per_page=2)
        second_page = await client.get("/v1/jobs", namespace="*", next_token=first.headers["x-cluster-nexttoken"])
        backwards = await client.get("/v1/jobs", namespace="*", reverse="true")

        assert first.headers["x-cluster-nexttoken"] == "default.b"
        assert [stub["ID"] for stub in second_page] == ["b", "c"]
        assert [stub["ID"] for stub in backwards] == ["c", "b", "a.x", "z"]


@in_virtual_time
async def test_the_list_can_be_filtered_by_all_job_fields_and_by_a_prefix() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_job("shop", meta={"team": "a"}), a_batch_job("shelf"), a_job("other"))

        by_meta = await client.get("/v1/jobs", filter='Meta.team == "a"')
        by_group = await client.get("/v1/jobs", filter='Type == batch and (any TaskGroups as g { g.Name == "web" })')
        by_prefix = await client.get("/v1/jobs", prefix="sh")

        assert [[stub["ID"] for stub in matches] for matches in (by_meta, by_group, by_prefix)] == [
            ["shop"],
            ["shelf"],
            ["shelf", "shop"],
        ]


@in_virtual_time
async def test_a_list_of_all_namespaces_has_the_jobs_that_the_caller_may_see() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(cluster, a_job("a"))
        await a_namespace(server, "secret")
        await client.put("/v1/jobs", {"Job": a_job("b", namespace="secret")})
        enable_acl(server)
        reader = ApiClient(server, await a_token(server, 'namespace "default" { capabilities = ["list-jobs"] }'))

        assert [stub["ID"] for stub in await reader.get("/v1/jobs", namespace="*")] == ["a"]
        assert await reader.refusal("GET", "/v1/jobs", namespace="secret") == (403, "Permission denied")


@in_virtual_time
async def test_an_unknown_namespace_lists_nothing() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_job("a"))

        assert await client.get("/v1/jobs", namespace="nowhere") == []


# -- one job


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "job not found"),
        ("/summary", "job not found"),
        ("/versions", "job versions not found"),
        ("/scale", "job not found"),
        ("/services", "job not found"),
        ("/submission?version=0", "job source not found"),
        ("/actions", 'Unknown job "shop"'),
    ],
)
def test_reading_an_unknown_job_is_a_404(path: str, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            client = ApiClient(await cluster.a_server())
            route, _, query = path.partition("?")

            result = await client.refusal("GET", f"/v1/job/shop{route}", **dict([query.split("=")] if query else []))

            assert result == (404, text)

    run()


@in_virtual_time
async def test_lists_of_an_unknown_job_are_empty_and_its_deployment_is_null() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        for noun in ("allocations", "evaluations", "deployments"):
            assert await client.get(f"/v1/job/shop/{noun}") == []
        assert await client.get("/v1/job/shop/deployment") is None


@in_virtual_time
async def test_for_one_job_the_wildcard_namespace_is_a_literal_name() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_job("shop"))

        assert await client.refusal("GET", "/v1/job/shop", namespace="*") == (404, "job not found")


@in_virtual_time
async def test_a_job_id_may_contain_slashes_escaped_or_not() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_job("a/b"))

        assert (await client.get("/v1/job/a/b"))["ID"] == "a/b"
        assert (await client.get("/v1/job/a%2Fb/summary"))["JobID"] == "a/b"


@in_virtual_time
async def test_a_payload_is_shown_as_base64() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_parameterized_job("convert"))
        created = await client.put("/v1/job/convert/dispatch", {"Payload": "AGZpbG0="})

        child = await client.get(f"/v1/job/{created['DispatchedJobID']}")

        assert (child["Payload"], child["ParameterizedJob"]["Payload"]) == ("AGZpbG0=", "optional")


@in_virtual_time
async def test_a_blocking_read_of_a_job_wakes_for_its_changes_only() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(cluster, a_job("shop"), a_job("other"))
        index = the_job(server).modify_index

        pending_read = asyncio.ensure_future(client.get("/v1/job/shop", index=index, wait="60s"))
        await pass_time(0.2)
        await client.put("/v1/jobs", {"Job": a_job("other", priority=60)})
        await pass_time(0.2)
        was_waiting = not pending_read.done()
        await client.put("/v1/jobs", {"Job": a_job("shop", priority=60)})

        assert (was_waiting, (await pending_read)["Priority"]) == (True, 60)


# -- records of a job


async def with_purged_predecessor(cluster: ACluster) -> tuple[OneServer, ApiClient]:
    """Return a job with an allocation and a deployment, and one of each of a purged job with the same id."""
    server, client = await with_jobs(cluster, a_batch_job("shop"))
    job = the_job(server)
    first_life = replace(job, create_index=1)
    for number, generation in enumerate((first_life, job)):
        allocation = an_allocation(generation, f"{number}0000000-0000-4000-8000-000000000000", node_id="none")
        deployment = Deployment(
            id=f"d{number}",
            namespace="default",
            job_id="shop",
            job_create_index=generation.create_index,
            status=DeploymentStatus.SUCCESSFUL,
            create_index=WRITE_INDEX,
        )
        await store(server, ALLOCATIONS.build_put(allocation), DEPLOYMENTS.build_put(deployment))
    return server, client


@in_virtual_time
async def test_allocations_and_deployments_of_a_purged_job_are_listed_only_with_all() -> None:
    async with ACluster() as cluster:
        _, client = await with_purged_predecessor(cluster)

        counts = {
            (noun, includes_purged): len(await client.get(f"/v1/job/shop/{noun}", all=includes_purged))
            for noun in ("allocations", "deployments")
            for includes_purged in ("false", "true")
        }

        assert counts == {
            ("allocations", "false"): 1,
            ("allocations", "true"): 2,
            ("deployments", "false"): 1,
            ("deployments", "true"): 2,
        }


@in_virtual_time
async def test_the_deployment_of_a_job_is_its_newest() -> None:
    async with ACluster() as cluster:
        _, client = await with_purged_predecessor(cluster)

        assert (await client.get("/v1/job/shop/deployment"))["ID"] == "d1"


@in_virtual_time
async def test_services_of_a_job_are_listed() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(cluster, a_job("shop"))
        before = await client.get("/v1/job/shop/services")
        service = ServiceRegistration(
            id="s1",
            service_name="web",
            namespace="default",
            job_id="shop",
            alloc_id="a1",
            port=80,
            create_index=WRITE_INDEX,
        )
        await store(server, SERVICES.build_put(service))

        (result,) = await client.get("/v1/job/shop/services")

        assert (before, result["ID"], result["ServiceName"], result["Port"]) == ([], "s1", "web", 80)


@in_virtual_time
async def test_actions_of_a_job_are_listed_with_their_tasks() -> None:
    async with ACluster() as cluster:
        action = TaskAction(name="flush", command="/bin/flush", args=("-a",))
        _, client = await with_jobs(cluster, a_job("shop", a_group("web", a_task("server", actions=(action,)))))

        result = await client.get("/v1/job/shop/actions")

        assert result == [
            {
                "Name": "flush",
                "Command": "/bin/flush",
                "Args": ["-a"],
                "TaskName": "server",
                "TaskGroupName": "web",
            }
        ]


@in_virtual_time
async def test_a_summary_counts_children_of_a_parent() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_periodic_job("nightly"))
        await client.put("/v1/job/nightly/periodic/force")

        result: Any = await client.get("/v1/job/nightly/summary")

        assert (result["JobID"], sum(result["Children"].values())) == ("nightly", 1)


@in_virtual_time
async def test_the_scale_of_a_job_is_reported_by_group() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(cluster, a_job("shop", a_group(count=3)))
        job = the_job(server)

        result = await client.get("/v1/job/shop/scale")

        assert result == {
            "JobID": "shop",
            "Namespace": "default",
            "JobCreateIndex": job.create_index,
            "JobModifyIndex": job.modify_index,
            "JobStopped": False,
            "TaskGroups": {
                "web": {"Desired": 3, "Placed": 0, "Running": 0, "Healthy": 0, "Unhealthy": 0, "Events": None}
            },
        }


@in_virtual_time
async def test_lists_of_one_job_ignore_page_and_order_parameters() -> None:
    async with ACluster() as cluster:
        _, client = await with_purged_predecessor(cluster)
        requests = {"per_page": 1, "reverse": "true", "all": "true"}

        for noun in ("allocations", "deployments"):
            plain = await client.get(f"/v1/job/shop/{noun}", all="true")
            assert (await client.get(f"/v1/job/shop/{noun}", **requests), len(plain)) == (plain, 2)
        assert (await client.refusal("GET", "/v1/job/shop/allocations", per_page="x"))[0] == 400


@in_virtual_time
async def test_evaluations_of_a_job_are_listed_by_creation() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_batch_job("shop"))
        created = [(await client.put("/v1/job/shop/evaluate"))["EvalID"] for _ in range(3)]

        result = await client.get("/v1/job/shop/evaluations")

        assert [each["ID"] for each in result if each["ID"] in created] == created


# -- the timeline


async def with_allocations(cluster: ACluster, count: int) -> ApiClient:
    server, client = await with_jobs(cluster, a_job("shop"))
    job = the_job(server)
    for number in range(count):
        await store(server, ALLOCATIONS.build_put(an_allocation(job, f"a{number}", create_time=number + 1)))
    return client


@in_virtual_time
async def test_only_the_newest_allocations_can_be_listed() -> None:
    async with ACluster() as cluster:
        client = await with_allocations(cluster, 5)

        newest = await client.get("/v1/job/shop/allocations", newest=2)
        refused, text = await client.refusal("GET", "/v1/job/shop/allocations", newest=1_001)

        assert [each["ID"] for each in newest] == ["a4", "a3"]
        assert (refused, "at most 1000" in text) == (400, True)


@in_virtual_time
async def test_only_failed_allocations_are_listed_on_request_all_or_the_newest() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(cluster, a_job("shop"))
        job = the_job(server)
        for number, status in enumerate(("failed", "failed", "complete", "failed", "running")):
            allocation = an_allocation(job, f"a{number}", create_time=number + 1, client_status=ClientStatus(status))
            await store(server, ALLOCATIONS.build_put(allocation))

        newest = await client.get("/v1/job/shop/allocations", newest=2, failed="true")
        every = await client.get("/v1/job/shop/allocations", failed="true")

        assert [each["ID"] for each in newest] == ["a3", "a1"]
        assert [each["ID"] for each in every] == ["a0", "a1", "a3"]


@in_virtual_time
async def test_a_timeline_has_pages_with_the_newest_allocations_first() -> None:
    async with ACluster() as cluster:
        client = await with_allocations(cluster, 5)

        first = await client.get("/v1/job/shop/timeline", limit=3)
        second = await client.get("/v1/job/shop/timeline", limit=3, before=first["NextToken"])

        assert [each["ID"] for each in first["Allocations"]] == ["a4", "a3", "a2"]
        assert [each["ID"] for each in second["Allocations"]] == ["a1", "a0"]
        assert (first["Total"], second["NextToken"]) == (5, "")
        assert first["Evaluations"][-1]["TriggeredBy"] == "job-register"


@in_virtual_time
@pytest.mark.parametrize(
    ("query", "text"), [({"limit": 0}, "limit is 0"), ({"limit": 1001}, "1000"), ({"before": "x"}, "NextToken")]
)
async def test_a_timeline_refuses_parameters_that_it_cannot_use(query: dict[str, Any], text: str) -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, a_job("shop"))

        status, refusal = await client.refusal("GET", "/v1/job/shop/timeline", **query)

        assert (status, text in refusal) == (400, True)


# -- the order of lists


@in_virtual_time
async def test_jobs_are_listed_by_their_last_change_on_request() -> None:
    async with ACluster() as cluster:
        server, client = await with_jobs(cluster, a_job("one"), a_job("two"), a_job("three"))
        await pass_time(1)  # The scheduler has evaluated them, which changes jobs too.
        for name, priority in (("two", 50), ("three", 60), ("one", 70)):
            await store(server, JOBS.build_put(replace(the_job(server, name), priority=priority)))

        listed = await client.get("/v1/jobs", sort="changed")
        first = await client.get("/v1/jobs", sort="changed", filter="Priority == 70")
        refused, text = await client.refusal("GET", "/v1/jobs", sort="size")

        assert [job["ID"] for job in listed] == ["one", "three", "two"]
        assert [job["ID"] for job in first] == ["one"]
        assert (refused, "it must be changed" in text) == (400, True)


@in_virtual_time
async def test_jobs_by_their_last_change_have_pages_in_both_directions() -> None:
    async with ACluster() as cluster:
        _, client = await with_jobs(cluster, *(a_job(f"job-{number}") for number in range(5)))

        first = await client.raw("GET", "/v1/jobs", sort="changed", per_page=2)
        token = first.headers["x-cluster-nexttoken"]
        second = await client.get("/v1/jobs", sort="changed", per_page=2, next_token=token)
        back = await client.get("/v1/jobs", sort="changed", per_page=3, next_token=token, reverse="true")

        assert [job["ID"] for job in second] == ["job-2", "job-1"]
        assert [job["ID"] for job in back] == ["job-2", "job-3", "job-4"]


@in_virtual_time
async def test_jobs_by_their_last_change_are_only_those_that_the_caller_may_list() -> None:
    async with ACluster() as cluster:
        server, _ = await with_jobs(cluster, a_job("one"))
        await a_namespace(server, "other")
        await store(server, JOBS.build_put(a_job("two", namespace="other")))
        enable_acl(server)
        reader = ApiClient(server, await a_token(server, 'namespace "other" { policy = "read" }'))

        assert [job["ID"] for job in await reader.get("/v1/jobs", namespace="*", sort="changed")] == ["two"]
