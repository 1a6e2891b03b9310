"""Versions of a job over HTTP: reading, comparing, tagging, marking, going back (jobs.md 1.2 and 1.3)."""

from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.talking import Talk
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.state.tables import JOB_VERSIONS

TAG = "/v1/job/shop/versions/golden/tag"


async def with_versions(cluster: ACluster, count: int) -> tuple[OneServer, Talk]:
    """Versions of `shop`, told apart by their priority: 1, 2, 3 ..."""
    server = await cluster.a_server()
    talk = Talk(server)
    for priority in range(1, count + 1):
        await talk.put("/v1/jobs", {"Job": a_job(priority=priority)})
    return server, talk


async def versions(talk: Talk, **query: Any) -> Any:
    return await talk.get("/v1/job/shop/versions", **query)


def priorities(diffs: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    """What each difference says of the priority: old and new."""
    return [[(f["Old"], f["New"]) for f in diff["Fields"] or () if f["Name"] == "Priority"] for diff in diffs]


@in_virtual_time
async def test_versions_come_newest_first_without_differences_unless_asked_for() -> None:
    async with ACluster() as cluster:
        server, talk = await with_versions(cluster, 3)

        told = await versions(talk)

        assert [version["Version"] for version in told["Versions"]] == [2, 1, 0]
        assert told["Diffs"] is None
        newest = max(v.modify_index for v in server.replica.iter_all(JOB_VERSIONS))
        assert told["Index"] >= newest
        assert {"LastContact", "KnownLeader", "NextToken"} <= told.keys()


@in_virtual_time
async def test_each_version_is_compared_with_the_one_before_it() -> None:
    async with ACluster() as cluster:
        _, talk = await with_versions(cluster, 3)

        told = await versions(talk, diffs="true")

        assert priorities(told["Diffs"]) == [[("2", "3")], [("1", "2")]]


@in_virtual_time
async def test_all_versions_are_compared_with_the_one_that_is_named_and_a_tag_goes_before_a_number() -> None:
    async with ACluster() as cluster:
        _, talk = await with_versions(cluster, 3)
        await talk.put(TAG, {"Version": 1})

        by_number = await versions(talk, diffs="true", diff_version=0)
        by_tag = await versions(talk, diffs="true", diff_version=0, diff_tag="golden")

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
def test_a_comparison_that_cannot_be_is_refused(query: dict[str, str], status: int, begins: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            _, talk = await with_versions(cluster, 1)

            told = await talk.refusal("GET", "/v1/job/shop/versions", **query)

            assert (told[0], told[1][: len(begins)]) == (status, begins)

    story()


# -- tags


@in_virtual_time
async def test_a_tag_is_answered_as_it_stands_without_an_index_header() -> None:
    async with ACluster() as cluster:
        _, talk = await with_versions(cluster, 2)

        reply = await talk.raw("PUT", TAG, {"Version": 0, "Description": "the good one"})

        assert (reply.status, "x-cluster-index" in reply.headers) == (200, False)
        tags = [version["VersionTag"] for version in (await versions(talk))["Versions"]]
        assert (tags[0], tags[1]["Name"], tags[1]["Description"]) == (None, "golden", "the good one")
        assert tags[1]["TaggedTime"] > 1_700_000_000_000_000_000


@in_virtual_time
async def test_an_empty_object_tags_version_0_and_no_body_is_a_400() -> None:
    async with ACluster() as cluster:
        _, talk = await with_versions(cluster, 2)

        assert await talk.refusal("PUT", TAG) == (400, "Request body is empty")
        assert (await talk.put(TAG, {}))["Name"] == "golden"
        assert (await versions(talk))["Versions"][1]["VersionTag"]["Name"] == "golden"


@in_virtual_time
async def test_a_tag_is_taken_off_and_answered_with_an_empty_name() -> None:
    async with ACluster() as cluster:
        _, talk = await with_versions(cluster, 1)
        await talk.put(TAG, {})

        told = await talk.delete(TAG)

        assert (told["Name"], told["TaggedTime"]) == ("", 0)
        assert await talk.refusal("DELETE", TAG) == (404, 'tag "golden" not found on job "shop"')


@in_virtual_time
async def test_a_version_that_is_not_there_cannot_be_tagged() -> None:
    async with ACluster() as cluster:
        _, talk = await with_versions(cluster, 1)

        assert await talk.refusal("PUT", TAG, {"Version": 9}) == (404, 'job "shop" version 9 not found')


# -- stability and going back


@in_virtual_time
async def test_a_version_is_marked_stable_and_the_job_shows_it() -> None:
    async with ACluster() as cluster:
        _, talk = await with_versions(cluster, 1)

        told = await talk.put("/v1/job/shop/stable", {"JobID": "shop", "JobVersion": 0, "Stable": True})

        assert (list(told), (await talk.get("/v1/job/shop"))["Stable"]) == (["Index"], True)


@in_virtual_time
async def test_a_revert_is_answered_like_a_registration() -> None:
    async with ACluster() as cluster:
        _, talk = await with_versions(cluster, 2)

        told = await talk.put("/v1/job/shop/revert", {"JobID": "shop", "JobVersion": 0, "EnforcePriorVersion": 1})

        job = await talk.get("/v1/job/shop")
        assert (job["Version"], job["Priority"], told["JobModifyIndex"]) == (2, 1, job["JobModifyIndex"])
        assert told["EvalID"] != ""


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
    async def story() -> None:
        async with ACluster() as cluster:
            _, talk = await with_versions(cluster, 2)

            assert await talk.refusal("PUT", f"/v1/job/shop/{action}", body) == (400, text)

    story()


@in_virtual_time
async def test_a_revert_to_what_is_not_there_says_so() -> None:
    async with ACluster() as cluster:
        _, talk = await with_versions(cluster, 2)

        def body(version: int, job_id: str = "shop") -> dict[str, Any]:
            return {"JobID": job_id, "JobVersion": version}

        path = "/v1/job/shop/revert"
        missing = 'job "shop" in namespace "default" at version 9 not found'
        assert await talk.refusal("PUT", path, body(1)) == (400, "can't revert to current version")
        assert await talk.refusal("PUT", path, body(9)) == (404, missing)
        assert await talk.refusal("PUT", "/v1/job/x/revert", body(0, "x")) == (404, 'job "x" not found')


@in_virtual_time
async def test_the_fine_rights_are_enough_and_each_only_for_its_own() -> None:
    async with ACluster() as cluster:
        server, _ = await with_versions(cluster, 2)
        enable_acl(server)

        async def talk(capability: str) -> Talk:
            rules = f'namespace "default" {{ capabilities = ["{capability}"] }}'
            return Talk(server, await a_token(server, rules))

        tagger, marker, reverter = [await talk(c) for c in ("tag-job-version", "stable-job", "revert-job")]
        revert = {"JobID": "shop", "JobVersion": 0}

        assert await tagger.refusal("PUT", "/v1/job/shop/revert", revert) == (403, "Permission denied")
        assert await marker.refusal("PUT", TAG, {}) == (403, "Permission denied")
        assert await marker.refusal("DELETE", TAG) == (403, "Permission denied")
        await tagger.put(TAG, {})
        await marker.put("/v1/job/shop/stable", {"JobID": "shop", "JobVersion": 0, "Stable": True})
        await reverter.put("/v1/job/shop/revert", revert)


@in_virtual_time
async def test_a_job_with_slashes_in_its_id_can_be_tagged_too() -> None:
    async with ACluster() as cluster:
        talk = Talk(await cluster.a_server())
        await talk.put("/v1/jobs", {"Job": a_job("a/b")})

        await talk.put("/v1/job/a/b/versions/golden/tag", {})

        (version,) = (await talk.get("/v1/job/a/b/versions"))["Versions"]
        assert version["VersionTag"]["Name"] == "golden"
