"""Limits of reads: no read holds the event loop for long, and none uses more CPU time than its budget."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.attempts import require_cpu
from tests.builders import a_group, a_job, a_task, admitted
from tests.cluster.api.access import an_operator
from tests.kit.api_client import ApiClient
from tests.kit.cluster import OneServer
from tests.kit.exchange import build_scope
from tests.kit.loop_holds import LoopHolds, MeasuredCluster, MeasuredWorld, measure_holds
from tests.kit.requests import put
from tests.kit.state import a_node, an_allocation, an_evaluation
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import SETTLED_S, an_id, pause_broker, store
from wharf.cluster.access import UNCHECKED_CALLER
from wharf.cluster.api.lists.encoder import MAX_RECORDS_CHOSEN_TOGETHER
from wharf.cluster.server.cpu_budget import (
    MAX_OFF_LOOP_REQUESTS,
    CpuBudget,
    OffLoopWorker,
    ReadLimits,
    SlicedWork,
)
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    EVALUATIONS,
    JOB_VERSIONS,
    JOBS,
    NODES,
    SERVICES,
    VARIABLES,
)
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Overloaded, Refusal
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.variables import Variable

LONG_TEXT = "ab" * 15_000
SLOW_PATTERN = "[ab]*a[ab]{450}c"
"""RE2 matches it at 2 µs for each byte. Its size is within the limits."""
WRITES_PER_COMMIT = 900
ENDED = {"desired_status": DesiredStatus.STOP, "client_status": ClientStatus.COMPLETE}


class SentReply:
    """A reply with its body as it was sent, in chunks: joining a large one would hold the loop."""

    def __init__(self, messages: list[Any]) -> None:
        self.status: int = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.chunks = [message["body"] for message in messages[1:]]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def ids(self) -> list[str]:
        assert self.status == 200, self.body
        return [each["ID"] for each in json.loads(self.body)]


async def send(
    server: OneServer,
    path: str,
    query: str = "",
    *,
    method: str = "",
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> tuple[SentReply, LoopHolds]:
    """Send a request in a task of its own, and return the reply and the holds of the loop."""
    messages: list[Any] = []
    is_read = False

    async def receive() -> Any:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await asyncio.get_running_loop().create_future()

    async def collect(message: Any) -> None:
        messages.append(message)

    scope = build_scope(method or ("POST" if body else "GET"), path, query=query, headers=headers or {})
    with measure_holds() as holds:
        await asyncio.get_running_loop().create_task(server.api(scope, receive, collect))
    return SentReply(messages), holds


async def filter_jobs(server: OneServer, expression: str) -> tuple[SentReply, LoopHolds]:
    return await send(server, "/v1/jobs", f"filter={quote(expression)}")


async def store_all(server: OneServer, puts: list[Any]) -> None:
    for start in range(0, len(puts), WRITES_PER_COMMIT):
        await store(server, *puts[start : start + WRITES_PER_COMMIT])


def put_job(job: Job) -> list[Any]:
    stored = replace(admitted(job), status=JobStatus.RUNNING, create_index=WRITE_INDEX, job_modify_index=WRITE_INDEX)
    return [JOBS.build_put(stored), JOB_VERSIONS.build_put(stored)]


def put_instance(id: str, service: str, **fields: Any) -> Any:
    """Return the change that stores an instance of a service."""
    registration = ServiceRegistration(
        id=id, namespace="default", service_name=service, datacenter="dc1", address="10.0.0.1", port=1, **fields
    )
    return SERVICES.build_put(registration)


async def store_jobs_with_text(server: OneServer, count: int, text: str = LONG_TEXT) -> None:
    await store_all(server, [put for n in range(count) for put in put_job(a_job(f"job-{n}", meta={"a": text}))])


# -- filters


@in_virtual_time
async def test_a_regular_expression_that_multiplies_optional_parts_is_refused_at_once() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_jobs_with_text(server, 4)

        reply, holds = await filter_jobs(server, " and ".join(['Meta.a matches "([a-z]?){300}N"'] * 20))

    assert reply.status == 400
    assert b"66,731 transitions, more than 5,000" in reply.body
    holds.require_short("a filter with a costly regular expression")
    require_cpu(holds.total_s, 0.05, "the refusal")


@in_virtual_time
async def test_a_slow_regular_expression_runs_off_the_loop() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_jobs_with_text(server, 3)
        await store_all(server, put_job(a_job("other", meta={"a": "short"})))

        reply, holds = await filter_jobs(server, f'Meta.a matches "{SLOW_PATTERN}" or Meta.a == "short"')

    assert reply.ids == ["other"]
    holds.require_short("a slow regular expression")


@in_virtual_time
async def test_a_page_of_a_slow_filter_ends_at_its_size() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_jobs_with_text(server, 5)
        expression = quote(f'Meta.a not matches "{SLOW_PATTERN}"')

        reply, holds = await send(server, "/v1/jobs", f"filter={expression}&per_page=2")

    assert reply.ids == ["job-0", "job-1"]
    assert reply.headers["x-cluster-nexttoken"] == "default.job-2"
    holds.require_short("a page of a slow filter")


@in_virtual_time
async def test_a_filter_that_uses_its_cpu_time_is_refused() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        server.server.read_limits = ReadLimits(filter_cpu_s=0.05)
        await store_jobs_with_text(server, 8)

        reply, holds = await filter_jobs(server, f'Meta.a matches "{SLOW_PATTERN}"')

    assert (reply.status, b"more than 0.05 s of CPU time (api.max_filter_cpu)" in reply.body) == (400, True)
    holds.require_short("a filter above its budget")


@in_virtual_time
async def test_a_filter_of_many_cheap_records_is_refused_at_its_cpu_time_too() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        server.server.read_limits = ReadLimits(filter_cpu_s=0.001)
        await store_all(server, [put for n in range(1_500) for put in put_job(a_job(f"job-{n}"))])

        reply, _ = await filter_jobs(server, " or ".join(f'Name == "x{n}"' for n in range(200)))

    assert (reply.status, b"(api.max_filter_cpu)" in reply.body) == (400, True)


@in_virtual_time
async def test_a_match_of_a_text_that_is_too_long_for_the_pattern_is_refused() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_jobs_with_text(server, 1, "ab" * 60_000)

        reply, holds = await filter_jobs(server, f'Meta.a matches "{SLOW_PATTERN}"')

    assert reply.status == 400
    assert reply.body == b"failed to read result page: Meta.a matches: more than 100000 steps for one record"
    holds.require_short("a match of a long text")


@pytest.mark.parametrize(
    "expression",
    [
        " or ".join(f'Meta.a contains "x{n}"' for n in range(380)),
        " or ".join(f'Meta.a matches "x{n}"' for n in range(20)),
        'any TaskGroups as a { any TaskGroups as b { any b.Tasks as t { t.Name == "none" and a.Name == "x" } } }',
    ],
    ids=["contains", "plain patterns", "nested any"],
)
@in_virtual_time
async def test_no_filter_holds_the_loop(expression: str) -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        groups = [a_group(f"g{n}", a_task("one"), a_task("two")) for n in range(60)]
        jobs = [a_job(f"job-{n}", *groups, meta={"a": LONG_TEXT * 4}) for n in range(6)]
        await store_all(server, [put for job in jobs for put in put_job(job)])

        reply, holds = await filter_jobs(server, expression)

    assert reply.ids == []
    holds.require_short(expression[:60])


@in_virtual_time
async def test_evaluations_are_selected_for_deletion_without_holding_the_loop() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await pause_broker(server)
        evaluations = [
            an_evaluation(a_job(), an_id(n), status=EvaluationStatus.COMPLETE, status_description=LONG_TEXT)
            for n in range(3)
        ]
        await store_all(server, [EVALUATIONS.build_put(each) for each in evaluations])
        messages: list[Any] = []
        body = json.dumps({"Filter": f'StatusDescription matches "{SLOW_PATTERN}"'}).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def collect(message: Any) -> None:
            messages.append(message)

        scope = build_scope("DELETE", "/v1/evaluations", query="", headers={})
        with measure_holds() as holds:
            await asyncio.get_running_loop().create_task(server.api(scope, receive, collect))

    assert json.loads(SentReply(messages).body)["Count"] == 0
    holds.require_short("the deletion of evaluations by a filter")


@in_virtual_time
async def test_instances_are_chosen_from_those_that_a_slow_filter_accepts() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_all(server, [put_instance(f"r{n}", "web", tags=(LONG_TEXT if n else "short",)) for n in range(4)])
        expression = quote(f'"short" in Tags or any Tags as t {{ t matches "{SLOW_PATTERN}" }}')

        reply, holds = await send(server, "/v1/service/web", f"choose=2|me&filter={expression}")

    assert reply.ids == ["r0"]
    holds.require_short("a filter before a choice")


# -- long lists

ALLOCATION_COUNT = 8_000
LONG_READS = (
    "/v1/jobs", "/v1/jobs?pretty", "/v1/jobs?meta=true", "/v1/allocations", "/v1/allocations?pretty",
    "/v1/allocations?reverse=true", "/v1/allocations?per_page=5000", "/v1/evaluations", "/v1/nodes", "/v1/services", "/v1/vars",
    "/v1/jobs/statuses", "/v1/jobs/statuses?per_page=1000", "/v1/job/big/allocations?all=true", "/v1/job/big/evaluations",
    "/v1/job/big/services", "/v1/node/node-big/allocations", "/v1/service/shared", "/v1/quota-usages", "/v1/quota/usage/q",
    "/v1/job/huge?pretty", "/v1/job/huge/versions", "/v1/job/huge/versions?diffs=true",
)  # fmt: skip


async def store_large_state(server: OneServer) -> None:
    """Store 2,000 jobs, 8,000 allocations, half of them of one job on one node, and one large job with two versions."""
    big, puts = admitted(a_job("big")), [NODES.build_put(a_node("node-big"))]
    for n in range(ALLOCATION_COUNT // 4):
        job = a_job(f"job-{n:05}", meta={"team": f"t{n % 50}"})
        puts += put_job(job)
        puts += [ALLOCATIONS.build_put(an_allocation(job, an_id(2 * n + k), **ENDED)) for k in range(2)]
        puts += [
            ALLOCATIONS.build_put(an_allocation(big, an_id(2 * n + k, 1), node_id="node-big", **ENDED))
            for k in range(2)
        ]
        puts.append(EVALUATIONS.build_put(an_evaluation(big, an_id(n, 2), status=EvaluationStatus.COMPLETE)))
        puts.append(VARIABLES.build_put(Variable(namespace="default", path=f"v/{n}", data=b"x", key_id="k")))
        puts.append(put_instance(f"r{n}", "shared", node_id="n", job_id="big", alloc_id=an_id(n), tags=("a",)))
    environment = {f"E{n}": "x" * 30 for n in range(40)}
    groups = [a_group(f"g{n}", *(a_task(f"t{k}", env=environment) for k in range(4))) for n in range(200)]
    for version in range(2):
        stored = replace(admitted(a_job("huge", *groups, priority=50 + version)), version=version)
        await store_all(server, put_job(stored))
    await store_all(server, [*puts, *put_job(big)])
    quota = {"Name": "q", "Limits": [{"Region": "global", "RegionLimit": {"CPU": 1_000_000}}]}
    assert (await put(server, "/v1/quota", quota)).status == 200
    assert (await put(server, "/v1/namespace", {"Name": "default", "Quota": "q"})).status == 200


@in_virtual_time
async def test_no_long_read_holds_the_loop() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_large_state(server)
        for target in LONG_READS:
            path, _, query = target.partition("?")
            for headers in ({}, {"accept-encoding": "gzip"}):
                reply, holds = await send(server, path, query, headers=headers)

                assert reply.status == 200, (target, reply.body[:200])
                holds.require_short(target)
        for kind, body in (("search", {"Prefix": "0"}), ("search/fuzzy", {"Text": "job-"})):
            content = json.dumps({**body, "Context": "all"}).encode()

            reply, holds = await send(server, f"/v1/{kind}", body=content)

            assert reply.status == 200, (kind, reply.body[:200])
            holds.require_short(kind)


@in_virtual_time
async def test_a_list_that_uses_its_cpu_time_is_refused() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        server.server.read_limits = ReadLimits(list_cpu_s=0.001)
        await store_all(server, [put for n in range(1_500) for put in put_job(a_job(f"job-{n}"))])

        whole, _ = await send(server, "/v1/jobs")
        found, _ = await send(server, "/v1/search/fuzzy", body=b'{"Text": "job", "Context": "jobs"}')
        page, _ = await send(server, "/v1/jobs", "per_page=1")

    assert (whole.status, b"more than 0.001 s of CPU time (api.max_list_cpu)" in whole.body) == (400, True)
    assert (found.status, b"(api.max_list_cpu)" in found.body) == (400, True)
    assert page.ids == ["job-0"]


@in_virtual_time
async def test_an_indented_large_body_equals_the_compact_one() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        groups = [a_group(f"g{n}", a_task(env={f"E{k}": 'a "quoted"\n text' for k in range(200)})) for n in range(60)]
        await store_all(server, put_job(a_job("huge", *groups)))

        await pass_time(SETTLED_S)
        compact, _ = await send(server, "/v1/job/huge")
        indented, _ = await send(server, "/v1/job/huge", "pretty")

    assert len(compact.body) > 256 * 1024
    assert indented.body.decode() == json.dumps(json.loads(compact.body), indent=4, ensure_ascii=False) + "\n"


# -- access control


def build_large_policy() -> str:
    return "\n".join(
        f'namespace "ns-{n}-*" {{ policy = "read"\n variables {{ path "a/{n}/*" {{ capabilities = ["list"] }} }} }}'
        for n in range(900)
    )


@in_virtual_time
async def test_a_large_policy_is_compiled_off_the_loop() -> None:
    async with MeasuredCluster() as cluster:
        operator = await an_operator(cluster)
        server = operator.server
        await operator.policy("large", 'namespace "default" { policy = "read" }\n' + build_large_policy())
        caller = await operator.a_token("large")
        puts = [
            VARIABLES.build_put(Variable(namespace="default", path=f"v/{n}", data=b"x", key_id="k")) for n in range(600)
        ]
        await store_all(server, [*puts, *put_job(a_job("shop"))])

        for target in ("/v1/job/shop", "/v1/acl/policy/large", "/v1/acl/policies", "/v1/vars", "/v1/acl/token/self"):
            reply, holds = await send(server, target, headers={"X-Cluster-Token": caller.token})

            assert reply.status == 200, (target, reply.body)
            holds.require_short(target)


# -- the thread for long computations


class BlockedWorld(MeasuredWorld):
    """A world whose thread for long computations does not finish before `finish` is set."""

    def __init__(self) -> None:
        super().__init__(7)
        self.finish = asyncio.Event()

    async def run_off_loop(self, work: Any) -> Any:
        await self.finish.wait()
        return work()


async def occupy_thread(server: OneServer) -> tuple[BlockedWorld, list[asyncio.Task[None]]]:
    """Let requests without a token use all places of the thread for long computations. Return them and the world."""
    blocked = BlockedWorld()
    worker = server.server.off_loop = OffLoopWorker(blocked)
    loop, owner = asyncio.get_running_loop(), UNCHECKED_CALLER.owner_key
    waiting = [loop.create_task(worker.run(lambda: None, owner)) for _ in range(MAX_OFF_LOOP_REQUESTS)]
    await pass_time(0.001)
    return blocked, waiting


@in_virtual_time
async def test_requests_beyond_the_limit_of_the_thread_are_refused() -> None:
    world = BlockedWorld()
    worker = OffLoopWorker(world)
    loop = asyncio.get_running_loop()
    waiting = [loop.create_task(worker.run(lambda: "done")) for _ in range(MAX_OFF_LOOP_REQUESTS)]
    await pass_time(0.001)

    with pytest.raises(Overloaded) as refused:
        await worker.run(lambda: "refused")
    world.finish.set()

    assert refused.value.retry_after_s > 0
    assert await asyncio.gather(*waiting) == ["done"] * MAX_OFF_LOOP_REQUESTS
    assert await worker.run(lambda: "again") == "again"


@in_virtual_time
async def test_owners_of_long_computations_take_turns() -> None:
    world = BlockedWorld()
    worker = OffLoopWorker(world)
    loop = asyncio.get_running_loop()
    order: list[str] = []
    flood = [loop.create_task(worker.run(lambda: order.append("flood"), "flood")) for _ in range(MAX_OFF_LOOP_REQUESTS)]
    await pass_time(0.001)

    user = loop.create_task(worker.run(lambda: order.append("user"), "user"))
    await pass_time(0.001)
    world.finish.set()
    results = await asyncio.gather(*flood, user, return_exceptions=True)

    assert order[:2] == ["flood", "user"]
    assert [type(each) for each in results if each is not None] == [Overloaded]


@in_virtual_time
async def test_cpu_time_off_the_loop_counts_against_the_budget() -> None:
    world = MeasuredWorld(7)
    work = SlicedWork(world, OffLoopWorker(world), CpuBudget(0.01, "used up"), "a caller")

    def compute(is_budget_over: Any) -> int:
        rounds = 0
        while not is_budget_over():
            rounds += 1
        return rounds

    with pytest.raises(Refusal, match="used up"):
        await work.run_off_loop(compute)


@in_virtual_time
async def test_a_request_that_finds_the_thread_busy_gets_503_and_may_return() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_jobs_with_text(server, 1)
        blocked, waiting = await occupy_thread(server)

        refused, _ = await filter_jobs(server, f'Meta.a matches "{SLOW_PATTERN}"')
        blocked.finish.set()
        await asyncio.gather(*waiting)
        later, _ = await filter_jobs(server, f'Meta.a matches "{SLOW_PATTERN}"')

    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert later.ids == []


@in_virtual_time
async def test_the_choice_from_many_instances_counts_only_its_own_cpu_time() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_all(server, [put_instance(f"r{n}", "web") for n in range(MAX_RECORDS_CHOSEN_TOGETHER + 1)])
        server.server.read_limits = ReadLimits(list_cpu_s=server.world.cpu_s() / 2)

        reply, _ = await send(server, "/v1/service/web", "choose=2|me")

    assert len(reply.ids) == 2


@in_virtual_time
async def test_the_choice_from_many_instances_uses_the_share_of_its_caller() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_all(server, [put_instance(f"r{n}", "web") for n in range(MAX_RECORDS_CHOSEN_TOGETHER + 1)])
        blocked, waiting = await occupy_thread(server)

        choosing = asyncio.get_running_loop().create_task(send(server, "/v1/service/web", "choose=2|me"))
        await pass_time(0.001)
        blocked.finish.set()
        await asyncio.gather(*waiting)
        refused, _ = await choosing

    assert refused.status == 503


async def store_versions(server: OneServer, *, groups: int) -> None:
    """Store two versions of a job, with a difference in every group."""
    for priority in (1, 2):
        many = [a_group(f"group{n}", a_task("server", env={"P": f"{priority}"})) for n in range(groups)]
        await ApiClient(server).put("/v1/jobs", {"Job": a_job("big", *many, priority=priority)})


@in_virtual_time
async def test_differences_of_versions_that_use_their_cpu_time_are_refused_with_advice() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_versions(server, groups=60)
        allowed, _ = await send(server, "/v1/job/big/versions", "diffs=true")
        server.server.read_limits = ReadLimits(view_cpu_s=0.002)

        refused, _ = await send(server, "/v1/job/big/versions", "diffs=true&diff_version=0")
        versions, _ = await send(server, "/v1/job/big/versions")

    assert len(json.loads(allowed.body)["Diffs"][0]["TaskGroups"]) == 60
    assert (refused.status, versions.status) == (400, 200)
    assert refused.body == (
        b"the request used more than 0.002 s of CPU time (api.max_view_cpu): read the versions without `diffs`, delete tags "
        b"of versions that are not needed, or set `job_tracked_versions` lower"
    )


@in_virtual_time
async def test_policies_that_use_their_cpu_time_are_refused_with_advice() -> None:
    async with MeasuredCluster() as cluster:
        operator = await an_operator(cluster)
        rules = "".join(f'namespace "{n}" {{ policy = "read" }}\n' for n in range(300))
        await operator.policy("large", rules)
        operator.server.server.read_limits = ReadLimits(view_cpu_s=0.001)

        status, text = await operator.get("/v1/acl/policy/large")

    assert (status, "(api.max_view_cpu): divide the policy into several" in text) == (400, True)
