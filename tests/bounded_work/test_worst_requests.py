"""No request holds the event loop for more than 20 ms of CPU time, or uses more CPU time than its limit.

The requests are generated from the endpoint table. `make test` sends some of them, `make fuzz` all.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pytest

from tests.bounded_work.large_records import iter_large_reads, store_large_records
from tests.bounded_work.measured_loop import run_measured_alone
from tests.bounded_work.probe import Findings, open_probe
from tests.bounded_work.worst_requests import BODY_ENDPOINTS, WorstRequest, iter_body_requests, iter_parameter_requests
from tests.fuzz.rounds import IS_FULL_RUN

pytestmark = pytest.mark.fuzz

PARAMETER_STEP = 1 if IS_FULL_RUN else 29
"""Every how many of the parameter requests are sent."""
BODY_STEP = 1 if IS_FULL_RUN else 211
"""Every how many of the bodies of an endpoint are sent."""


def select_bodies(requests: Iterator[WorstRequest], number: int) -> Iterator[WorstRequest]:
    """Return all bodies of an endpoint, or some, different ones for each endpoint."""
    cases = list(requests)
    return islice(cases, number % min(BODY_STEP, len(cases)), None, BODY_STEP)


ENDPOINT_NAMES = [endpoint.name for endpoint in BODY_ENDPOINTS]
ENDPOINT_GROUPS = [(name,) for name in ENDPOINT_NAMES] if IS_FULL_RUN else [tuple(ENDPOINT_NAMES)]


def require_no_problem(findings: Findings) -> None:
    print(f"\n{findings.worst}")
    assert findings.problems == ()


async def send_bodies(endpoint_names: Sequence[str]) -> Findings:
    async with open_probe() as probe:
        endpoints = [endpoint for endpoint in BODY_ENDPOINTS if endpoint.name in endpoint_names]
        for number, endpoint in enumerate(endpoints):
            for request in select_bodies(iter_body_requests(endpoint, probe.ids), number * 5):
                await probe.measure(request)
        return probe.findings


@pytest.mark.parametrize("endpoint_names", ENDPOINT_GROUPS, ids=lambda group: group[0])
def test_no_body_holds_the_event_loop(endpoint_names: Sequence[str]) -> None:
    require_no_problem(run_measured_alone(send_bodies, endpoint_names))


async def send_parameters() -> Findings:
    async with open_probe() as probe:
        for request in islice(iter_parameter_requests(probe.ids), 0, None, PARAMETER_STEP):
            await probe.measure(request)
        return probe.findings


def test_no_parameter_holds_the_event_loop() -> None:
    require_no_problem(run_measured_alone(send_parameters))


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


JOBS = ("groups", "tasks", "meta", "texts", "config", "actions")
LARGE_READ_STEP = 1 if IS_FULL_RUN else 5
"""Every how many of the reads of large records are sent."""


async def send_large_reads(job_ids: Sequence[str], versions: int) -> Findings:
    async with open_probe() as probe:
        ids = await store_large_records(probe.target.port, job_ids, versions=versions)
        for request in islice(iter_large_reads(ids), 0, None, LARGE_READ_STEP):
            cost = await probe.measure(request)
            assert cost.status in (200, 404), f"{request}: {cost}"
        return probe.findings


@pytest.mark.parametrize("job_ids", [(name,) for name in JOBS] if IS_FULL_RUN else [("groups", "texts")], ids=" ".join)
def test_no_read_of_a_large_record_holds_the_event_loop(job_ids: Sequence[str]) -> None:
    require_no_problem(run_measured_alone(send_large_reads, job_ids, versions=2))


def test_a_repeated_read_is_not_answered_from_a_cache() -> None:
    first, repeated = run_measured_alone(measure_a_read_twice)

    assert repeated > first / 3


async def measure_a_read_twice() -> tuple[float, float]:
    async with open_probe() as probe:
        ids = await store_large_records(probe.target.port, ("texts",), versions=1)
        request = WorstRequest("job.read", "a large job", "GET", f"/v1/job/{ids['job_id'][0]}")
        return (await probe.measure(request)).loop_cpu_s, (await probe.measure(request)).loop_cpu_s
