"""Lists with items that are encoded in pieces: the replies are those of one step, and caches keep them."""

import gzip
from typing import Any

import msgspec
import pytest

from tests.builders import a_job
from tests.cluster.api.test_listing import get, put_job, uuid, write
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.state import an_allocation
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.replies import items
from wharf.cluster.api.replies.pieces import PIECE_WEIGHT
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.task_states import TaskEvent, TaskState, TaskStatus

JOB = a_job("shop")
HEAVY_ID, SMALL_ID = uuid(2), uuid(3)


def an_allocation_of_many_tasks(id: str, *, event_type: str = "Driver Failure") -> Any:
    events = (TaskEvent(type=event_type, time=1, details={"driver_error": '"x"\n' * 5}),) * 10
    states = {f"task{number}": TaskState(state=TaskStatus.RUNNING, events=events) for number in range(200)}
    return an_allocation(JOB, id=id, task_states=states)


async def store_allocations(server: OneServer) -> None:
    """Store small allocations, and a heavy one between them."""
    await write(server, put_job("shop"))
    for id in (uuid(1), HEAVY_ID, SMALL_ID):
        allocation = an_allocation_of_many_tasks(id) if id == HEAVY_ID else an_allocation(JOB, id=id)
        await write(server, ALLOCATIONS.build_put(allocation))


async def read(server: OneServer, path: str, query: str = "") -> bytes:
    reply = await get(server, path, query)
    assert reply.status == 200, reply.body
    return reply.body


@in_virtual_time
async def test_a_list_with_a_heavy_item_equals_that_of_the_job() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await store_allocations(server)

        whole_list = await read(server, "/v1/allocations")

        assert len(whole_list) > PIECE_WEIGHT
        assert whole_list == await read(server, "/v1/job/shop/allocations", "all=true")
        assert [each["ID"] for each in msgspec.json.decode(whole_list)] == [uuid(1), HEAVY_ID, SMALL_ID]


@in_virtual_time
async def test_an_indented_list_with_a_heavy_item_is_the_plain_one_with_layout() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await store_allocations(server)
        indented_before = await read(server, "/v1/allocations", "pretty&reverse=true")
        plain = await read(server, "/v1/allocations", "reverse=true")

        indented_from_cache = await read(server, "/v1/allocations", "pretty&reverse=true&resources=false")

        assert indented_before == msgspec.json.format(plain, indent=4) + b"\n"
        assert indented_from_cache == indented_before


@in_virtual_time
async def test_a_heavy_item_is_first_or_last_in_its_page() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await store_allocations(server)
        (_, heavy, small) = msgspec.json.decode(await read(server, "/v1/allocations"))

        assert msgspec.json.decode(await read(server, "/v1/allocations", "reverse=true&per_page=2")) == [small, heavy]
        assert msgspec.json.decode(await read(server, "/v1/allocations", f"prefix={HEAVY_ID}")) == [heavy]
        assert msgspec.json.decode(await read(server, "/v1/allocations", f"prefix={HEAVY_ID}&pretty")) == [heavy]


@in_virtual_time
async def test_a_cached_list_shows_changes_of_a_heavy_item() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await store_allocations(server)
        await write(
            server, *(ALLOCATIONS.build_put(an_allocation(JOB, id=uuid(100 + number))) for number in range(300))
        )
        await read(server, "/v1/allocations")
        assert server.api.reads.list_encoder.cached_lists._lists

        changed = an_allocation_of_many_tasks(HEAVY_ID, event_type="Killed")
        await write(server, ALLOCATIONS.build_put(msgspec.structs.replace(changed, create_index=2)))
        await write(server, ALLOCATIONS.build_put(an_allocation_of_many_tasks(uuid(4))))

        after = await read(server, "/v1/allocations")
        assert after.count(b'"Type":"Killed"') == 2_000
        assert after == await read(server, "/v1/job/shop/allocations", "all=true")


@in_virtual_time
async def test_a_list_with_a_heavy_item_is_compressed_completely() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await store_allocations(server)
        await write(
            server, *(ALLOCATIONS.build_put(an_allocation(JOB, id=uuid(100 + number))) for number in range(300))
        )

        plain = await read(server, "/v1/allocations")
        reply = await send_raw(server.api, "GET", "/v1/allocations", query="stale", headers={"Accept-Encoding": "gzip"})

        assert gzip.decompress(reply.body) == plain


@pytest.mark.parametrize("heavy_numbers", [(1,), (400,), (50, 51, 399)], ids=["first", "last", "in between"])
def test_a_list_with_an_item_that_is_too_large_is_complete_but_not_cached(
    heavy_numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert items.MAX_CACHED_ITEM_BYTES < items.MAX_JOINED_ITEM_BYTES
    monkeypatch.setattr(items, "MAX_JOINED_ITEM_BYTES", PIECE_WEIGHT)
    monkeypatch.setattr(items, "MAX_CACHED_ITEM_BYTES", PIECE_WEIGHT)

    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            await write(server, put_job("shop"))
            ids = [uuid(1 + number) for number in range(400)]
            await write(server, *(ALLOCATIONS.build_put(an_allocation(JOB, id=id)) for id in ids))
            small = await read(server, "/v1/allocations")
            assert server.api.reads.list_encoder.cached_lists._lists
            changed = [an_allocation_of_many_tasks(uuid(number)) for number in heavy_numbers]
            stored = [server.replica.get(ALLOCATIONS, each.id) for each in changed]
            puts = [
                ALLOCATIONS.build_put(msgspec.structs.replace(new, create_index=old.create_index))
                for new, old in zip(changed, stored, strict=True)
                if old is not None
            ]
            await write(server, *puts)

            refreshed = await read(server, "/v1/allocations")
            await write(server, ALLOCATIONS.build_put(an_allocation(JOB, id=uuid(900))))
            complete = msgspec.json.decode(await read(server, "/v1/allocations"))

            assert [each["ID"] for each in msgspec.json.decode(small)] == ids
            assert [each["ID"] for each in msgspec.json.decode(refreshed)] == ids
            assert [each["ID"] for each in complete] == [*ids, uuid(900)]
            assert complete[:-1] == msgspec.json.decode(refreshed)
            assert not any(each.is_current for each in server.api.reads.list_encoder.cached_lists._lists.values())

    scenario()
