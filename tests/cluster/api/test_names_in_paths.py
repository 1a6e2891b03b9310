"""Ids and names: whatever a server accepts can be read, stopped, purged and listed in pages; anything else is refused."""

import json
from urllib.parse import quote

import pytest

from tests.builders import a_job, a_parameterized_job
from tests.kit.api_client import ApiClient
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time

UNUSUAL_IDS = (
    "x" * 256,
    "é" * 128,
    "a/plan",
    "a/versions/b/tag",
    "/a",
    "a//b",
    "a/",
    "a?b#c",
    "a%2Fb",
    "50%",
    "x..y",
    "a.b",
)


@in_virtual_time
async def test_jobs_with_unusual_ids_are_read_stopped_and_purged_by_their_paths() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = ApiClient(server)
        for job_id in UNUSUAL_IDS:
            await client.put("/v1/jobs", {"Job": a_job(id=job_id)})
            path = "/v1/job/" + quote(job_id, safe="")

            assert (await client.get(path))["ID"] == job_id
            assert (await send_raw(server.api, "DELETE", path)).status == 200
            assert (await client.get(path))["Stop"] is True
            assert (await send_raw(server.api, "DELETE", path, query="purge=true")).status == 200
            assert (await send_raw(server.api, "GET", path)).status == 404


@in_virtual_time
async def test_jobs_with_unusual_ids_are_listed_in_pages() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = ApiClient(server)
        for job_id in UNUSUAL_IDS:
            await client.put("/v1/jobs", {"Job": a_job(id=job_id)})

        listed: list[str] = []
        token: str | None = ""
        while token is not None:
            reply = await client.raw("GET", "/v1/jobs", per_page=1, next_token=token)
            listed += [job["ID"] for job in json.loads(reply.body)]
            token = reply.headers.get("x-cluster-nexttoken")

        assert listed == sorted(UNUSUAL_IDS)


@pytest.mark.parametrize("job_id", ["x" * 257, "a\nb", "a\u202eb", "..", "a/../b"])
def test_a_job_with_a_forbidden_id_is_refused_and_not_stored(job_id: str) -> None:
    @in_virtual_time
    async def register() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()

            status, text = await ApiClient(server).refusal("PUT", "/v1/jobs", {"Job": a_job(id=job_id)})

            assert (status, text.partition(": ")[0]) == (400, "Job.ID")

    register()


@in_virtual_time
async def test_a_version_tag_with_a_forbidden_name_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await ApiClient(server).put("/v1/jobs", {"Job": a_job()})

        reply = await send_raw(server.api, "PUT", "/v1/job/shop/versions/a%E2%80%AEb/tag", body=b"{}")

        assert (reply.status, reply.body.startswith(b"version tag name contains the character U+202E")) == (400, True)


@pytest.mark.parametrize(
    ("query", "body", "text"),
    [
        ("", b'{"IdPrefixTemplate": "a\\nb"}', b"IdPrefixTemplate contains the character U+000A"),
        ("idempotency_token=" + "t" * 257, b"{}", b"the idempotency token is 257 bytes long"),
    ],
)
def test_a_dispatch_with_a_forbidden_name_is_refused(query: str, body: bytes, text: bytes) -> None:
    @in_virtual_time
    async def dispatch() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            await ApiClient(server).put("/v1/jobs", {"Job": a_parameterized_job()})

            reply = await send_raw(server.api, "PUT", "/v1/job/convert/dispatch", query=query, body=body)

            assert (reply.status, reply.body[: len(text)]) == (400, text)

    dispatch()
