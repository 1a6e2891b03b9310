"""Lists: pages that stay consistent under writes, order, tokens, prefixes, filters."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.state import a_node, an_allocation, an_evaluation
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.api.lists.cache import CachedList
from wharf.cluster.api.requests.values import parse_id_prefix
from wharf.cluster.state.sharded_dict import ShardedDict
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.contract.client import ClientReply
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import Refusal

CAUSE = Cause(CauseKind.REQUEST, "test")


def uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


async def get(server: OneServer, path: str, query: str = "") -> ClientReply:
    return await send_raw(server.api, "GET", path, query=query + "&stale" if query else "stale")


async def write(server: OneServer, *changes: Any) -> None:
    await server.server.writer.commit(Write("test", CAUSE, changes))
    await server.server.writer.catch_up()


def put_job(id: str, namespace: str = "default", **fields: Any) -> Any:
    return JOBS.build_put(
        Job(id=id, name=id, namespace=namespace, create_index=WRITE_INDEX, job_modify_index=WRITE_INDEX, **fields)
    )


def put_evaluation(id: str, namespace: str = "default", **fields: Any) -> Any:
    return EVALUATIONS.build_put(an_evaluation(a_job(namespace=namespace), id, **fields))


async def ids(server: OneServer, path: str, query: str = "") -> list[str]:
    reply = await get(server, path, query)
    assert reply.status == 200, reply.body
    return [each["ID"] for each in json.loads(reply.body)]


async def walk(server: OneServer, path: str, query: str) -> list[list[str]]:
    """Return all pages; each is requested with the token of the previous one."""
    pages, token = [], ""
    while True:
        reply = await get(server, path, f"{query}&next_token={quote(token)}")
        pages.append([each["ID"] for each in json.loads(reply.body)])
        token = reply.headers.get("x-cluster-nexttoken", "")
        if not token:
            return pages


# -- consistency under writes

NUMBERS = st.integers(min_value=0, max_value=30)
STEPS = st.lists(st.tuples(st.sampled_from(("put", "drop")), NUMBERS), max_size=8)
LISTS: dict[str, tuple[Callable[[int], Any], Callable[[int], Any], Callable[[int], str]]] = {
    "/v1/jobs": (lambda n: put_job(f"j{n:02}"), lambda n: JOBS.build_delete("default", f"j{n:02}"), lambda n: f"j{n:02}"),
    "/v1/evaluations": (lambda n: put_evaluation(uuid(n)), lambda n: EVALUATIONS.build_delete(uuid(n)), uuid),
    "/v1/nodes": (lambda n: NODES.build_put(a_node(uuid(n), create_index=WRITE_INDEX)), lambda n: NODES.build_delete(uuid(n)), uuid),
}  # fmt: skip


@given(
    path=st.sampled_from(sorted(LISTS)),
    initial=st.sets(NUMBERS, max_size=20),
    between=st.lists(STEPS, max_size=6),
    per_page=st.integers(min_value=1, max_value=6),
    reverse=st.booleans(),
)
def test_paging_neither_skips_nor_repeats_records_that_exist_all_the_time(
    path: str, initial: set[int], between: list[list[tuple[str, int]]], per_page: int, reverse: bool
) -> None:
    put, drop, id_of = LISTS[path]

    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server(leads=False)
            if initial:
                await write(server, *(put(number) for number in sorted(initial)))
            remained = set(initial)
            pages: list[list[str]] = []
            token, steps = "", iter(between)
            while True:
                query = f"per_page={per_page}&reverse={'true' if reverse else ''}&next_token={quote(token)}"
                reply = await get(server, path, query)
                pages.append([each["ID"] for each in json.loads(reply.body)])
                token = reply.headers.get("x-cluster-nexttoken", "")
                if not token:
                    break
                for case, number in next(steps, []):
                    # A record that was deleted, even if it was created again, did not exist all the time.
                    remained.discard(number)
                    await write(server, drop(number))
                    if case == "put":
                        await write(server, put(number))

            observed = [each for page in pages for each in page]
            assert sorted(each for each in observed if each in {id_of(n) for n in remained}) == sorted(
                map(id_of, remained)
            )
            assert [len(page) for page in pages[:-1]] == [per_page] * (len(pages) - 1)

    run()


# -- pages


@in_virtual_time
async def test_a_filtered_page_is_full_unless_it_is_the_last() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await write(server, *(put_job(f"j{n:03}", priority=n % 3 + 1) for n in range(100)))

        pages = await walk(server, "/v1/jobs", "per_page=7&filter=" + quote("Priority == 1"))

        assert [len(page) for page in pages] == [7, 7, 7, 7, 6]
        assert [each for page in pages for each in page] == [f"j{n:03}" for n in range(0, 100, 3)]


@in_virtual_time
async def test_a_filter_reaches_past_the_first_slice_of_a_long_table() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        for start in range(0, 1_500, 500):
            await write(server, *(put_job(f"j{n:04}") for n in range(start, start + 500)))
        await write(server, put_job("the-last", priority=7))

        assert await ids(server, "/v1/jobs", "per_page=1&filter=" + quote("Priority == 7")) == ["the-last"]
        assert len(await ids(server, "/v1/jobs", "filter=" + quote("Priority != 7"))) == 1_500


@in_virtual_time
async def test_the_last_page_has_no_token_and_a_token_past_the_end_lists_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await write(server, *(put_job(name) for name in "abc"))

        exact = await get(server, "/v1/jobs", "per_page=3")
        past_token = await get(server, "/v1/jobs", "next_token=default.zzz")

        assert ("x-cluster-nexttoken" in exact.headers, past_token.body) == (False, b"[]")


@in_virtual_time
async def test_a_negative_page_size_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        reply = await get(server, "/v1/jobs", "per_page=-1")

        assert (reply.status, reply.body) == (
            400,
            b'Expect a number from 1 for `per_page` query string parameter, given "-1"; leave it out to get all '
            b"records",
        )


@pytest.mark.parametrize(
    ("path", "query", "token"),
    [
        ("/v1/jobs", "", "default.b"),
        ("/v1/jobs", "namespace=*", "default.b"),
        ("/v1/evaluations", "", "2.{1}"),
        ("/v1/evaluations", "prefix=0000", "{1}"),
        ("/v1/nodes", "", "{1}"),
    ],
)
def test_a_token_names_the_first_record_of_the_next_page(path: str, query: str, token: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server(leads=False)
            await write(server, put_job("a"), put_job("b"), *(put_evaluation(uuid(n)) for n in range(2)),
                        *(NODES.build_put(a_node(uuid(n), create_index=WRITE_INDEX)) for n in range(2)))  # fmt: skip
            created = next(iter(server.replica.iter_all(EVALUATIONS))).create_index

            reply = await get(server, path, f"per_page=1&{query}")

            result = reply.headers["x-cluster-nexttoken"]
            assert result == token.replace("{1}", uuid(1)).replace("2.", f"{created}.")

    run()


@in_virtual_time
async def test_names_with_any_characters_survive_their_token() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        names = ["a", "caf\u00e9", "per%cent", "slash/ed", "\u65e5\u672c"]
        await write(server, *(put_job(name) for name in names))

        assert await walk(server, "/v1/jobs", "per_page=1") == [[name] for name in sorted(names)]
        token = (await get(server, "/v1/jobs", "per_page=4")).headers["x-cluster-nexttoken"]
        assert (token.isascii(), unquote(token)) == (True, "default.\u65e5\u672c")


@in_virtual_time
async def test_a_creation_token_may_be_an_index_alone_or_invalid() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        for number in range(4):
            await write(server, put_evaluation(uuid(9 - number)))
        created = [evaluation.create_index for evaluation in server.replica.iter_all(EVALUATIONS)]

        assert await ids(server, "/v1/evaluations", f"next_token={created[2]}") == [uuid(7), uuid(6)]
        assert await ids(server, "/v1/evaluations", f"next_token={created[1]}&reverse=true") == [uuid(9)]
        assert len(await ids(server, "/v1/evaluations", "next_token=nonsense")) == 4


@in_virtual_time
async def test_a_forward_token_also_works_in_reverse() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await write(server, *(put_job(name) for name in "abcd"))

        assert await ids(server, "/v1/jobs", "next_token=default.b&reverse=true") == ["b", "a"]


@in_virtual_time
async def test_a_page_of_a_long_list_reads_no_more_records_than_it_shows() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        for start in range(0, 2_000, 500):
            await write(server, *(put_evaluation(uuid(n)) for n in range(start, start + 500)))
        lookups = 0

        def count(frame: Any, event: str, _arg: object) -> None:
            nonlocal lookups
            lookups += event == "call" and frame.f_code is SHARDED_DICT_GET

        sys.setprofile(count)
        try:
            await ids(server, "/v1/evaluations", "per_page=50")
        finally:
            sys.setprofile(None)

        assert lookups == 51


SHARDED_DICT_GET = ShardedDict.__getitem__.__code__


# -- order and prefixes


@in_virtual_time
async def test_jobs_and_allocations_can_be_reversed_and_nodes_cannot() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        job = a_job()
        await write(server, put_job("a"), put_job("b"), JOB_VERSIONS.build_put(job))
        for number in range(2):
            await write(server, put_evaluation(uuid(number)), ALLOCATIONS.build_put(an_allocation(job, uuid(number))),
                        NODES.build_put(a_node(uuid(number), create_index=WRITE_INDEX)))  # fmt: skip

        assert await ids(server, "/v1/jobs", "reverse=true") == ["b", "a"]
        assert await ids(server, "/v1/evaluations", "reverse=true") == [uuid(1), uuid(0)]
        assert await ids(server, "/v1/allocations", "reverse=true") == [uuid(1), uuid(0)]
        assert await ids(server, "/v1/nodes", "reverse=true") == [uuid(0), uuid(1)]


@in_virtual_time
async def test_a_list_of_an_unknown_namespace_is_empty() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        await write(server, put_job("a"))

        assert await ids(server, "/v1/jobs", "namespace=nowhere") == []


@pytest.mark.parametrize(
    ("prefix", "parsed"),
    [("", ""), ("ab", "ab"), ("ABCD", "abcd"), ("abcd0000-00", "abcd0000-00"), ("----", ""), ("a-b", "a-b")],
)
def test_an_id_prefix_is_parsed(prefix: str, parsed: str) -> None:
    assert parse_id_prefix(prefix) == parsed


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        ("abc", "here: Input (without hyphens) must be even length"),
        ("xy", "here: Invalid UUID: encoding/hex: invalid byte"),
        ("a-b-c-d-e-f", 'here: UUID should have maximum of 4 "-"; got 5'),
    ],
)
def test_an_invalid_id_prefix_is_refused(prefix: str, text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_id_prefix(prefix, error_prefix="here: ")

    assert caught.value.text.startswith(text)


# -- filters


@pytest.mark.parametrize(
    ("path", "text", "answer"),
    [
        ("/v1/jobs", "Datacenters contains dc1", ""),
        ("/v1/jobs", 'Name == "a"', ""),
        ("/v1/jobs", "Nope == 1", "failed to read result page: "),
        ("/v1/jobs", "Name ==", "failed to create result paginator: failed to read filter expression: 1:"),
        ("/v1/jobs", " ", "failed to create result paginator: failed to read filter expression: 1:"),
        ("/v1/jobs", 'Name matches "("', "failed to read result page: "),
        ("/v1/nodes", 'SecretDigest == "x"', "failed to read result page: "),
        ("/v1/allocations", 'Job.Type == "service"', ""),
        ("/v1/allocations", "AllocatedResources is nil", ""),
        ("/v1/allocations", 'JobType == "service"', "failed to read result page: "),
    ],
)
def test_a_filter_is_checked_before_anything_is_read(path: str, text: str, answer: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            reply = await get(await cluster.a_server(leads=False), path, "filter=" + quote(text))

            result = "" if reply.status == 200 else reply.body.decode()
            assert (reply.status, result[: len(answer)]) == (400 if answer else 200, answer)

    run()


@in_virtual_time
async def test_allocations_are_filtered_by_fields_of_their_job() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        service, batch = a_job("web"), a_job("nightly", type="batch")
        await write(server, JOB_VERSIONS.build_put(service), JOB_VERSIONS.build_put(batch))
        await write(
            server,
            ALLOCATIONS.build_put(an_allocation(service, uuid(1))),
            ALLOCATIONS.build_put(an_allocation(batch, uuid(2))),
        )

        assert await ids(server, "/v1/allocations", "filter=" + quote('Job.Type == "batch"')) == [uuid(2)]
        assert await ids(server, "/v1/allocations", "filter=" + quote('Job.Type != "batch"')) == [uuid(1)]


# -- long lists


@in_virtual_time
async def test_a_long_list_is_consistent_while_others_write() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        for start in range(0, 6_000, 500):
            await write(server, *(put_evaluation(uuid(2 * n)) for n in range(start, start + 500)))
        before = [uuid(2 * n) for n in range(6_000)]
        queries = ("", "filter=" + quote("Priority == 50"), "prefix=00")
        pending = [cluster.start(get(server, "/v1/evaluations", query), name="lists") for query in queries]
        watches = server.replica.watches.table_watches
        while EVALUATIONS.name not in watches or len(watches[EVALUATIONS.name].observers) < len(queries):
            await pass_time(0.0)

        last = EVALUATIONS.build_delete(uuid(11_998))
        written = await server.server.writer.commit(
            Write("test", CAUSE, [last, put_evaluation(uuid(1)), put_evaluation(uuid(9_001))])
        )
        await server.server.follower.wait_until_applied(written.index)  # type: ignore[union-attr]  # It has no conditions.
        changed = server.replica.get(EVALUATIONS, uuid(11_998)) is None
        incomplete = [each for each in pending if not each.done()]
        replies = [await each for each in pending]

        assert (changed, len(incomplete)) == (True, 3)
        assert [[e["ID"] for e in json.loads(reply.body)] == before for reply in replies] == [True] * 3
        assert {reply.headers["x-cluster-index"] for reply in replies} == {str(server.replica.index - 1)}
        # Only the two cached lists still observe changes.
        result = [type(journal) for journal in server.replica.watches.table_watches[EVALUATIONS.name].observers]
        assert result == [CachedList, CachedList]


@in_virtual_time
async def test_other_requests_are_answered_while_a_long_list_is_encoded() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        for start in range(0, 2_000, 500):
            await write(server, *(put_evaluation(uuid(n)) for n in range(start, start + 500)))
        done: list[str] = []

        async def get_and_record(path: str) -> None:
            await get(server, path)
            done.append(path)

        pending = [cluster.start(get_and_record(path), name=path) for path in ("/v1/evaluations", "/v1/status/leader")]
        for each in pending:
            await each

        assert done == ["/v1/status/leader", "/v1/evaluations"]


@in_virtual_time
async def test_a_short_request_waits_for_one_slice_beside_many_long_lists() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        for start in range(0, 2_000, 500):
            await write(server, *(put_evaluation(uuid(n)) for n in range(start, start + 500)))
        lists = [
            cluster.start(get(server, "/v1/evaluations", "filter=" + quote(f"Priority != {n}")), name="lists")
            for n in range(100, 120)
        ]
        await asyncio.sleep(0)
        short = cluster.start(get(server, "/v1/status/leader"), name="short")
        iterations = 0
        while not short.done():
            iterations += 1
            await asyncio.sleep(0)

        assert iterations < 10
        assert sum(task.done() for task in lists) == 0
        assert {len(json.loads((await task).body)) for task in lists} == {2_000}


@in_virtual_time
async def test_lists_beyond_the_memory_for_lists_are_refused_until_others_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        for start in range(0, 2_000, 500):
            await write(server, *(put_evaluation(uuid(n)) for n in range(start, start + 500)))
        memory = server.api.reads.list_encoder.reply_memory
        whole = await get(server, "/v1/evaluations", "pretty")
        monkeypatch.setattr(memory, "max_bytes", memory.used_bytes + 2 * len(whole.body))
        queries = ["filter=" + quote(f"Priority != {n}") for n in range(100, 110)]

        replies = await asyncio.gather(*(get(server, "/v1/evaluations", query) for query in queries))

        refused = [reply for reply in replies if reply.status == 503]
        assert {reply.status for reply in replies} == {200, 503}
        assert {reply.headers["retry-after"] for reply in refused} == {"5"}
        assert refused[0].headers["x-cluster-error-reason"] == "overloaded"
        assert b"read pages with per_page" in refused[0].body
