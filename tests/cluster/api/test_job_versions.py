"""Versions of a job over HTTP: list, compare, tag, mark stable, revert (jobs.md 1.2 and 1.3)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.state.tables import JOB_VERSIONS, JOBS
from wharf.contract.model.jobs.job import JobStatus

TAG = "/v1/job/shop/versions/golden/tag"


async def with_versions(cluster: ACluster, count: int) -> tuple[OneServer, ApiClient]:
    """Start a server with versions of `shop`. Their priorities are 1, 2, 3 ..."""
    server = await cluster.a_server()
    client = ApiClient(server)
    for priority in range(1, count + 1):
        await client.put("/v1/jobs", {"Job": a_job(priority=priority)})
    return server, client


async def versions(client: ApiClient, **query: Any) -> Any:
    return await client.get("/v1/job/shop/versions", **query)


def priorities(diffs: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    """Return the old and new priority of each difference."""
    return [[(f["Old"], f["New"]) for f in diff["Fields"] or () if f["Name"] == "Priority"] for diff in diffs]


@in_virtual_time
async def test_versions_are_listed_newest_first_and_differences_only_on_request() -> None:
    async with ACluster() as cluster:
        server, client = await with_versions(cluster, 3)

        result = await versions(client)

        assert [version["Version"] for version in result["Versions"]] == [2, 1, 0]
        assert result["Diffs"] is None
        newest = max(v.modify_index for v in server.replica.iter_all(JOB_VERSIONS))
        assert result["Index"] >= newest
        assert {"LastContact", "KnownLeader", "NextToken"} <= result.keys()


@in_virtual_time
async def test_an_older_version_shows_the_status_that_the_job_had_until_it_was_replaced() -> None:
    async with ACluster() as cluster:
        server, client = await with_versions(cluster, 1)
        await pass_time(1)  # The scheduler has evaluated the job, which changes its status too.
        stored = server.replica.get(JOBS, "default", "shop")
        assert stored is not None
        await commit(server, JOBS.build_put(replace(stored, status=JobStatus.RUNNING)))

        await client.put("/v1/jobs", {"Job": a_job(priority=2)})
        result = await versions(client)
        await client.put("/v1/job/shop/stable", {"JobID": "shop", "JobVersion": 0, "Stable": True})
        stable = await versions(client)

        assert [(each["Version"], each["Status"]) for each in result["Versions"]] == [(1, "running"), (0, "running")]
        assert [(each["Stable"], each["Status"]) for each in stable["Versions"]] == [
            (False, "running"),
            (True, "running"),
        ]


@in_virtual_time
async def test_each_version_is_compared_with_the_previous_one() -> None:
    async with ACluster() as cluster:
        _, client = await with_versions(cluster, 3)

        result = await versions(client, diffs="true")

        assert priorities(result["Diffs"]) == [[("2", "3")], [("1", "2")]]


@in_virtual_time
async def test_all_versions_are_compared_with_a_named_one_and_a_tag_overrides_a_number() -> None:
    async with ACluster() as cluster:
        _, client = await with_versions(cluster, 3)
        await client.put(TAG, {"Version": 1})

        by_number = await versions(client, diffs="true", diff_version=0)
        by_tag = await versions(client, diffs="true", diff_version=0, diff_tag="golden")

        assert priorities(by_number["Diffs"]) == [[("1", "3")], [("1", "2")], []]
        assert priorities(by_tag["Diffs"]) == [[("2", "3")], [], [("2", "1")]]


@pytest.mark.parametrize(
    ("query", "status", "begins"),
    [
        ({"diffs": "true", "diff_version": "99"}, 404, "version 99 not found"),
        ({"diffs": "true", "diff_tag": "x"}, 404, 'tag "x" not found'),
        ({"diffs": "maybe"}, 400, 'Failed to parse value of "diffs" (maybe) as a bool'),
        ({"diff_version": "-1"}, 400, 'Failed to parse value of "diff_version" (-1) as a uint64'),
    ],
)
def test_an_impossible_comparison_is_refused(query: dict[str, str], status: int, begins: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            _, client = await with_versions(cluster, 1)

            result = await client.refusal("GET", "/v1/job/shop/versions", **query)

            assert (result[0], result[1][: len(begins)]) == (status, begins)

    run()


# -- tags


@in_virtual_time
async def test_a_new_tag_is_returned_without_an_index_header() -> None:
    async with ACluster() as cluster:
        _, client = await with_versions(cluster, 2)

        reply = await client.raw("PUT", TAG, {"Version": 0, "Description": "the good one"})

        assert (reply.status, "x-cluster-index" in reply.headers) == (200, False)
        tags = [version["VersionTag"] for version in (await versions(client))["Versions"]]
        assert (tags[0], tags[1]["Name"], tags[1]["Description"]) == (None, "golden", "the good one")
        assert tags[1]["TaggedTime"] > 1_700_000_000_000_000_000


@in_virtual_time
async def test_an_empty_object_tags_version_0_and_a_missing_body_is_a_400() -> None:
    async with ACluster() as cluster:
        _, client = await with_versions(cluster, 2)

        assert await client.refusal("PUT", TAG) == (400, "Request body is empty")
        assert (await client.put(TAG, {}))["Name"] == "golden"
        assert (await versions(client))["Versions"][1]["VersionTag"]["Name"] == "golden"


@in_virtual_time
async def test_a_removed_tag_is_returned_with_an_empty_name() -> None:
    async with ACluster() as cluster:
        _, client = await with_versions(cluster, 1)
        await client.put(TAG, {})

        result = await client.delete(TAG)

        assert (result["Name"], result["TaggedTime"]) == ("", 0)
        assert await client.refusal("DELETE", TAG) == (404, 'tag "golden" not found on job "shop"')


@in_virtual_time
async def test_an_unknown_version_cannot_be_tagged() -> None:
    async with ACluster() as cluster:
        _, client = await with_versions(cluster, 1)

        assert await client.refusal("PUT", TAG, {"Version": 9}) == (404, 'job "shop" version 9 not found')


# -- stability and revert


@in_virtual_time
async def test_a_version_is_marked_stable_and_the_job_shows_it() -> None:
    async with ACluster() as cluster:
        _, client = await with_versions(cluster, 1)

        result = await client.put("/v1/job/shop/stable", {"JobID": "shop", "JobVersion": 0, "Stable": True})

        assert (list(result), (await client.get("/v1/job/shop"))["Stable"]) == (["Index"], True)


@in_virtual_time
async def test_a_revert_is_answered_like_a_registration() -> None:
    async with ACluster() as cluster:
        _, client = await with_versions(cluster, 2)

        result = await client.put("/v1/job/shop/revert", {"JobID": "shop", "JobVersion": 0, "EnforcePriorVersion": 1})

        job = await client.get("/v1/job/shop")
        assert (job["Version"], job["Priority"], result["JobModifyIndex"]) == (2, 1, job["JobModifyIndex"])
        assert result["EvalID"] != ""


@pytest.mark.parametrize("action", ["revert", "stable"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Request body is empty"),
        ({"JobVersion": 0}, "JobID must be specified"),
        ({"JobID": "other"}, "Job ID does not match"),
    ],
)
def test_the_body_must_name_the_job(action: str, body: Any, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            _, client = await with_versions(cluster, 2)

            assert await client.refusal("PUT", f"/v1/job/shop/{action}", body) == (400, text)

    run()


@in_virtual_time
async def test_a_revert_to_an_unknown_version_is_refused() -> None:
    async with ACluster() as cluster:
        _, client = await with_versions(cluster, 2)

        def body(version: int, job_id: str = "shop") -> dict[str, Any]:
            return {"JobID": job_id, "JobVersion": version}

        path = "/v1/job/shop/revert"
        missing = 'job "shop" in namespace "default" at version 9 not found'
        assert await client.refusal("PUT", path, body(1)) == (400, "can't revert to current version")
        assert await client.refusal("PUT", path, body(9)) == (404, missing)
        assert await client.refusal("PUT", "/v1/job/x/revert", body(0, "x")) == (404, 'job "x" not found')


@in_virtual_time
async def test_each_fine_grained_right_allows_only_its_own_action() -> None:
    async with ACluster() as cluster:
        server, _ = await with_versions(cluster, 2)
        enable_acl(server)

        async def client(capability: str) -> ApiClient:
            rules = f'namespace "default" {{ capabilities = ["{capability}"] }}'
            return ApiClient(server, await a_token(server, rules))

        tagger, marker, reverter = [await client(c) for c in ("tag-job-version", "stable-job", "revert-job")]
        revert = {"JobID": "shop", "JobVersion": 0}

        assert await tagger.refusal("PUT", "/v1/job/shop/revert", revert) == (403, "Permission denied")
        assert await marker.refusal("PUT", TAG, {}) == (403, "Permission denied")
        assert await marker.refusal("DELETE", TAG) == (403, "Permission denied")
        await tagger.put(TAG, {})
        await marker.put("/v1/job/shop/stable", {"JobID": "shop", "JobVersion": 0, "Stable": True})
        await reverter.put("/v1/job/shop/revert", revert)


@in_virtual_time
async def test_a_job_with_slashes_in_its_id_can_be_tagged() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        await client.put("/v1/jobs", {"Job": a_job("a/b")})

        await client.put("/v1/job/a/b/versions/golden/tag", {})

        (version,) = (await client.get("/v1/job/a/b/versions"))["Versions"]
        assert version["VersionTag"]["Name"] == "golden"
