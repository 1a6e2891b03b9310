"""The event feed: a limited buffer of commits, and the position of each subscription."""

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


async def write_namespaces(server: OneServer, *names: str) -> int:
    index = await commit(
        server, *(NODE_POOLS.build_put(NodePool(name=name, create_index=WRITE_INDEX)) for name in names)
    )
    await server.server.follower.wait_until_applied(index)
    return index


def list_received_names(listener: EventSubscription) -> list[str]:
    return [event.key for commit in listener.take(1_000) for event in commit.events]


async def start_feed(cluster: ACluster, **bounds: int) -> tuple[OneServer, EventFeed]:
    server = await cluster.a_server(leads=False)
    return server, EventFeed(server.world, server.server.follower, **bounds)


@in_virtual_time
async def test_the_configured_number_of_newest_commits_is_buffered() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster, max_commits=3)
        for name in "abcde":
            await write_namespaces(server, name)

        assert list_received_names(feed.subscribe()) == ["c", "d", "e"]


@in_virtual_time
async def test_large_commits_count_as_several_and_the_newest_is_always_buffered() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster, max_changes=5)
        await write_namespaces(server, "a", "b", "c")
        await write_namespaces(server, *(f"n{number}" for number in range(9)))

        assert len(list_received_names(feed.subscribe())) == 9


@in_virtual_time
async def test_records_without_a_topic_take_no_space() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster, max_commits=1)
        await write_namespaces(server, "a")
        token = OneTimeToken(secret_digest="x", accessor_id="y", expires_at=EVER, create_index=WRITE_INDEX)
        await server.server.follower.wait_until_applied(await commit(server, ONE_TIME_TOKENS.build_put(token)))

        assert list_received_names(feed.subscribe()) == ["a"]


@in_virtual_time
async def test_a_subscription_receives_each_commit_once() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster)
        listener = feed.subscribe()
        await write_namespaces(server, "a")
        first = list_received_names(listener)
        await write_namespaces(server, "b")

        assert (first, list_received_names(listener), list_received_names(listener)) == (["a"], ["b"], [])


@in_virtual_time
async def test_a_subscription_can_start_at_an_index() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster)
        await write_namespaces(server, "a")
        index = await write_namespaces(server, "b")
        await write_namespaces(server, "c")

        assert list_received_names(feed.subscribe(since_index=index)) == ["b", "c"]


@in_virtual_time
async def test_a_subscription_from_a_future_index_receives_nothing_earlier() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster)
        listener = feed.subscribe(since_index=server.replica.index + 2)
        await write_namespaces(server, "a")
        await write_namespaces(server, "b")

        assert list_received_names(listener) == ["b"]


@in_virtual_time
async def test_a_slow_subscription_extends_the_buffer_but_not_what_a_new_one_receives() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster, max_commits=2)
        slow = feed.subscribe()
        for name in "abcd":
            await write_namespaces(server, name)

        assert list_received_names(feed.subscribe()) == ["c", "d"]
        assert list_received_names(slow) == ["a", "b", "c", "d"]


@in_virtual_time
async def test_a_subscription_that_lags_too_far_is_closed() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster, max_commits=2, max_lag_commits=3)
        slow, quick = feed.subscribe(), feed.subscribe()
        for name in "abcd":
            await write_namespaces(server, name)
            list_received_names(quick)

        with pytest.raises(SubscriptionLost):
            slow.take(10)
        assert list_received_names(quick) == []


@in_virtual_time
async def test_the_buffer_shrinks_when_the_last_subscription_ends() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster, max_commits=2)
        slow = feed.subscribe()
        for name in "abcd":
            await write_namespaces(server, name)

        slow.end()
        await write_namespaces(server, "e")

        assert feed.commit_count == 2


@in_virtual_time
async def test_waiting_ends_with_an_event_or_the_timeout() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster)
        listener = feed.subscribe()
        list_received_names(listener)
        waiting = cluster.start(listener.wait(60.0), name="waits")
        await write_namespaces(server, "a")
        await waiting
        soon_s = now_s()
        list_received_names(listener)

        await listener.wait(60.0)

        assert now_s() - soon_s == pytest.approx(60.0)


@in_virtual_time
async def test_a_reloaded_state_closes_all_subscriptions() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster)
        await write_namespaces(server, "a")
        listener = feed.subscribe()

        feed.restart()

        with pytest.raises(SubscriptionLost):
            listener.take(10)
        await write_namespaces(server, "b")
        assert list_received_names(feed.subscribe()) == ["b"]


@in_virtual_time
async def test_closing_the_feed_closes_waiting_subscriptions() -> None:
    async with ACluster() as cluster:
        _, feed = await start_feed(cluster)
        listener = feed.subscribe()
        list_received_names(listener)
        waiting = cluster.start(listener.wait(600.0), name="waits")
        await asyncio.sleep(0)

        feed.close()
        await until(waiting.done, what="the waiter is woken")

        with pytest.raises(SubscriptionLost):
            listener.take(10)


@in_virtual_time
async def test_a_deleted_record_is_in_the_event_as_it_was() -> None:
    async with ACluster() as cluster:
        server, feed = await start_feed(cluster)
        await write_namespaces(server, "a")
        listener = feed.subscribe()
        list_received_names(listener)

        await server.server.follower.wait_until_applied(await commit(server, NODE_POOLS.build_delete("a")))

        ((event,),) = [commit.events for commit in listener.take(10)]
        assert (event.record.name, event.is_deleted) == ("a", True)
