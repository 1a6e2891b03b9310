"""Probes of a server while its reply is awaited: a frozen server is left, a slow one is waited for."""

import asyncio

import pytest

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.contract.client import Unreachable
from wharf.contract.client.liveness import LivenessProbe, end_if_silent
from wharf.world import SimulatedWorld


class ProbedServer:
    """A server that answers probes until `frozen_from_s`."""

    def __init__(self, frozen_from_s: float) -> None:
        self.frozen_from_s = frozen_from_s
        self.probe_count = 0

    async def answer(self) -> None:
        self.probe_count += 1
        if now_s() >= self.frozen_from_s:
            await asyncio.Event().wait()


def make_world() -> SimulatedWorld:
    return SimulatedWorld(1, asyncio.get_running_loop().time)


@in_virtual_time
async def test_a_request_at_a_frozen_server_ends_within_three_seconds() -> None:
    server = ProbedServer(frozen_from_s=0.0)

    with pytest.raises(Unreachable, match=r"10\.0\.0\.1 does not reply, not even to a probe") as caught:
        async with end_if_silent(make_world(), server.answer, "10.0.0.1"):
            await asyncio.Event().wait()

    assert caught.value.is_sent
    assert now_s() < 3


@in_virtual_time
async def test_a_slow_reply_of_a_server_that_answers_probes_is_waited_for() -> None:
    server = ProbedServer(frozen_from_s=1000.0)

    async with end_if_silent(make_world(), server.answer, "10.0.0.1"):
        await pass_time(60)

    assert now_s() == 60
    assert server.probe_count == 12


@in_virtual_time
async def test_a_server_that_freezes_during_a_long_request_is_left_within_ten_seconds() -> None:
    server = ProbedServer(frozen_from_s=60.0)

    with pytest.raises(Unreachable):
        async with end_if_silent(make_world(), server.answer, "10.0.0.1"):
            await asyncio.Event().wait()

    assert 60 < now_s() < 70


@in_virtual_time
async def test_a_quick_reply_costs_no_probe() -> None:
    server = ProbedServer(frozen_from_s=0.0)

    async with end_if_silent(make_world(), server.answer, "10.0.0.1"):
        await pass_time(0.3)
    await pass_time(10)

    assert server.probe_count == 0


@in_virtual_time
async def test_a_timeout_inside_the_block_stays_a_timeout() -> None:
    async def wait_one_second() -> None:
        async with end_if_silent(make_world(), ProbedServer(frozen_from_s=1000.0).answer, "10.0.0.1"):
            async with asyncio.timeout(1):
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await wait_one_second()


def test_a_request_that_is_closed_after_its_event_loop_ended_cancels_its_probe() -> None:
    """A simulated cluster ends like this: its coroutines are closed while no event loop runs."""
    loop = asyncio.new_event_loop()
    world = SimulatedWorld(1, loop.time)
    is_probing = asyncio.Event()

    async def answer() -> None:
        is_probing.set()
        await asyncio.Event().wait()

    async def send_request() -> None:
        async with end_if_silent(world, answer, "10.0.0.1"):
            await asyncio.Event().wait()

    request = send_request()
    task = loop.create_task(request)
    loop.run_until_complete(is_probing.wait())
    probes = [each for each in asyncio.all_tasks(loop) if each is not task]
    request.close()

    assert [each.cancelling() for each in probes] == [1]
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, *probes, return_exceptions=True))
    loop.close()


async def wait_for_reply(probe: LivenessProbe, wait_s: float) -> bool:
    """Wait for a reply that arrives after `wait_s`. Return whether the server counts as silent before."""
    try:
        async with probe.end_if_silent():
            await pass_time(wait_s)
    except Unreachable:
        return True
    probe.on_reply()
    return False


@in_virtual_time
async def test_calls_that_wait_for_the_same_slow_server_share_its_probes() -> None:
    server = ProbedServer(frozen_from_s=1000.0)
    probe = LivenessProbe(make_world(), server.answer, "10.0.0.1")

    silent = await asyncio.gather(*(wait_for_reply(probe, 4.0) for _ in range(200)))

    assert not any(silent)
    assert server.probe_count == 1


@in_virtual_time
async def test_all_calls_at_a_frozen_server_end_within_three_seconds() -> None:
    probe = LivenessProbe(make_world(), ProbedServer(frozen_from_s=0.0).answer, "10.0.0.1")

    silent = await asyncio.gather(*(wait_for_reply(probe, 100.0) for _ in range(20)))

    assert all(silent)
    assert now_s() < 3


@in_virtual_time
async def test_a_server_that_replies_to_other_calls_is_not_silent() -> None:
    probe = LivenessProbe(make_world(), ProbedServer(frozen_from_s=0.0).answer, "10.0.0.1")

    async def call_often() -> bool:
        return any([await wait_for_reply(probe, 0.3) for _ in range(60)])

    silent = list(await asyncio.gather(wait_for_reply(probe, 15.0), call_often()))

    assert silent == [False, False]


@in_virtual_time
async def test_a_server_that_freezes_is_noticed_by_the_next_call_within_three_seconds() -> None:
    probe = LivenessProbe(make_world(), ProbedServer(frozen_from_s=10.0).answer, "10.0.0.1")
    earlier = asyncio.create_task(wait_for_reply(probe, 1000.0))
    await pass_time(10.5)
    began_s = now_s()

    assert await wait_for_reply(probe, 100.0)
    assert now_s() - began_s < 3
    assert await earlier


@in_virtual_time
async def test_quick_replies_cost_no_shared_probe() -> None:
    server = ProbedServer(frozen_from_s=0.0)
    probe = LivenessProbe(make_world(), server.answer, "10.0.0.1")

    assert [await wait_for_reply(probe, 0.3) for _ in range(5)] == [False] * 5
    await pass_time(10)

    assert server.probe_count == 0


class FailingServer(ProbedServer):
    """A server whose first probe fails with an error that is no silence."""

    async def answer(self) -> None:
        await super().answer()
        if self.probe_count == 1:
            raise RuntimeError("a bug")


@in_virtual_time
async def test_an_unexpected_error_of_a_probe_is_logged_and_probing_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    server = FailingServer(frozen_from_s=5.0)

    with pytest.raises(Unreachable):
        async with end_if_silent(make_world(), server.answer, "10.0.0.1"):
            await asyncio.Event().wait()

    assert [record.message for record in caplog.records] == ["probing a server failed: unexpected error"]
    assert "a bug" in caplog.text
    assert (server.probe_count, now_s() < 9) == (2, True)


@in_virtual_time
async def test_an_unexpected_error_of_a_shared_probe_is_logged_and_probing_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = FailingServer(frozen_from_s=5.0)
    probe = LivenessProbe(make_world(), server.answer, "10.0.0.1")

    with pytest.raises(Unreachable):
        async with probe.end_if_silent():
            await asyncio.Event().wait()

    assert [record.message for record in caplog.records] == ["probing a server failed: unexpected error"]
    assert (server.probe_count, now_s() < 9) == (2, True)
