"""The cache of whole lists: its content equals the table, and only changed records are encoded again."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.api.test_listing import get, put_evaluation, put_job, uuid, write
from tests.cluster.state.inventory import (
    CRATES,
    NOTICE,
    PARCELS,
    make_batch,
    make_crate,
    make_parcel,
    make_replica,
    make_write,
)
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.lists.cache import MAX_LIST_CHANGES, CachedList, ListCache
from wharf.cluster.api.lists.listing import ListCacheSpec
from wharf.cluster.api.replies.encoding import BODY_CHUNK_BYTES
from wharf.cluster.api.replies.items import EncodedBatch
from wharf.cluster.server.cpu_budget import OffLoopWorker, ReadLimits, SlicedWork
from wharf.cluster.server.loop_slots import LoopSlots
from wharf.cluster.state import Replica
from wharf.cluster.state.formats import get_active_format
from wharf.cluster.state.tables import EVALUATIONS, JOB_SUMMARIES, JOBS
from wharf.contract.model.jobs.job import JobSummary
from wharf.contract.model.log import KEY_SEPARATOR, Batch, DeleteRecord, LogPosition, PutRecord
from wharf.world import SimulatedWorld

T = TypeVar("T")

NORTH = ListCacheSpec(("north",), CRATES, f"north{KEY_SEPARATOR}")
BY_CREATION = ListCacheSpec(("parcels",), PARCELS, "", is_by_creation=True)


class RecordingEncoder:
    """Encodes records, and collects the names of those it encoded."""

    def __init__(self, *, padding_bytes: int = 0) -> None:
        self.encoded_names: list[str] = []
        self._padding = "x" * padding_bytes

    def __call__(self, records: Sequence[Any]) -> EncodedBatch:
        names = [record.name if hasattr(record, "name") else record.id for record in records]
        self.encoded_names += names
        encoded = [
            msgspec.json.encode([name, record.modify_index, self._padding])
            for name, record in zip(names, records, strict=True)
        ]
        return encoded, None


def decode_list(body: Any) -> list[tuple[str, int]]:
    return [(name, index) for name, index, _ in json.loads(b"".join(body.chunks))]


def a_work() -> SlicedWork:
    world = SimulatedWorld(7)
    return SlicedWork(world, OffLoopWorker(world), ReadLimits().make_list_budget(), "a caller")


def fill_list(cached_list: CachedList, records: Sequence[Any], encoder: RecordingEncoder) -> list[tuple[str, int]]:
    return decode_list(asyncio.run(cached_list.fill(records, encoder, a_work())))


def refresh_list(cached_list: CachedList, encoder: RecordingEncoder) -> list[tuple[str, int]]:
    return decode_list(asyncio.run(cached_list.refresh(cached_list.take_changes(), encoder, a_work())))


def crates_in_north(replica: Replica) -> list[Any]:
    return list(replica.iter_by_key(CRATES, prefix=NORTH.prefix))


# -- encoding


def test_after_a_change_only_changed_records_are_encoded() -> None:
    replica, encoding = make_replica(), RecordingEncoder()
    replica.apply_batch(make_batch(1, *(CRATES.build_put(make_crate(name)) for name in "abc")))
    cached_list = CachedList(replica, NORTH)
    fill_list(cached_list, crates_in_north(replica), encoding)
    encoding.encoded_names.clear()

    replica.apply_batch(
        make_batch(
            2,
            CRATES.build_put(make_crate("b")),
            CRATES.build_put(make_crate("e")),
            CRATES.build_put(make_crate("b", "south")),
        )
    )
    replica.apply_batch(make_batch(3, CRATES.build_delete("north", "a")))

    assert refresh_list(cached_list, encoding) == [("b", 2), ("c", 1), ("e", 2)]
    assert sorted(encoding.encoded_names) == ["b", "e"]
    assert refresh_list(cached_list, encoding) == [("b", 2), ("c", 1), ("e", 2)]
    assert sorted(encoding.encoded_names) == ["b", "e"]


def test_an_existing_body_does_not_change_with_later_writes() -> None:
    replica, encoding = make_replica(), RecordingEncoder()
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))
    cached_list = CachedList(replica, NORTH)

    async def run() -> tuple[Any, Any, bytes]:
        before = await cached_list.fill(crates_in_north(replica), encoding, a_work())
        replica.apply_batch(make_batch(2, CRATES.build_put(make_crate("a"))))
        after = await cached_list.refresh(cached_list.take_changes(), encoding, a_work())
        return before, after, b"".join(await before.get_encoded_chunks(b"gzip", LoopSlots()))

    before, after, compressed = asyncio.run(run())
    assert (decode_list(before), decode_list(after)) == ([("a", 1)], [("a", 2)])
    assert gzip.decompress(compressed) == b"".join(before.chunks)


def test_a_change_during_the_first_encoding_is_shown_by_the_next_request() -> None:
    replica, encoding = make_replica(), RecordingEncoder()
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))
    cached_list, records = CachedList(replica, NORTH), crates_in_north(replica)
    replica.apply_batch(make_batch(2, CRATES.build_put(make_crate("b"))))

    assert fill_list(cached_list, records, encoding) == [("a", 1)]
    assert refresh_list(cached_list, encoding) == [("a", 1), ("b", 2)]


def test_a_change_of_a_dependency_changes_the_list() -> None:
    replica, encoding = Replica((JOBS, JOB_SUMMARIES)), RecordingEncoder()
    retained = ListCacheSpec(("jobs",), JOBS, "", dependency_table=JOB_SUMMARIES)
    cached_list = CachedList(replica, retained)
    assert fill_list(cached_list, [], encoding) == []
    for index, change in enumerate((put_job("web"), put_job("db")), start=1):
        replica.apply_batch(_batch_of(replica, index, change))
    refresh_list(cached_list, encoding)
    encoding.encoded_names.clear()

    replica.apply_batch(
        _batch_of(replica, 3, JOB_SUMMARIES.build_put(JobSummary(job_id="web", namespace="default", create_index=3)))
    )
    refresh_list(cached_list, encoding)

    assert encoding.encoded_names == ["web"]


def _batch_of(replica: Replica, index: int, change: Any) -> Any:
    logged = replica.encode_write(make_write(change), write_id=f"write-{index}")
    return Batch(index, logged.id, logged.kind, logged.cause, logged.changes)


STEPS = st.lists(
    st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefghijklmnop")), min_size=1, max_size=6, unique_by=lambda s: s[1]),
    max_size=12,
)  # fmt: skip


@given(initial=st.sets(st.sampled_from("abcdefghijklmnop")), steps=STEPS, by_creation=st.booleans())
def test_after_any_writes_the_cached_list_equals_the_table(
    initial: set[str], steps: list[list[tuple[bool, str]]], by_creation: bool
) -> None:
    replica, encoding = make_replica(), RecordingEncoder(padding_bytes=BODY_CHUNK_BYTES // 3)

    def put(name: str) -> Any:
        return PARCELS.build_put(make_parcel(name)) if by_creation else CRATES.build_put(make_crate(name))

    def drop(name: str) -> Any:
        return PARCELS.build_delete(name) if by_creation else CRATES.build_delete("north", name)

    def list_stored() -> list[Any]:
        return list(replica.iter_by_creation(PARCELS)) if by_creation else crates_in_north(replica)

    replica.apply_batch(make_batch(1, NOTICE.build_delete(), *map(put, sorted(initial))))
    cached_list = CachedList(replica, BY_CREATION if by_creation else NORTH)
    fill_list(cached_list, list_stored(), encoding)

    for number, step in enumerate(steps, start=2):
        replica.apply_batch(make_batch(number, *(put(name) if puts else drop(name) for puts, name in step)))
        views = [getattr(record, "name", "") or record.id for record in list_stored()]
        assert refresh_list(cached_list, encoding) == list(
            zip(views, [r.modify_index for r in list_stored()], strict=True)
        )


# -- dropping


def test_too_many_changes_make_the_list_be_encoded_completely() -> None:
    replica, list_cache = make_replica(), ListCache()
    cached_list = CachedList(replica, NORTH)
    fill_list(cached_list, [], RecordingEncoder())
    list_cache.put("north", cached_list)
    assert list_cache.get("north") is cached_list

    replica.apply_batch(
        make_batch(1, *(CRATES.build_put(make_crate(f"{number:05}")) for number in range(MAX_LIST_CHANGES + 1)))
    )

    assert list_cache.get("north") is None
    assert "crates" not in replica.watches.table_watches


def test_a_reloaded_table_makes_the_list_be_encoded_completely() -> None:
    replica, list_cache = make_replica(), ListCache()
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))
    cached_list = CachedList(replica, NORTH)
    fill_list(cached_list, crates_in_north(replica), RecordingEncoder())
    list_cache.put("north", cached_list)

    replica.load_state([], LogPosition(index=2, last_changes={}))

    assert list_cache.get("north") is None
    assert "crates" not in replica.watches.table_watches


def test_least_recently_used_lists_are_evicted() -> None:
    replica, list_cache = make_replica(), ListCache(max_lists=2)
    for name in "abc":
        cached_list = CachedList(replica, NORTH)
        fill_list(cached_list, [], RecordingEncoder())
        list_cache.put(name, cached_list)
        list_cache.get("a")

    assert [name for name in "abc" if list_cache.get(name) is not None] == ["a", "c"]
    assert len(replica.watches.table_watches["crates"].observers) == 2


def test_a_list_whose_refresh_failed_is_dropped() -> None:
    replica = make_replica()
    cached_list = CachedList(replica, NORTH)
    fill_list(cached_list, [], RecordingEncoder())
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))

    def failing(_records: Sequence[Any]) -> EncodedBatch:
        raise RuntimeError("cannot encode")

    with pytest.raises(RuntimeError):
        asyncio.run(cached_list.refresh(cached_list.take_changes(), failing, a_work()))
    assert not cached_list.is_current


# -- over HTTP

MANY = 600


async def list_jobs(server: OneServer, query: str = "") -> list[Any]:
    reply = await get(server, "/v1/jobs", query)
    listed: list[Any] = json.loads(reply.body)
    return listed


async def fill(server: OneServer) -> None:
    for start in range(0, MANY, 300):
        await write(server, *(put_job(f"j{number:04}") for number in range(start, start + 300)))


def count_cached_lists(server: OneServer) -> int:
    return len(server.api.reads.list_encoder.cached_lists._lists)


@in_virtual_time
async def test_a_long_list_shows_the_job_of_the_last_write() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await fill(server)
        first = await list_jobs(server)
        assert (len(first), count_cached_lists(server)) == (MANY, 1)

        await write(server, put_job("j0300", priority=77), put_job("new"), JOBS.build_delete("default", "j0000"))
        summary = JobSummary(job_id="j0001", namespace="default", create_index=1)
        await write(server, JOB_SUMMARIES.build_put(summary))
        listed = await list_jobs(server)

        by_id = {job["ID"]: job for job in listed}
        assert [job["ID"] for job in listed] == sorted(by_id)
        assert (by_id["j0300"]["Priority"], "new" in by_id, "j0000" in by_id) == (77, True, False)
        assert by_id["j0001"]["JobSummary"]["JobID"] == "j0001"
        # Views that depend on the caller are never cached.
        assert listed == await list_jobs(server, "pretty")
        assert count_cached_lists(server) == 1


@in_virtual_time
async def test_the_compressed_list_has_the_same_content() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await fill(server)
        for priority in (10, 20):
            await write(server, put_job("j0300", priority=priority))
            plain = (await get(server, "/v1/jobs")).body
            packed = {
                encoding: await send_raw(
                    server.api, "GET", "/v1/jobs", query="stale", headers={"accept-encoding": encoding}
                )
                for encoding in ("gzip", "deflate")
            }

            assert gzip.decompress(packed["gzip"].body) == plain
            assert zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(packed["gzip"].body) == plain
            assert zlib.decompress(packed["deflate"].body) == plain


@in_virtual_time
async def test_filtered_and_paged_lists_are_not_taken_from_the_cache() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await fill(server)
        await write(server, *(put_job(f"other{number:03}", namespace="other") for number in range(300)))
        await list_jobs(server)
        await write(server, put_job("j0300", priority=77))

        assert [job["ID"] for job in await list_jobs(server, "filter=Priority+==+77")] == ["j0300"]
        assert [job["ID"] for job in await list_jobs(server, "per_page=1&next_token=default.j0300")] == ["j0300"]
        assert (await list_jobs(server, "reverse=true"))[0]["ID"] == f"j{MANY - 1:04}"
        assert [job["ID"] for job in await list_jobs(server, "prefix=j030")] == [f"j030{n}" for n in range(10)]
        assert len(await list_jobs(server, "namespace=other")) == 300
        assert len(await list_jobs(server, "namespace=*")) == MANY + 300
        assert len(await list_jobs(server, "meta=true")) == MANY


@in_virtual_time
async def test_a_list_by_creation_of_one_namespace_is_cached() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        for start in range(0, 600, 300):
            await write(server, *(put_evaluation(uuid(start + number)) for number in range(300)))
        assert len(json.loads((await get(server, "/v1/evaluations")).body)) == 600

        await write(
            server,
            put_evaluation(uuid(0xFFFF)),
            put_evaluation(uuid(0xFFFE), "other"),
            EVALUATIONS.build_delete(uuid(3)),
        )
        listed = [each["ID"] for each in json.loads((await get(server, "/v1/evaluations")).body)]

        assert listed == [uuid(number) for number in range(600) if number != 3] + [uuid(0xFFFF)]
        assert count_cached_lists(server) == 1


@in_virtual_time
async def test_concurrent_lists_during_writes_show_a_consistent_state() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await fill(server)
        await list_jobs(server)

        pending = []
        for priority in range(1, 21):
            # Two jobs that are always written together: no list may show different versions.
            await write(server, put_job("j0000", priority=priority), put_job("j0599", priority=priority))
            pending.append(cluster.start(list_jobs(server), name="lists"))
        views = [await each for each in pending]

        pairs = [(jobs[0]["Priority"], jobs[-1]["Priority"]) for jobs in views]
        assert [first for first, _ in pairs] == [last for _, last in pairs]
        assert (await list_jobs(server))[0]["Priority"] == 20


class WorldWithLateTasks(SimulatedWorld):
    """A world in which something else happens before each reply's task begins, as on a busy loop."""

    before_reply: Callable[[], None] = staticmethod(lambda: None)

    def start_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        if name == "reply":
            self.before_reply()
        return super().start_task(coroutine, name=name)


class ClusterWithLateTasks(ACluster):
    def world(self, member: str) -> SimulatedWorld:
        return WorldWithLateTasks(self._seed, asyncio.get_running_loop().time, member=member)


def apply_write(replica: Replica, *changes: PutRecord | DeleteRecord) -> None:
    """Apply a write of another server to this replica at once."""
    logged = replica.encode_write(make_write(*changes), write_id="w", cluster_format=get_active_format(replica))
    replica.apply_batch(Batch(replica.index + 1, logged.id, logged.kind, logged.cause, logged.changes))


@in_virtual_time
async def test_a_change_before_the_task_of_the_first_encoding_begins_is_shown_by_the_next_request() -> None:
    async with ClusterWithLateTasks() as cluster:
        server = await cluster.a_server(leads=False)
        await fill(server)
        world = server.server.world
        assert isinstance(world, WorldWithLateTasks)
        world.before_reply = lambda: apply_write(server.replica, put_job("late"))

        first = await list_jobs(server)
        world.before_reply = lambda: None
        second = await list_jobs(server)

    assert [len(first), len(second), second[-1]["ID"]] == [MANY, MANY + 1, "late"]
