"""Endpoints of namespaces (conventions 4.1)."""

from tests.builders import a_job
from tests.kit.callers import a_token, change_rules, enable_acl
from tests.kit.cluster import ACluster
from tests.kit.requests import DENIED, commit, delete, get, put, read, send, status_and_text
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.state.tables import JOBS, NAMESPACES
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace


@in_virtual_time
async def test_the_built_in_namespace_always_exists() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        (namespace,) = read(await get(server, "/v1/namespaces"))

        assert (namespace["Name"], namespace["Description"]) == ("default", "Default shared namespace")
        assert set(namespace) >= {"Quota", "Meta", "Hash", "Capabilities", "NodePoolConfiguration", "CreateIndex"}


@in_virtual_time
async def test_a_namespace_write_has_an_empty_reply_and_can_be_read_back() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = {"Name": "team", "Description": "ours", "Capabilities": {"DisabledTaskDrivers": ["raw_exec"]}}

        stored = await put(server, "/v1/namespace", body)

        matches = await get(server, "/v1/namespace/team")
        assert status_and_text(stored) == (200, "")
        assert "content-type" not in stored.headers
        assert stored.headers["x-cluster-index"] == matches.headers["x-cluster-index"]
        assert read(matches)["Capabilities"]["DisabledTaskDrivers"] == ["raw_exec"]


@in_virtual_time
async def test_a_namespace_is_also_written_under_its_name_and_by_post() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert (await send(server, "POST", "/v1/namespace/team", {"Name": "team"})).status == 200
        assert status_and_text(await put(server, "/v1/namespace/team", {"Name": "other"})) == (
            400,
            "Namespace name does not match request path",
        )


@in_virtual_time
async def test_an_unknown_namespace_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert status_and_text(await get(server, "/v1/namespace/team")) == (404, "Namespace not found")


@in_virtual_time
async def test_a_prefix_selects_namespaces_and_page_parameters_are_ignored() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in ("team-a", "team-b"):
            await put(server, "/v1/namespace", {"Name": name})

        matches = await get(server, "/v1/namespaces", "prefix=team&per_page=1&reverse=true")

        assert [each["Name"] for each in read(matches)] == ["team-a", "team-b"]


@in_virtual_time
async def test_an_invalid_namespace_name_is_refused_with_the_pattern() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        status, text = status_and_text(await put(server, "/v1/namespace", {"Name": "a b"}))

        assert status == 400
        assert text.startswith('Invalid namespace "a b": 1 error occurred:\n\t* invalid name "a b". Must match regex')


@in_virtual_time
async def test_deleting_a_built_in_unknown_or_used_namespace_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await commit(
            server,
            NAMESPACES.build_put(Namespace(name="team", create_index=WRITE_INDEX)),
            JOBS.build_put(a_job(namespace="team", create_index=WRITE_INDEX)),
        )

        assert status_and_text(await delete(server, "/v1/namespace/default")) == (
            400,
            "can not delete default namespace",
        )
        assert status_and_text(await delete(server, "/v1/namespace/nobody")) == (404, "namespace not found")
        assert status_and_text(await delete(server, "/v1/namespace/team")) == (
            400,
            'namespace "team" has non-terminal jobs in regions: [global]',
        )


@in_virtual_time
async def test_an_empty_namespace_is_deleted() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await put(server, "/v1/namespace", {"Name": "team"})

        reply = await delete(server, "/v1/namespace/team")

        assert status_and_text(reply) == (200, "")
        assert int(reply.headers["x-cluster-index"]) > 0
        assert (await get(server, "/v1/namespace/team")).status == 404


@in_virtual_time
async def test_a_caller_sees_only_namespaces_in_which_it_has_any_right() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await put(server, "/v1/namespace", {"Name": "team"})
        enable_acl(server)
        team = await a_token(server, 'namespace "team" { capabilities = ["list-jobs"] }')
        powerless = await a_token(server)

        observed = [each["Name"] for each in read(await get(server, "/v1/namespaces", headers=team))]

        assert observed == ["team"]
        assert (await get(server, "/v1/namespace/team", headers=team)).status == 200
        assert status_and_text(await get(server, "/v1/namespace/default", headers=team)) == DENIED
        assert status_and_text(await get(server, "/v1/namespace/nowhere", headers=team)) == DENIED
        assert read(await get(server, "/v1/namespaces", headers=powerless)) == []


@in_virtual_time
async def test_only_management_tokens_write_namespaces() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await put(server, "/v1/namespace", {"Name": "team"})
        enable_acl(server)
        writer = await a_token(server, 'namespace "*" { policy = "write" }')
        manager = await a_token(server, management=True)
        index = server.replica.get_last_change(NAMESPACES)

        refusals = [
            await put(server, "/v1/namespace", {"Name": "new"}, headers=writer),
            await put(server, "/v1/namespace/new", {"Name": "new"}, headers=writer),
            await delete(server, "/v1/namespace/team", headers=writer),
        ]

        assert [status_and_text(reply) for reply in refusals] == [DENIED] * 3
        assert server.replica.get_last_change(NAMESPACES) == index
        assert (await put(server, "/v1/namespace", {"Name": "new"}, headers=manager)).status == 200


@in_virtual_time
async def test_a_blocking_list_uses_the_rights_at_the_time_of_its_reply() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        headers = await a_token(server, 'namespace "default" { policy = "read" }')
        manager = await a_token(server, management=True)
        index = (await get(server, "/v1/namespaces", headers=headers)).headers["x-cluster-index"]

        pending = cluster.start(get(server, "/v1/namespaces", f"index={index}&wait=60s", headers=headers), name="query")
        await change_rules(server, headers, 'namespace "team" { policy = "read" }')
        await put(server, "/v1/namespace", {"Name": "team"}, headers=manager)

        assert [each["Name"] for each in read(await pending)] == ["team"]
