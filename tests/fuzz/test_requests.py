"""Valid, invalid, truncated and slow requests over real sockets: none causes a server error, no refused
request changes the state, and none leaks resources."""

import asyncio

import pytest

from tests.fuzz.ammunition import ITEM, NODE_SECRET
from tests.fuzz.rounds import IS_WHOLE_PROOF, run
from tests.fuzz.target import a_target, state_of
from wharf.contract.wire.endpoint_table import ENDPOINTS

pytestmark = pytest.mark.fuzz

SHOTS = 10_000 if IS_WHOLE_PROOF else 3_000
PARTS = 10 if IS_WHOLE_PROOF else 1


@pytest.mark.parametrize("part", range(PARTS))
def test_random_requests_cause_no_server_error_no_leak_and_no_change_when_refused(part: int) -> None:
    async def story() -> None:
        async with a_target() as target:
            held, tasks = target.held, len(asyncio.all_tasks())

            came = await run(target, count=SHOTS, first=part * SHOTS)

            print(f"\n{SHOTS} requests: {dict(sorted(came.statuses.items()))}")
            assert came.failures == [], came.told(target.port)
            assert target.held == held
            assert len(asyncio.all_tasks()) <= tasks + 5
            assert {row.name for row in ENDPOINTS} - came.rows == set()
            assert state_of(target.one.server) == await target.state_from_the_log()
            assert target.log.warnings == [], "any client could fill the log"
            said = "\n".join(target.log.lines)
            secrets = {ITEM, NODE_SECRET, *(token for token in target.ammunition.tokens if len(token) == 36)}
            assert [secret for secret in secrets if secret in said] == []

    asyncio.run(story())
