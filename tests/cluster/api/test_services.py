"""Endpoints of services (nodes-allocations.md 5.1)."""

from typing import Any

import pytest

from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import (
    DENIED,
    READ,
    WRITE,
    a_namespace,
    delete,
    get,
    list_ids,
    read_json,
    read_refusal,
    status_and_body,
    store,
)
from wharf.cluster.state.tables import SERVICES
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.services import ServiceRegistration


async def register(server: OneServer, id: str, service: str = "web", namespace: str = "default", **fields: Any) -> None:
    registration = ServiceRegistration(
        id=id, service_name=service, namespace=namespace, create_index=WRITE_INDEX, **{"tags": (), **fields}
    )
    await store(server, SERVICES.build_put(registration))


async def with_services(cluster: ACluster) -> OneServer:
    """Start a server with three instances of web, one of db, and one of web in another namespace."""
    server = await cluster.a_server()
    await a_namespace(server, "other")
    await register(server, "w2", tags=("green", "blue"))
    await register(server, "w1", tags=("red", "blue"), port=8080)
    await register(server, "w3")
    await register(server, "d1", "db")
    await register(server, "o1", namespace="other")
    return server


@in_virtual_time
async def test_services_are_listed_by_name_with_the_tags_of_all_instances() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        listed = await read_json(server, "/v1/services")

        assert listed == [
            {
                "Namespace": "default",
                "Services": [
                    {"ServiceName": "db", "Tags": []},
                    {"ServiceName": "web", "Tags": ["blue", "green", "red"]},
                ],
            }
        ]


@in_virtual_time
async def test_services_of_all_namespaces_are_grouped_by_namespace() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        assert [block["Namespace"] for block in await read_json(server, "/v1/services", "namespace=*")] == [
            "default",
            "other",
        ]
        assert await read_json(server, "/v1/services", "namespace=nowhere") == []


@in_virtual_time
async def test_a_filter_selects_the_services_whose_instances_it_matches() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        ((block),) = await read_json(server, "/v1/services", "filter=red+in+Tags")

        assert block["Services"] == [{"ServiceName": "web", "Tags": ["blue", "red"]}]


@in_virtual_time
async def test_the_list_of_services_has_no_pages() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        reply = await get(server, "/v1/services", "per_page=1&prefix=zz")

        assert (len(reply.body) > 10, "x-cluster-nexttoken" in reply.headers) == (True, False)


@in_virtual_time
async def test_the_instances_of_a_service_are_listed_by_id() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        assert await list_ids(server, "/v1/service/web") == ["w1", "w2", "w3"]
        assert await list_ids(server, "/v1/service/web", "namespace=other") == ["o1"]
        assert await list_ids(server, "/v1/service/web", "filter=Port==8080") == ["w1"]
        assert await list_ids(server, "/v1/service/nothing") == []


@in_virtual_time
async def test_an_instance_has_every_field() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        (views,) = await read_json(server, "/v1/service/db")

        assert set(views) == {
            "ID", "ServiceName", "Namespace", "NodeID", "Datacenter", "JobID", "AllocID", "Tags", "Address", "Port",
            "CreateIndex", "ModifyIndex",
        }  # fmt: skip


@in_virtual_time
async def test_page_tokens_of_instances_hold_namespace_and_id() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        reply = await get(server, "/v1/service/web", "per_page=2")

        assert reply.headers["x-cluster-nexttoken"] == "default.w3"
        assert await list_ids(server, "/v1/service/web", "per_page=2&next_token=default.w3") == ["w3"]


@in_virtual_time
async def test_the_same_key_chooses_the_same_instances() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        first = await list_ids(server, "/v1/service/web", "choose=2%7Cme")
        repeated = await list_ids(server, "/v1/service/web", "choose=2%7Cme")
        other_choices = {tuple(await list_ids(server, "/v1/service/web", f"choose=1%7Cclient-{n}")) for n in range(20)}

        assert (len(first), first, len(other_choices)) == (2, repeated, 3)


@in_virtual_time
async def test_instances_are_chosen_from_the_result_of_the_filter() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        for key in range(5):
            assert await list_ids(server, "/v1/service/web", f"choose=1%7C{key}&filter=Port==8080") == ["w1"]


@pytest.mark.parametrize("choice", ["2", "%7Cme", "0%7Cme", "x%7Cme"])
@in_virtual_time
async def test_an_invalid_choice_is_refused(choice: str) -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        reply = await get(server, "/v1/service/web", f"choose={choice}")

        assert (reply.status, reply.body.startswith(b'choose must be "<number>|<key>"')) == (400, True)


@in_virtual_time
async def test_a_blocking_read_of_a_service_wakes_for_its_changes_only() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)
        observed = (await get(server, "/v1/service/web")).headers["x-cluster-index"]
        pending_read = cluster.start(get(server, "/v1/service/web", f"index={observed}"), name="query")
        await pass_time(0.1)

        await register(server, "d2", "db")
        await pass_time(1.0)
        assert not pending_read.done()
        await register(server, "w4")

        assert b"w4" in (await pending_read).body


@in_virtual_time
async def test_deleting_an_instance_returns_only_an_index() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        reply = await delete(server, "/v1/service/web/w2")

        assert (status_and_body(reply), reply.headers["x-cluster-index"]) == (
            (200, b""),
            str(server.replica.get_last_change(SERVICES)),
        )
        assert await list_ids(server, "/v1/service/web") == ["w1", "w3"]


@pytest.mark.parametrize("path", ["web/w9", "db/w1", "web/o1"])
@in_virtual_time
async def test_deleting_an_unknown_instance_is_not_found(path: str) -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)

        assert await read_refusal(server, delete(server, f"/v1/service/{path}")) == (
            404,
            "service registration not found",
        )


@in_virtual_time
async def test_a_token_sees_and_deletes_the_services_of_its_namespaces() -> None:
    async with ACluster() as cluster:
        server = await with_services(cluster)
        enable_acl(server)
        reader, writer = await a_token(server, READ), await a_token(server, WRITE)
        deleter = await a_token(server, 'namespace "default" { capabilities = ["delete-service-registration"] }')

        blocks = await read_json(server, "/v1/services", "namespace=*", reader)

        assert [block["Namespace"] for block in blocks] == ["default"]
        assert status_and_body(await get(server, "/v1/service/web", "namespace=other", headers=reader)) == DENIED
        assert status_and_body(await get(server, "/v1/services", headers=deleter)) == DENIED
        assert status_and_body(await delete(server, "/v1/service/web/w1", headers=reader)) == DENIED
        assert (
            status_and_body(await delete(server, "/v1/service/web/o1", query="namespace=other", headers=writer))
            == DENIED
        )
        assert (await delete(server, "/v1/service/web/w1", headers=writer)).status == 200
        assert (await delete(server, "/v1/service/web/w2", headers=deleter)).status == 200
