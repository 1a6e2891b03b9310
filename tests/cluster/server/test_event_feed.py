"""The buffer that streams of events are fed from: bounded, and a place in it for each listener."""

import asyncio
import datetime

import pytest

from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time, now_s, until
from wharf.cluster.server.events import EventFeed, EventSubscription, SubscriptionLost
from wharf.cluster.state.tables import NODE_POOLS, ONE_TIME_TOKENS
from wharf.contract.model.acl.tokens import OneTimeToken
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.node_pools import NodePool

EVER = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


async def write(server: OneServer, *names: str) -> int:
    index = await commit(
        server, *(NODE_POOLS.build_put(NodePool(name=name, create_index=WRITE_INDEX)) for name in names)
    )
    await server.server.follower.wait_until_applied(index)
    return index


def heard(listener: EventSubscription) -> list[str]:
    return [event.key for commit in listener.take(1_000) for event in commit.events]


async def a_feed(cluster: ACluster, **bounds: int) -> tuple[OneServer, EventFeed]:
    server = await cluster.a_server(leads=False)
    return server, EventFeed(server.server.follower, **bounds)


@in_virtual_time
async def test_so_many_commits_are_kept_as_told_and_the_newest_of_them() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster, max_commits=3)
        for name in "abcde":
            await write(server, name)

        assert heard(feed.subscribe()) == ["c", "d", "e"]


@in_virtual_time
async def test_large_commits_take_the_room_of_many_and_the_newest_stays_however_large() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster, max_changes=5)
        await write(server, "a", "b", "c")
        await write(server, *(f"n{number}" for number in range(9)))

        assert len(heard(feed.subscribe())) == 9


@in_virtual_time
async def test_what_is_no_topic_takes_no_room() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster, max_commits=1)
        await write(server, "a")
        token = OneTimeToken(secret_digest="x", accessor_id="y", expires_at=EVER, create_index=WRITE_INDEX)
        await server.server.follower.wait_until_applied(await commit(server, ONE_TIME_TOKENS.build_put(token)))

        assert heard(feed.subscribe()) == ["a"]


@in_virtual_time
async def test_a_listener_hears_each_commit_once() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster)
        listener = feed.subscribe()
        await write(server, "a")
        first = heard(listener)
        await write(server, "b")

        assert (first, heard(listener), heard(listener)) == (["a"], ["b"], [])


@in_virtual_time
async def test_a_listener_may_begin_at_an_index() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster)
        await write(server, "a")
        index = await write(server, "b")
        await write(server, "c")

        assert heard(feed.subscribe(since_index=index)) == ["b", "c"]


@in_virtual_time
async def test_one_that_begins_at_an_index_to_come_hears_nothing_earlier() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster)
        listener = feed.subscribe(since_index=server.replica.index + 2)
        await write(server, "a")
        await write(server, "b")

        assert heard(listener) == ["b"]


@in_virtual_time
async def test_while_somebody_listens_more_is_kept_and_a_new_listener_hears_no_more_than_before() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster, max_commits=2)
        slow = feed.subscribe()
        for name in "abcd":
            await write(server, name)

        assert heard(feed.subscribe()) == ["c", "d"]
        assert heard(slow) == ["a", "b", "c", "d"]


@in_virtual_time
async def test_a_listener_that_lags_too_far_is_cut_off() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster, max_commits=2, max_lag_commits=3)
        slow, quick = feed.subscribe(), feed.subscribe()
        for name in "abcd":
            await write(server, name)
            heard(quick)

        with pytest.raises(SubscriptionLost):
            slow.take(10)
        assert heard(quick) == []


@in_virtual_time
async def test_when_the_last_listener_has_gone_what_was_kept_for_it_goes_too() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster, max_commits=2)
        slow = feed.subscribe()
        for name in "abcd":
            await write(server, name)

        slow.end()
        await write(server, "e")

        assert feed.commit_count == 2


@in_virtual_time
async def test_waiting_ends_with_the_news_or_with_the_time() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster)
        listener = feed.subscribe()
        heard(listener)
        waiting = cluster.start(listener.wait(60.0), name="waits")
        await write(server, "a")
        await waiting
        soon_s = now_s()
        heard(listener)

        await listener.wait(60.0)

        assert now_s() - soon_s == pytest.approx(60.0)


@in_virtual_time
async def test_a_state_that_was_loaded_anew_cuts_everybody_off() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster)
        await write(server, "a")
        listener = feed.subscribe()

        feed.restart()

        with pytest.raises(SubscriptionLost):
            listener.take(10)
        await write(server, "b")
        assert heard(feed.subscribe()) == ["b"]


@in_virtual_time
async def test_a_closed_feed_wakes_and_cuts_off_whoever_waits() -> None:
    async with ACluster() as cluster:
        _, feed = await a_feed(cluster)
        listener = feed.subscribe()
        heard(listener)
        waiting = cluster.start(listener.wait(600.0), name="waits")
        await asyncio.sleep(0)

        feed.close()
        await until(waiting.done, what="the waiter is woken")

        with pytest.raises(SubscriptionLost):
            listener.take(10)


@in_virtual_time
async def test_what_a_commit_takes_away_is_told_as_it_stood() -> None:
    async with ACluster() as cluster:
        server, feed = await a_feed(cluster)
        await write(server, "a")
        listener = feed.subscribe()
        heard(listener)

        await server.server.follower.wait_until_applied(await commit(server, NODE_POOLS.build_delete("a")))

        ((event,),) = [commit.events for commit in listener.take(10)]
        assert (event.record.name, event.is_deleted) == ("a", True)
