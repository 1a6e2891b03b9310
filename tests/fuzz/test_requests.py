"""Valid, invalid, truncated and slow requests over real sockets: none causes a server error, no refused
request changes the state, and none leaks resources."""

import asyncio

import pytest

from tests.bounded_work.measured_loop import run_measured
from tests.fuzz.rounds import FULL_REQUEST_COUNT, IS_FULL_RUN, run
from tests.fuzz.server_records import ITEM, NODE_SECRET
from tests.fuzz.target import open_target, read_state
from wharf.agent.forked_requests import ForkedRequestWorker
from wharf.contract.wire.endpoint_table import ENDPOINTS

pytestmark = pytest.mark.fuzz

REQUEST_COUNT = 10_000 if IS_FULL_RUN else 3_000
"""Requests to one server."""
PARTS = max(1, FULL_REQUEST_COUNT // REQUEST_COUNT) if IS_FULL_RUN else 1


@pytest.mark.parametrize("part", range(PARTS))
def test_random_requests_cause_no_server_error_no_leak_and_no_change_when_refused(part: int) -> None:
    async def scenario() -> None:
        async with open_target(make_worker=ForkedRequestWorker) as target:
            resources_before, tasks = target.held_resources, len(asyncio.all_tasks())

            result = await run(target, count=REQUEST_COUNT, first=part * REQUEST_COUNT)

            print(f"\n{REQUEST_COUNT} requests: {dict(sorted(result.statuses.items()))}; {result.describe_costs()}")
            assert result.failures == [], result.describe(target.port)
            assert target.held_resources == resources_before
            assert len(asyncio.all_tasks()) <= tasks + 5
            assert {row.name for row in ENDPOINTS} - result.rows == set()
            assert read_state(target.server.server) == await target.load_state_from_log()
            assert target.log.warnings == [], "any client could fill the log"
            log_text = "\n".join(target.log.lines)
            secrets = {ITEM, NODE_SECRET, *(token for token in target.material.tokens if len(token) == 36)}
            assert [secret for secret in secrets if secret in log_text] == []

    run_measured(scenario)
