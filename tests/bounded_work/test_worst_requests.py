"""No request holds the event loop for more than 20 ms of CPU time, or uses more CPU time than its limit.

The requests are generated from the endpoint table. `make test` sends some of them, `make fuzz` all.
"""

import asyncio
import json
import socket
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, islice
from typing import Any

import pytest

from tests.attempts import require_cpu
from tests.bounded_work.accepted_bodies import (
    BUILDERS,
    INLINE,
    REFUSED_ENDPOINTS,
    get_largest_size,
    open_accepted_request,
)
from tests.bounded_work.large_records import (
    LIST_CPU_S,
    iter_large_reads,
    iter_large_streams,
    iter_large_writes,
    iter_small_writes,
    report_tasks,
    store_large_parents,
    store_large_records,
    store_many_allocations,
)
from tests.bounded_work.measured_loop import MeasuredLoop, importing_process, run_measured_alone
from tests.bounded_work.probe import MAX_HOLD_S, Cost, Findings, keep_best_attempts, open_probe
from tests.bounded_work.worst_requests import (
    BODY_ENDPOINTS,
    WorstRequest,
    iter_body_requests,
    iter_parameter_requests,
    iter_stream_requests,
)
from tests.fuzz.generated_requests import HOST
from tests.fuzz.rounds import IS_FULL_RUN
from tests.fuzz.server_records import BOOTSTRAP, JsonClient
from tests.kit.work import an_id
from wharf.cluster.api.requests.parameters import MAX_PARAMETERS
from wharf.contract.model.body_limits import MAX_INLINE_BODY_BYTES
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, Endpoint

pytestmark = pytest.mark.fuzz

PARAMETER_STEP = 1 if IS_FULL_RUN else 29
"""One of this number of parameter requests is sent."""
STREAM_STEP = 1 if IS_FULL_RUN else 5
"""One of this number of parameter requests of streams, files, profiles and commands is sent."""
BODY_STEP = 1 if IS_FULL_RUN else 211
"""One of this number of bodies of an endpoint is sent."""
SMALL_BODY_STEP = 1 if IS_FULL_RUN else 3
"""One of this number of bodies of endpoints with a small limit is sent."""
SMALL_ENDPOINTS = [endpoint for endpoint in BODY_ENDPOINTS if 0 < endpoint.max_body_bytes <= MAX_INLINE_BODY_BYTES]
"""Endpoints whose limit is so small that all bodies are decoded on the event loop."""


SMALL_CHUNK_CONNECTIONS = 20
"""Connections that send a body in small chunks at once."""

NO_IDS: defaultdict[str, Sequence[str]] = defaultdict(lambda: (an_id(1),))
"""An id for each part of a path, for requests that are not sent."""


@pytest.fixture(scope="module", autouse=True)
def _shared_process() -> Iterator[None]:
    with importing_process():
        yield


def select_bodies(requests: Iterator[WorstRequest], number: int) -> Iterator[WorstRequest]:
    """Return all bodies of an endpoint, or some, different ones for each endpoint."""
    cases = list(requests)
    return islice(cases, number % min(BODY_STEP, len(cases)), None, BODY_STEP)


ENDPOINT_NAMES = [endpoint.name for endpoint in BODY_ENDPOINTS if endpoint not in SMALL_ENDPOINTS]
BODIES_PER_PROCESS = 60
"""The process stores the bodies, and a fork takes 2 to 5 ms for each 100 MB of its memory."""


def list_endpoint_groups() -> list[tuple[tuple[str, ...], int]]:
    """Return the endpoints of each process, and the number of their first body."""
    if not IS_FULL_RUN:
        return [(tuple(ENDPOINT_NAMES), 0)]
    counts = {name: len(list(iter_body_requests(ENDPOINT_BY_NAME[name], NO_IDS))) for name in ENDPOINT_NAMES}
    return [((name,), first) for name, count in counts.items() for first in range(0, count, BODIES_PER_PROCESS)]


def require_no_problem(findings: Findings) -> None:
    print(f"\n{findings.worst}")
    assert findings.problems == ()


async def send_bodies(endpoint_names: Sequence[str], first: int) -> Findings:
    async with open_probe() as probe:
        for number, name in enumerate(endpoint_names):
            requests = select_bodies(iter_body_requests(ENDPOINT_BY_NAME[name], probe.ids), number * 5)
            for request in islice(requests, first, first + BODIES_PER_PROCESS):
                await probe.measure(request)
        return probe.findings


@pytest.mark.parametrize(
    ("endpoint_names", "first"), list_endpoint_groups(), ids=lambda value: value if isinstance(value, int) else value[0]
)
def test_no_body_holds_the_event_loop(endpoint_names: Sequence[str], first: int) -> None:
    require_no_problem(run_measured_alone(send_bodies, endpoint_names, first))


DENSE_CONDITION = " or ".join(["a==b"] * 500)
"""A condition with as many terms as fit."""


UNKNOWN_REFERENCES = "".join(f"${{steps.stop{n}.a}}" for n in range(6_000))
"""A text with references to steps whose names are similar to those that exist."""


def build_bodies_of_attacks() -> dict[str, dict[str, Any]]:
    """Return the fields of jobs that once held the event loop for seconds."""
    group = {"Name": "group", "Tasks": [{"Name": "server", "Driver": "mock"}]}
    return {
        "1,000,000 integers in place of texts": {"Datacenters": [1] * 1_000_000, "TaskGroups": [group]},
        "700,000 wrong Meta values": {"Meta": {f"{n}": 1 for n in range(700_000)}, "TaskGroups": [group]},
        "14 conditions of 4,000 characters": {"TaskGroups": [{**group, "If": DENSE_CONDITION} for _ in range(14)]},
        "16 escaped names of conditions": {"TaskGroups": [{**group, "I\\u0066": DENSE_CONDITION} for _ in range(16)]},
        "references to 6,000 unknown steps": {
            "TaskGroups": [
                {
                    **group,
                    "Name": f"step{n}",
                    "MayFail": True,
                    "Tasks": [{"Name": "server", "Driver": "mock", "Env": {"A": UNKNOWN_REFERENCES}}],
                }
                for n in range(60)
            ]
        },
        "500 steps with unknown needs": {
            "TaskGroups": [
                {**group, "Name": f"step{n}", "Depends": [{"On": f"stop{n}"}, {"On": f"stepp{n}"}]} for n in range(500)
            ]
        },
        "500 steps in a circle": {
            "TaskGroups": [
                {
                    **group,
                    "Name": f"step{n}",
                    "Depends": [{"On": f"step{(n + 1) % 500}"}, {"On": f"step{(n + 2) % 500}"}],
                }
                for n in range(500)
            ]
        },
        "10,000 groups": {"TaskGroups": [{**group, "Name": f"g{n}"} for n in range(10_000)]},
        "200,000 Meta entries": {"Meta": {f"k{n}": "x" for n in range(200_000)}, "TaskGroups": [group]},
    }


async def send_bodies_of_attacks() -> Findings:
    async with open_probe() as probe:
        for name, fields in build_bodies_of_attacks().items():
            body = json.dumps({"Job": {"ID": "attack", "Type": "batch", **fields}}, separators=(",", ":")).encode()
            body = body.replace(b"\\\\u", b"\\u")  # An escape in a name is a part of the attack.
            for target in ("/v1/jobs", "/v1/validate/job"):
                cost = await probe.measure(
                    WorstRequest("job", f"{name} to {target}", "PUT", target, partial(bytes, body))
                )
                assert cost.status in (200, 400), cost  # Only problems of decoding refuse a validation.
        return probe.findings


JOB_FILES_OF_ATTACKS = {
    "a loop": "meta = { a = [for x in range(1000) : [for y in range(1000) : y]] }\n",
    "copies": 'vault {\n policies = ["' + "x" * 100_000 + '"]\n}\n' + "task t {\n}\n" * 50_000,
    "blocks": "group g {\ntask t {\nconfig {\n" + "a {}\n" * 195_000 + "}\n}\n}\n",
    "errors": "".join(f"x{n} = 1\n" for n in range(80_000)),
}
"""Bodies of jobs in files that take long to evaluate, have a huge result, or have many errors."""


async def send_job_files_of_attacks() -> Findings:
    async with open_probe() as probe:
        for name, text in JOB_FILES_OF_ATTACKS.items():
            body = json.dumps({"JobHCL": f'job "a" {{\n{text}}}\n'}).encode()
            cost = await probe.measure(WorstRequest("job.parse", name, "PUT", "/v1/jobs/parse", partial(bytes, body)))
            assert cost.status == 400, cost
        return probe.findings


def test_the_job_files_of_attacks_hold_no_event_loop() -> None:
    require_no_problem(run_measured_alone(send_job_files_of_attacks))


def test_the_bodies_of_known_attacks_hold_no_event_loop() -> None:
    require_no_problem(run_measured_alone(send_bodies_of_attacks))


def test_each_endpoint_with_a_body_has_an_accepted_body_or_a_reason() -> None:
    names = {endpoint.name for endpoint in BODY_ENDPOINTS}

    assert BUILDERS.keys() | REFUSED_ENDPOINTS.keys() == names
    assert BUILDERS.keys() & REFUSED_ENDPOINTS.keys() == set()


ACCEPTING_ENDPOINTS = [endpoint.name for endpoint in BODY_ENDPOINTS if endpoint.name in BUILDERS]
ACCEPTING_GROUPS = [ACCEPTING_ENDPOINTS[first : first + 13] for first in range(0, len(ACCEPTING_ENDPOINTS), 13)]
"""A process gets so few bodies because it stores them: a fork takes 2 to 5 ms for each 100 MB of its memory."""


async def send_accepted_bodies(names: Sequence[str]) -> Findings:
    async with open_probe() as probe:
        for endpoint in (ENDPOINT_BY_NAME[name] for name in names):
            largest = get_largest_size(endpoint)
            for size in (INLINE, largest):
                cost = await probe.measure_fresh(partial(open_accepted_request, probe, endpoint, size))
                assert cost.status in (200, 204), f"{endpoint.name}, {size.name}: {cost}"
                if size is largest:
                    assert cost.body_bytes > size.max_bytes * 0.99, f"{endpoint.name}: {cost}"
        return probe.findings


@pytest.mark.parametrize("names", ACCEPTING_GROUPS, ids=lambda names: f"from {names[0]}")
def test_no_accepted_body_of_the_largest_size_holds_the_event_loop(names: Sequence[str]) -> None:
    require_no_problem(run_measured_alone(send_accepted_bodies, names))


async def send_small_bodies() -> Findings:
    async with open_probe() as probe:
        requests = [each for endpoint in SMALL_ENDPOINTS for each in iter_body_requests(endpoint, probe.ids)]
        for request in islice(requests, 0, None, SMALL_BODY_STEP):
            cost = await probe.measure(request)
            assert (cost.status == 413) == (request.name == "too large"), f"{request}: {cost}"
        return probe.findings


def test_no_body_of_an_endpoint_with_a_small_limit_holds_the_event_loop() -> None:
    require_no_problem(run_measured_alone(send_small_bodies))


@pytest.mark.parametrize("endpoint", SMALL_ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_the_bodies_of_an_endpoint_are_as_large_as_its_limit_permits(endpoint: Endpoint) -> None:
    requests = [each for each in iter_body_requests(endpoint, NO_IDS) if each.name != "too large"]

    sizes = [len(request.build_body()) for request in requests]

    assert max(sizes) <= endpoint.max_body_bytes
    assert sum(size > endpoint.max_body_bytes * 0.9 for size in sizes) >= 5


async def send_parameters() -> Findings:
    async with open_probe() as probe:
        for request in islice(iter_parameter_requests(probe.ids), 0, None, PARAMETER_STEP):
            await probe.measure(request)
        return probe.findings


def test_no_parameter_holds_the_event_loop() -> None:
    require_no_problem(run_measured_alone(send_parameters))


async def send_stream_parameters() -> Findings:
    async with open_probe() as probe:
        for request in islice(iter_stream_requests(probe.ids), 0, None, STREAM_STEP):
            await probe.measure(request)
        return probe.findings


def test_no_parameter_of_a_stream_file_profile_or_command_holds_the_event_loop() -> None:
    require_no_problem(run_measured_alone(send_stream_parameters))


def send_chunks_and_read(port: int) -> bytes:
    """Send bodies in chunks of one byte over several connections in one moment, and then a read. Return its status line."""
    head = b"PUT /v1/validate/job HTTP/1.1\r\nHost: x\r\nX-Cluster-Token: %b\r\n" % BOOTSTRAP.encode()
    with ExitStack() as stack:
        for _ in range(SMALL_CHUNK_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((HOST, port), timeout=60))
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            connection.setblocking(False)
            connection.send(b"1\r\n \r\n" * 40_000)  # As many as the buffers of the sockets take.
        reading = stack.enter_context(socket.create_connection((HOST, port), timeout=60))
        reading.sendall(b"GET /v1/regions HTTP/1.1\r\nHost: x\r\n\r\n")
        return stack.enter_context(reading.makefile("rb")).readline()


async def send_small_chunks() -> tuple[bytes, float]:
    """Return the status line of a read beside small chunks, and the longest hold of the loop."""
    async with open_probe() as probe:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuredLoop)
        loop.begin()
        status_line = await asyncio.to_thread(send_chunks_and_read, probe.target.port)
        return status_line, loop.measurement.longest_hold_s


def test_small_chunks_of_bodies_hold_no_event_loop() -> None:
    status_line, hold_s = run_measured_alone(send_small_chunks)

    assert status_line == b"HTTP/1.1 200 OK\r\n"
    require_cpu(hold_s, MAX_HOLD_S, "a callback")


async def write_beside_event_streams() -> Cost:
    """Return the cost of a write while event streams with as many topics as possible receive its events."""
    async with open_probe() as probe:
        topics = "&".join(f"topic=Job:{number}" for number in range(MAX_PARAMETERS - 1))
        requests = [
            b"GET /v1/event/stream?%b HTTP/1.1\r\nHost: x\r\nX-Cluster-Token: %b\r\n\r\n"
            % (query.encode(), BOOTSTRAP.encode())
            for query in (topics, topics.replace("Job:", "T"), topics + "&topic=Job:written")
        ]
        with ExitStack() as stack:
            for request in requests * 3:
                connection = stack.enter_context(socket.create_connection((HOST, probe.target.port), timeout=60))
                connection.sendall(request)
                status_line = await asyncio.to_thread(stack.enter_context(connection.makefile("rb")).readline)
                assert status_line == b"HTTP/1.1 200 OK\r\n"
            job = {"ID": "written", "Type": "batch", **large_valid_jobs()["1,000 groups"]}
            body = json.dumps({"Job": job}).encode()
            return await probe.measure(WorstRequest("job", "beside streams", "PUT", "/v1/jobs", partial(bytes, body)))


def test_no_event_stream_with_many_topics_holds_the_event_loop_at_a_write() -> None:
    cost = run_measured_alone(write_beside_event_streams)

    assert (cost.status, cost.is_allowed) == (200, True), cost


def large_valid_jobs() -> dict[str, dict[str, Any]]:
    """Return valid jobs at the limits of bodies: many groups, many Meta entries, long texts."""
    tasks = [{"Name": "server", "Driver": "mock", "Config": {"run_for": "1h"}, "Resources": {"CPU": 1, "MemoryMB": 10}}]
    meta = {f"key{number}": "x" * 20 for number in range(4_500)}
    groups = [{"Name": f"group{number}", "Tasks": tasks} for number in range(20)]
    template = {"EmbeddedTmpl": "x" * 1_900_000, "DestPath": "local/file", "ChangeMode": "restart"}
    return {
        "1,000 groups": {"TaskGroups": [{"Name": f"group{number}", "Tasks": tasks} for number in range(1_000)]},
        "90,000 Meta entries": {"TaskGroups": [{**group, "Meta": meta} for group in groups[:19]], "Meta": meta},
        "a text of 2 MB": {"TaskGroups": [{"Name": "group", "Tasks": [{**tasks[0], "Templates": [template]}]}]},
    }


async def send_large_valid_job(name: str) -> Findings:
    job = {"ID": "large", "Type": "batch", **large_valid_jobs()[name]}
    async with open_probe() as probe:
        for target, method in (("/v1/validate/job", "PUT"), ("/v1/job/large/plan", "PUT"), ("/v1/jobs", "PUT")):
            data = json.dumps({"Job": job}).encode()
            cost = await probe.measure(WorstRequest("job", f"{name} to {target}", method, target, partial(bytes, data)))
            assert cost.status == 200, cost
        return probe.findings


@pytest.mark.parametrize("name", large_valid_jobs() if IS_FULL_RUN else ("1,000 groups", "90,000 Meta entries"))
def test_a_large_valid_job_holds_no_event_loop(name: str) -> None:
    require_no_problem(run_measured_alone(send_large_valid_job, name))


MIN_STREAMED_BYTES = 5_000
"""A stream with fewer bytes has not sent the stored records."""
JOBS = ("groups", "tasks", "meta", "texts", "config", "actions")
LARGE_READ_STEP = 1 if IS_FULL_RUN else 5
"""One of this number of reads of large records is sent."""


async def send_large_reads(job_ids: Sequence[str], versions: int) -> Findings:
    async with open_probe() as probe:
        ids = await store_large_records(probe.target.port, job_ids, versions=versions)
        for request in islice(iter_large_reads(ids), 0, None, LARGE_READ_STEP):
            cost = await probe.measure(request)
            assert cost.status == 200, f"{request}: {cost}"
        return probe.findings


@pytest.mark.parametrize("job_ids", [(name,) for name in JOBS] if IS_FULL_RUN else [("groups", "texts")], ids=" ".join)
def test_no_read_of_a_large_record_holds_the_event_loop(job_ids: Sequence[str]) -> None:
    require_no_problem(run_measured_alone(send_large_reads, job_ids, versions=2))


async def stream_large_records(job_ids: Sequence[str]) -> Findings:
    async with open_probe() as probe:
        await store_large_records(probe.target.port, job_ids, versions=2)
        for request in iter_large_streams():
            cost = await probe.measure(request)
            assert cost.status == 200, f"{request}: {cost}"
            assert int(cost.text.split()[0].replace(",", "")) > MIN_STREAMED_BYTES, f"{request}: {cost}"
        return probe.findings


@pytest.mark.parametrize("job_ids", [(name,) for name in JOBS] if IS_FULL_RUN else [("meta", "texts")], ids=" ".join)
def test_no_event_stream_of_large_records_holds_the_event_loop(job_ids: Sequence[str]) -> None:
    require_no_problem(run_measured_alone(stream_large_records, job_ids))


async def send_lists_with_a_heavy_item() -> Findings:
    async with open_probe() as probe:
        ids = await store_large_records(probe.target.port, ("tasks",), versions=1)
        client = JsonClient(probe.target.port, BOOTSTRAP)
        (allocation_id,) = ids["alloc_id"]

        await store_many_allocations(client)
        exit_codes = count(2)

        async def fill_cache_and_change() -> None:
            await client.send("GET", "/v1/allocations")
            await report_tasks(client, allocation_id, exit_code=next(exit_codes))
            assert list(probe.target.server.api.reads.list_encoder.cached_lists._lists)

        for name, query, encoding, prepare in (
            ("plain", "", "", None),
            ("indented", "pretty=true", "", None),
            ("compressed, with resources", "resources=true", "gzip", None),
            ("plain, in a cached list", "", "", fill_cache_and_change),
            ("compressed, in a cached list", "", "gzip", fill_cache_and_change),
        ):
            request = WorstRequest(
                "allocation.list",
                name,
                "GET",
                f"/v1/allocations?{query}",
                accept_encoding=encoding,
                cpu_limit_s=LIST_CPU_S,
            )
            cost = await probe.measure(request, prepare)
            assert cost.status == 200, f"{request}: {cost}"
        return probe.findings


def test_no_list_with_a_heavy_item_holds_the_event_loop() -> None:
    require_no_problem(run_measured_alone(send_lists_with_a_heavy_item))


async def send_small_writes(job_id: str) -> Findings:
    async with open_probe() as probe:
        await store_large_records(probe.target.port, (job_id,), versions=2)
        for id in (job_id, *await store_large_parents(probe.target.port, job_id)):
            for request in iter_small_writes(id):
                cost = await probe.measure(request)
                # The deployment of the job with many groups does not end, because no node can run it.
                assert cost.status == 200 or "active deployment" in cost.text, f"{request}: {cost}"
        return probe.findings


@pytest.mark.parametrize("job_id", JOBS if IS_FULL_RUN else ("groups",))
def test_no_small_write_to_a_large_job_holds_the_event_loop(job_id: str) -> None:
    require_no_problem(run_measured_alone(send_small_writes, job_id))


async def send_large_writes() -> list[tuple[str, Cost]]:
    async with open_probe() as probe:
        ids = await store_large_records(probe.target.port, ("groups", "actions"), versions=2)
        refused = []
        for request in iter_large_writes(ids):
            cost = await probe.measure_once(request)
            if cost.status not in (200, 204):
                refused.append(f"{request}: {cost}")
        assert refused == [], refused
        return [(str(request), cost) for request, cost in probe.costs]


def test_no_write_to_a_large_record_holds_the_event_loop() -> None:
    costs = keep_best_attempts(lambda: run_measured_alone(send_large_writes))

    assert [f"{request}: {cost}" for request, cost in costs if cost.is_problem] == []


def test_a_repeated_read_is_not_answered_from_a_cache() -> None:
    first, repeated = run_measured_alone(measure_a_read_twice)

    assert repeated > first / 3


async def measure_a_read_twice() -> tuple[float, float]:
    async with open_probe() as probe:
        ids = await store_large_records(probe.target.port, ("texts",), versions=1)
        request = WorstRequest("job.read", "a large job", "GET", f"/v1/job/{ids['job_id'][0]}")
        return (await probe.measure(request)).loop_cpu_s, (await probe.measure(request)).loop_cpu_s
