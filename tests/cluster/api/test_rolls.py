"""Whole lists that are kept: what they show is what stands there, and only what changed is made anew."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Sequence
from typing import Any

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
from tests.kit.exchange import ask
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.lists.cache import MAX_LIST_CHANGES, CachedList, ListCache
from wharf.cluster.api.lists.listing import ListCacheSpec
from wharf.cluster.api.replies.encoding import BODY_CHUNK_BYTES
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, JOB_SUMMARIES, JOBS
from wharf.contract.model.jobs.job import JobSummary
from wharf.contract.model.log import KEY_SEPARATOR, Batch, LogPosition

NORTH = ListCacheSpec(("north",), CRATES, f"north{KEY_SEPARATOR}")
BY_CREATION = ListCacheSpec(("parcels",), PARCELS, "", is_by_creation=True)


class Encoding:
    """Makes forms, and knows of which records."""

    def __init__(self, *, form_bytes: int = 0) -> None:
        self.made: list[str] = []
        self._more = "x" * form_bytes

    def __call__(self, records: Sequence[Any]) -> list[bytes]:
        names = [record.name if hasattr(record, "name") else record.id for record in records]
        self.made += names
        return [
            msgspec.json.encode([name, record.modify_index, self._more])
            for name, record in zip(names, records, strict=True)
        ]


def told(body: Any) -> list[tuple[str, int]]:
    return [(name, index) for name, index, _ in json.loads(b"".join(body.chunks))]


def filled(roll: CachedList, records: Sequence[Any], forms_of: Encoding) -> list[tuple[str, int]]:
    return told(asyncio.run(roll.fill(records, forms_of)))


def renewed(roll: CachedList, forms_of: Encoding) -> list[tuple[str, int]]:
    return told(asyncio.run(roll.refresh(roll.take_changes(), forms_of)))


def crates_in_north(replica: Replica) -> list[Any]:
    return list(replica.iter_by_key(CRATES, prefix=NORTH.prefix))


# -- what is made anew


def test_after_a_change_only_what_changed_is_encoded() -> None:
    replica, encoding = make_replica(), Encoding()
    replica.apply_batch(make_batch(1, *(CRATES.build_put(make_crate(name)) for name in "abc")))
    roll = CachedList(replica, NORTH)
    filled(roll, crates_in_north(replica), encoding)
    encoding.made.clear()

    replica.apply_batch(
        make_batch(
            2,
            CRATES.build_put(make_crate("b")),
            CRATES.build_put(make_crate("e")),
            CRATES.build_put(make_crate("b", "south")),
        )
    )
    replica.apply_batch(make_batch(3, CRATES.build_delete("north", "a")))

    assert renewed(roll, encoding) == [("b", 2), ("c", 1), ("e", 2)]
    assert sorted(encoding.made) == ["b", "e"]
    assert renewed(roll, encoding) == [("b", 2), ("c", 1), ("e", 2)]
    assert sorted(encoding.made) == ["b", "e"]


def test_a_body_goes_on_being_of_its_moment() -> None:
    replica, encoding = make_replica(), Encoding()
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))
    roll = CachedList(replica, NORTH)

    async def story() -> tuple[Any, Any, bytes]:
        before = await roll.fill(crates_in_north(replica), encoding)
        replica.apply_batch(make_batch(2, CRATES.build_put(make_crate("a"))))
        after = await roll.refresh(roll.take_changes(), encoding)
        return before, after, b"".join(await before.get_encoded_chunks(b"gzip"))

    before, after, compressed = asyncio.run(story())
    assert (told(before), told(after)) == ([("a", 1)], [("a", 2)])
    assert gzip.decompress(compressed) == b"".join(before.chunks)


def test_what_changes_while_it_is_filled_is_shown_the_next_time() -> None:
    replica, encoding = make_replica(), Encoding()
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))
    roll, records = CachedList(replica, NORTH), crates_in_north(replica)
    replica.apply_batch(make_batch(2, CRATES.build_put(make_crate("b"))))

    assert filled(roll, records, encoding) == [("a", 1)]
    assert renewed(roll, encoding) == [("a", 1), ("b", 2)]


def test_a_change_to_what_a_record_rests_on_is_a_change() -> None:
    replica, encoding = Replica((JOBS, JOB_SUMMARIES)), Encoding()
    kept = ListCacheSpec(("jobs",), JOBS, "", dependency_table=JOB_SUMMARIES)
    roll = CachedList(replica, kept)
    assert filled(roll, [], encoding) == []
    for index, change in enumerate((put_job("web"), put_job("db")), start=1):
        replica.apply_batch(_batch_of(replica, index, change))
    renewed(roll, encoding)
    encoding.made.clear()

    replica.apply_batch(
        _batch_of(replica, 3, JOB_SUMMARIES.build_put(JobSummary(job_id="web", namespace="default", create_index=3)))
    )
    renewed(roll, encoding)

    assert encoding.made == ["web"]


def _batch_of(replica: Replica, index: int, change: Any) -> Any:
    logged = replica.encode_write(make_write(change), write_id=f"write-{index}")
    return Batch(index, logged.id, logged.kind, logged.cause, logged.changes)


STEPS = st.lists(
    st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefghijklmnop")), min_size=1, max_size=6, unique_by=lambda s: s[1]),
    max_size=12,
)  # fmt: skip


@given(begun_with=st.sets(st.sampled_from("abcdefghijklmnop")), steps=STEPS, by_creation=st.booleans())
def test_whatever_is_written_a_roll_shows_what_stands_there(
    begun_with: set[str], steps: list[list[tuple[bool, str]]], by_creation: bool
) -> None:
    replica, encoding = make_replica(), Encoding(form_bytes=BODY_CHUNK_BYTES // 3)

    def put(name: str) -> Any:
        return PARCELS.build_put(make_parcel(name)) if by_creation else CRATES.build_put(make_crate(name))

    def drop(name: str) -> Any:
        return PARCELS.build_delete(name) if by_creation else CRATES.build_delete("north", name)

    def standing() -> list[Any]:
        return list(replica.iter_by_creation(PARCELS)) if by_creation else crates_in_north(replica)

    replica.apply_batch(make_batch(1, NOTICE.build_delete(), *map(put, sorted(begun_with))))
    roll = CachedList(replica, BY_CREATION if by_creation else NORTH)
    filled(roll, standing(), encoding)

    for number, step in enumerate(steps, start=2):
        replica.apply_batch(make_batch(number, *(put(name) if puts else drop(name) for puts, name in step)))
        shown = [getattr(record, "name", "") or record.id for record in standing()]
        assert renewed(roll, encoding) == list(zip(shown, [r.modify_index for r in standing()], strict=True))


# -- when it is given up


def test_when_too_much_changed_it_is_made_from_the_beginning() -> None:
    replica, rolls = make_replica(), ListCache()
    roll = CachedList(replica, NORTH)
    filled(roll, [], Encoding())
    rolls.put("north", roll)
    assert rolls.get("north") is roll

    replica.apply_batch(
        make_batch(1, *(CRATES.build_put(make_crate(f"{number:05}")) for number in range(MAX_LIST_CHANGES + 1)))
    )

    assert rolls.get("north") is None
    assert "crates" not in replica.watches.table_watches


def test_a_state_that_was_loaded_anew_makes_it_begin_anew() -> None:
    replica, rolls = make_replica(), ListCache()
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))
    roll = CachedList(replica, NORTH)
    filled(roll, crates_in_north(replica), Encoding())
    rolls.put("north", roll)

    replica.load_state([], LogPosition(index=2, last_changes={}))

    assert rolls.get("north") is None
    assert "crates" not in replica.watches.table_watches


def test_those_that_nobody_asked_for_lately_go() -> None:
    replica, rolls = make_replica(), ListCache(max_lists=2)
    for name in "abc":
        roll = CachedList(replica, NORTH)
        filled(roll, [], Encoding())
        rolls.put(name, roll)
        rolls.get("a")

    assert [name for name in "abc" if rolls.get(name) is not None] == ["a", "c"]
    assert len(replica.watches.table_watches["crates"].observers) == 2


def test_one_that_could_not_be_renewed_is_given_up() -> None:
    replica = make_replica()
    roll = CachedList(replica, NORTH)
    filled(roll, [], Encoding())
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))

    def failing(_records: Sequence[Any]) -> list[bytes]:
        raise RuntimeError("cannot encode")

    with pytest.raises(RuntimeError):
        asyncio.run(roll.refresh(roll.take_changes(), failing))
    assert not roll.is_current


# -- over HTTP

MANY = 600


async def jobs_as(server: OneServer, query: str = "") -> list[Any]:
    reply = await get(server, "/v1/jobs", query)
    listed: list[Any] = json.loads(reply.body)
    return listed


async def fill(server: OneServer) -> None:
    for start in range(0, MANY, 300):
        await write(server, *(put_job(f"j{number:04}") for number in range(start, start + 300)))


def kept_rolls(server: OneServer) -> int:
    return len(server.api._reads._cached_lists._kept)


@in_virtual_time
async def test_a_long_list_after_a_write_shows_the_written_job() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await fill(server)
        first = await jobs_as(server)
        assert (len(first), kept_rolls(server)) == (MANY, 1)

        await write(server, put_job("j0300", priority=77), put_job("new"), JOBS.build_delete("default", "j0000"))
        summary = JobSummary(job_id="j0001", namespace="default", create_index=1)
        await write(server, JOB_SUMMARIES.build_put(summary))
        listed = await jobs_as(server)

        by_id = {job["ID"]: job for job in listed}
        assert [job["ID"] for job in listed] == sorted(by_id)
        assert (by_id["j0300"]["Priority"], "new" in by_id, "j0000" in by_id) == (77, True, False)
        assert by_id["j0001"]["JobSummary"]["JobID"] == "j0001"
        # What is made for readers is never kept, so it is read from the state.
        assert listed == await jobs_as(server, "pretty")
        assert kept_rolls(server) == 1


@in_virtual_time
async def test_the_compressed_list_holds_the_same() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await fill(server)
        for priority in (10, 20):
            await write(server, put_job("j0300", priority=priority))
            plain = (await get(server, "/v1/jobs")).body
            packed = {
                encoding: await ask(server.api, "GET", "/v1/jobs", query="stale", headers={"accept-encoding": encoding})
                for encoding in ("gzip", "deflate")
            }

            assert gzip.decompress(packed["gzip"].body) == plain
            assert zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(packed["gzip"].body) == plain
            assert zlib.decompress(packed["deflate"].body) == plain


@in_virtual_time
async def test_what_is_filtered_or_in_pages_is_not_taken_from_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await fill(server)
        await write(server, *(put_job(f"other{number:03}", namespace="other") for number in range(300)))
        await jobs_as(server)
        await write(server, put_job("j0300", priority=77))

        assert [job["ID"] for job in await jobs_as(server, "filter=Priority+==+77")] == ["j0300"]
        assert [job["ID"] for job in await jobs_as(server, "per_page=1&next_token=default.j0300")] == ["j0300"]
        assert (await jobs_as(server, "reverse=true"))[0]["ID"] == f"j{MANY - 1:04}"
        assert [job["ID"] for job in await jobs_as(server, "prefix=j030")] == [f"j030{n}" for n in range(10)]
        assert len(await jobs_as(server, "namespace=other")) == 300
        assert len(await jobs_as(server, "namespace=*")) == MANY + 300
        assert len(await jobs_as(server, "meta=true")) == MANY


@in_virtual_time
async def test_a_list_by_creation_is_kept_too_and_only_of_its_namespace() -> None:
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
        assert kept_rolls(server) == 1


@in_virtual_time
async def test_many_who_list_while_others_write_see_one_moment_each() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await fill(server)
        await jobs_as(server)

        asking = []
        for priority in range(1, 21):
            # Two jobs that always change together: no list may show them apart.
            await write(server, put_job("j0000", priority=priority), put_job("j0599", priority=priority))
            asking.append(cluster.start(jobs_as(server), name="lists"))
        shown = [await each for each in asking]

        pairs = [(jobs[0]["Priority"], jobs[-1]["Priority"]) for jobs in shown]
        assert [first for first, _ in pairs] == [last for _, last in pairs]
        assert (await jobs_as(server))[0]["Priority"] == 20
