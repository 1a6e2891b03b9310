"""A server that stops while thousands of queries wait: it replies to them first and ends within seconds."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.agent.processes import RunningAgent, running
from tests.reliability.callers import (
    FILES,
    Waiter,
    allow_sockets,
    open_waiter,
    read,
    run_in_groups,
    wait_until_all_block,
)

ENDS_WITHIN_S = 60.0
"""Limit against hanging. The duration is printed; docs/reliability.md lists measured values."""


def stop_with_waiters(folder: Path, count: int) -> None:
    allow_sockets(FILES)
    with running(folder, "dev", "--port", "0") as agent:
        agent.wait_ready()
        asyncio.run(_scenario(agent, count))
        assert agent.wait_end(within_s=ENDS_WITHIN_S) == 0


async def _scenario(agent: RunningAgent, count: int) -> None:
    port = int(agent.address.rpartition(":")[2])
    state = await read(port, "/v1/operator/state")

    async def start_waiting(number: int) -> Waiter:
        # Half of them query the same record, the others one record each.
        name = "namespaces" if number % 2 else f"job/absent-{number}/allocations"
        return await open_waiter(port, f"/v1/{name}?index={state['Index'] + 1_000_000}&wait=10m&stale")

    waiters = await run_in_groups(count, start_waiting)
    await wait_until_all_block(port, count)

    stopped_s = time.monotonic()
    agent.signal(signal.SIGTERM)
    answers = await asyncio.wait_for(asyncio.gather(*(waiter.ended for waiter in waiters)), ENDS_WITHIN_S)
    duration_s = max(waiter.last_data_s for waiter in waiters) - stopped_s
    await asyncio.to_thread(agent.wait_end, ENDS_WITHIN_S)
    print(
        f"\n{count} waiters: all answered {duration_s:.2f} s after the signal, ended after {time.monotonic() - stopped_s:.2f} s"
    )

    assert [answer.status for answer in answers if not answer.is_whole or answer.status != 200] == []


def test_blocking_queries_are_answered_before_a_server_stops(tmp_path: Path) -> None:
    stop_with_waiters(tmp_path / "a", 1_000)


@pytest.mark.faults
def test_9500_blocking_queries_are_answered_before_a_server_stops(tmp_path: Path) -> None:
    stop_with_waiters(tmp_path / "a", 9_500)
