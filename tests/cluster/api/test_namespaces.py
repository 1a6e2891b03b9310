"""Endpoints of namespaces (conventions 4.1)."""

from tests.builders import a_job
from tests.kit.callers import a_token, change_rules, enable_acl
from tests.kit.cluster import ACluster
from tests.kit.requests import DENIED, commit, delete, get, put, read, send, told
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.state.tables import JOBS, NAMESPACES
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace


@in_virtual_time
async def test_the_built_in_namespace_is_there_from_the_beginning() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        (namespace,) = read(await get(server, "/v1/namespaces"))

        assert (namespace["Name"], namespace["Description"]) == ("default", "Default shared namespace")
        assert set(namespace) >= {"Quota", "Meta", "Hash", "Capabilities", "NodePoolConfiguration", "CreateIndex"}


@in_virtual_time
async def test_a_namespace_is_written_without_a_body_in_the_reply_and_read_back() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = {"Name": "team", "Description": "ours", "Capabilities": {"DisabledTaskDrivers": ["raw_exec"]}}

        written = await put(server, "/v1/namespace", body)

        found = await get(server, "/v1/namespace/team")
        assert told(written) == (200, "")
        assert "content-type" not in written.headers
        assert written.headers["x-cluster-index"] == found.headers["x-cluster-index"]
        assert read(found)["Capabilities"]["DisabledTaskDrivers"] == ["raw_exec"]


@in_virtual_time
async def test_a_namespace_is_written_under_its_name_and_by_post() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert (await send(server, "POST", "/v1/namespace/team", {"Name": "team"})).status == 200
        assert told(await put(server, "/v1/namespace/team", {"Name": "other"})) == (
            400,
            "Namespace name does not match request path",
        )


@in_virtual_time
async def test_an_unknown_namespace_is_told() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert told(await get(server, "/v1/namespace/team")) == (404, "Namespace not found")


@in_virtual_time
async def test_a_prefix_chooses_and_pages_are_passed_over() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in ("team-a", "team-b"):
            await put(server, "/v1/namespace", {"Name": name})

        found = await get(server, "/v1/namespaces", "prefix=team&per_page=1&reverse=true")

        assert [each["Name"] for each in read(found)] == ["team-a", "team-b"]


@in_virtual_time
async def test_a_bad_name_is_refused_with_the_pattern() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        status, text = told(await put(server, "/v1/namespace", {"Name": "a b"}))

        assert status == 400
        assert text.startswith('Invalid namespace "a b": 1 error occurred:\n\t* invalid name "a b". Must match regex')


@in_virtual_time
async def test_deleting_what_is_built_in_unknown_or_in_use_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await commit(
            server,
            NAMESPACES.build_put(Namespace(name="team", create_index=WRITE_INDEX)),
            JOBS.build_put(a_job(namespace="team", create_index=WRITE_INDEX)),
        )

        assert told(await delete(server, "/v1/namespace/default")) == (400, "can not delete default namespace")
        assert told(await delete(server, "/v1/namespace/nobody")) == (404, "namespace not found")
        assert told(await delete(server, "/v1/namespace/team")) == (
            400,
            'namespace "team" has non-terminal jobs in regions: [global]',
        )


@in_virtual_time
async def test_an_empty_namespace_is_deleted() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await put(server, "/v1/namespace", {"Name": "team"})

        reply = await delete(server, "/v1/namespace/team")

        assert told(reply) == (200, "")
        assert int(reply.headers["x-cluster-index"]) > 0
        assert (await get(server, "/v1/namespace/team")).status == 404


@in_virtual_time
async def test_whoever_has_any_right_in_a_namespace_sees_it_and_no_other() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await put(server, "/v1/namespace", {"Name": "team"})
        enable_acl(server)
        team = await a_token(server, 'namespace "team" { capabilities = ["list-jobs"] }')
        nobody = await a_token(server)

        seen = [each["Name"] for each in read(await get(server, "/v1/namespaces", headers=team))]

        assert seen == ["team"]
        assert (await get(server, "/v1/namespace/team", headers=team)).status == 200
        assert told(await get(server, "/v1/namespace/default", headers=team)) == DENIED
        assert told(await get(server, "/v1/namespace/nowhere", headers=team)) == DENIED
        assert read(await get(server, "/v1/namespaces", headers=nobody)) == []


@in_virtual_time
async def test_only_management_writes_namespaces() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await put(server, "/v1/namespace", {"Name": "team"})
        enable_acl(server)
        writer = await a_token(server, 'namespace "*" { policy = "write" }')
        manager = await a_token(server, management=True)
        index = server.replica.get_last_change(NAMESPACES)

        refused = [
            await put(server, "/v1/namespace", {"Name": "new"}, headers=writer),
            await put(server, "/v1/namespace/new", {"Name": "new"}, headers=writer),
            await delete(server, "/v1/namespace/team", headers=writer),
        ]

        assert [told(reply) for reply in refused] == [DENIED] * 3
        assert server.replica.get_last_change(NAMESPACES) == index
        assert (await put(server, "/v1/namespace", {"Name": "new"}, headers=manager)).status == 200


@in_virtual_time
async def test_a_list_that_waits_is_answered_with_the_rights_of_that_moment() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        headers = await a_token(server, 'namespace "default" { policy = "read" }')
        manager = await a_token(server, management=True)
        index = (await get(server, "/v1/namespaces", headers=headers)).headers["x-cluster-index"]

        asking = cluster.start(get(server, "/v1/namespaces", f"index={index}&wait=60s", headers=headers), name="asks")
        await change_rules(server, headers, 'namespace "team" { policy = "read" }')
        await put(server, "/v1/namespace", {"Name": "team"}, headers=manager)

        assert [each["Name"] for each in read(await asking)] == ["team"]
