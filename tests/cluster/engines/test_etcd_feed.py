"""How long the feed of etcd tries to reach etcd again. No etcd is needed: the clock of the test passes the time."""

import asyncio

import pytest

from wharf.cluster.engines.etcd.feed import EtcdFeed
from wharf.cluster.engines.etcd.session import EtcdSession
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import LogUnavailable
from wharf.world import RealWorld


class SteppedWorld(RealWorld):
    """A world whose clock advances by a step each time it is read."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self._step_s = step_s

    def monotonic_s(self) -> float:
        self.now_s += self._step_s
        return self.now_s


def make_session(world: SteppedWorld, request_timeout_s: float) -> EtcdSession:
    # Port 1 is reserved: nobody listens on it.
    settings = EtcdSettings(("127.0.0.1:1",), dial_timeout_s=0.0, request_timeout_s=request_timeout_s)
    return EtcdSession(settings, world)


async def test_the_feed_of_a_closed_engine_ends_although_no_time_passed() -> None:
    feed = EtcdFeed(make_session(SteppedWorld(0.0), 600.0), after=0)

    with pytest.raises(LogUnavailable, match="is closed"):
        async with asyncio.timeout(10):
            await anext(feed)


@pytest.mark.parametrize("request_timeout_s", [1.0, 15.0])
async def test_the_feed_tries_to_reach_etcd_for_the_request_timeout(request_timeout_s: float) -> None:
    world = SteppedWorld(1.0)
    session = make_session(world, request_timeout_s)
    session.client.open()
    started_s = world.now_s

    with pytest.raises(LogUnavailable, match="cannot be reached"):
        async with asyncio.timeout(30):
            await anext(EtcdFeed(session, after=0))

    assert request_timeout_s <= world.now_s - started_s < request_timeout_s + 12
    await session.client.close()


async def test_the_feed_of_an_engine_that_is_closed_while_it_waits_ends() -> None:
    session = make_session(SteppedWorld(0.001), 600.0)
    session.client.open()
    waiting = asyncio.ensure_future(anext(EtcdFeed(session, after=0)))
    await asyncio.sleep(0)  # It starts to dial.
    await session.client.close()

    with pytest.raises(LogUnavailable, match="is closed"):
        async with asyncio.timeout(10):
            await waiting
