"""Endpoints of quotas."""

from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import DENIED, delete, get, put, read, status_and_text
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.state.tables import QUOTAS

TIGHT = {"Name": "tight", "Limits": [{"Region": "global", "RegionLimit": {"CPU": 2500, "MemoryMB": 2000}}]}


async def with_quota(cluster: ACluster) -> OneServer:
    server = await cluster.a_server()
    assert (await put(server, "/v1/quota", TIGHT)).status == 200
    return server


@in_virtual_time
async def test_a_quota_is_written_listed_and_read() -> None:
    async with ACluster() as cluster:
        server = await with_quota(cluster)

        quota = read(await get(server, "/v1/quota/tight"))

        assert read(await get(server, "/v1/quotas")) == [quota]
        assert quota["Limits"][0]["RegionLimit"]["CPU"] == 2500
        assert quota["Hash"] != ""


@in_virtual_time
async def test_quota_usage_is_reported_under_the_hash_of_each_limit() -> None:
    async with ACluster() as cluster:
        server = await with_quota(cluster)
        (limit,) = read(await get(server, "/v1/quota/tight"))["Limits"]

        usage = read(await get(server, "/v1/quota/usage/tight"))

        assert read(await get(server, "/v1/quota-usages")) == [usage]
        assert usage["Name"] == "tight"
        assert set(usage["Used"]) == {limit["Hash"]}
        assert usage["Used"][limit["Hash"]]["RegionLimit"]["CPU"] == 0


@in_virtual_time
async def test_an_unknown_quota_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        for path in ("/v1/quota/none", "/v1/quota/usage/none"):
            assert status_and_text(await get(server, path)) == (404, 'quota "none" not found')
        assert status_and_text(await delete(server, "/v1/quota/none")) == (404, 'quota "none" not found')


@in_virtual_time
async def test_a_body_that_names_another_quota_than_the_path_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert status_and_text(await put(server, "/v1/quota/other", TIGHT)) == (
            400,
            "Quota name does not match request path",
        )


@in_virtual_time
async def test_a_quota_cannot_be_deleted_while_a_namespace_uses_it() -> None:
    async with ACluster() as cluster:
        server = await with_quota(cluster)
        await put(server, "/v1/namespace", {"Name": "team", "Quota": "tight"})

        in_use = await delete(server, "/v1/quota/tight")
        await put(server, "/v1/namespace", {"Name": "team"})
        unused = await delete(server, "/v1/quota/tight")

        assert status_and_text(in_use) == (400, 'quota "tight" is still attached to namespaces: team')
        assert status_and_text(unused) == (200, "")


@in_virtual_time
async def test_quotas_need_their_rights_and_are_visible_in_the_namespaces_that_use_them() -> None:
    async with ACluster() as cluster:
        server = await with_quota(cluster)
        await put(server, "/v1/namespace", {"Name": "team", "Quota": "tight"})
        enable_acl(server)
        reader = await a_token(server, 'quota { policy = "read" }')
        writer = await a_token(server, 'quota { policy = "write" }')
        bound = await a_token(server, 'namespace "team" { policy = "read" }')
        powerless = await a_token(server)
        index = server.replica.get_last_change(QUOTAS)

        listed = [len(read(await get(server, "/v1/quotas", headers=callers))) for callers in (reader, bound, powerless)]
        refusals = [
            await get(server, "/v1/quota/tight", headers=bound),
            await get(server, "/v1/quota/usage/tight", headers=powerless),
            await put(server, "/v1/quota", {**TIGHT, "Name": "new"}, headers=reader),
            await put(server, "/v1/quota/tight", TIGHT, headers=reader),
            await delete(server, "/v1/quota/tight", headers=reader),
        ]

        assert listed == [1, 1, 0]
        assert [status_and_text(reply) for reply in refusals] == [DENIED] * 5
        assert server.replica.get_last_change(QUOTAS) == index
        assert (await put(server, "/v1/quota", {**TIGHT, "Name": "new"}, headers=writer)).status == 200
