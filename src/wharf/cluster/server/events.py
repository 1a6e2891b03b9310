"""The event feed: a limited buffer of the last commits, and a position in it for each subscription.

A subscription has a position but no queue, so a slow reader costs no memory. If the buffer drops commits that it has
not read, the subscription is lost and the client must subscribe again. Events are built when the first subscription
reads a commit.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import Final

from wharf.cluster.engines.port import Batch
from wharf.cluster.operations.events import EVENT_MAPPINGS, ChangedRecord, ClusterEvent, build_events
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.state.replica import AppliedChange
from wharf.world import World

MAX_BUFFERED_COMMITS: Final = 100
"""How many commits a new subscription can look back."""
MAX_BUFFERED_CHANGES: Final = 10_000
"""Limits the memory for old records: with large commits, fewer of them are buffered."""

MAX_LAG_COMMITS: Final = 5_000
"""How many commits a subscription may lag behind before it is lost."""
MAX_LAG_CHANGES: Final = 50_000
"""How many changed records a subscription may lag behind before it is lost."""


class SubscriptionLost(Exception):
    """The next commits of this subscription have been dropped, or the feed is closed."""


class EventCommit:
    """One committed batch with the records that it changed, from which its events are built."""

    def __init__(self, index: int, kind: str, changes: Sequence[ChangedRecord], time_ns: int) -> None:
        self.index = index
        self.kind = kind
        self.changes = changes
        self.time_ns = time_ns
        """When this process received it."""

    @cached_property
    def events(self) -> list[ClusterEvent]:
        """Return the events of this commit; built once."""
        return build_events(self.kind, self.changes)


class EventFeed:
    """A buffer of the last commits, from which subscriptions read events."""

    def __init__(
        self,
        world: World,
        follower: Follower,
        *,
        max_commits: int = MAX_BUFFERED_COMMITS,
        max_changes: int = MAX_BUFFERED_CHANGES,
        max_lag_commits: int = MAX_LAG_COMMITS,
    ) -> None:
        self._world = world
        self._max_commits = max_commits
        self._max_changes = max_changes
        self._max_lag_commits = max_lag_commits
        self._commits: deque[EventCommit] = deque()
        self._first_position = 0
        """The position of the oldest buffered commit. Positions count commits since this process started."""
        self._change_count = 0
        self._subscriptions: dict[EventSubscription, None] = {}
        self._news_future: asyncio.Future[None] | None = None
        self._is_closed = False
        follower.change_listeners.append(self._on_batch)
        follower.load_listeners.append(self.restart)

    @property
    def next_position(self) -> int:
        """The position that the next commit will have."""
        return self._first_position + len(self._commits)

    @property
    def is_closed(self) -> bool:
        """Whether the feed has ended, so that no commit follows."""
        return self._is_closed

    @property
    def subscription_count(self) -> int:
        """Return how many subscriptions are open."""
        return len(self._subscriptions)

    @property
    def commit_count(self) -> int:
        """Return how many commits are buffered, including those for subscriptions that lag behind."""
        return len(self._commits)

    # -- filling -----------------------------------------------------------------------------------------------------

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Buffer the changed records of a batch. For a deleted record, this is the version before the deletion."""
        changes = [
            ChangedRecord(table, old if record is None else record, record is None)
            for table, _key, old, record in changed_records
            if table in EVENT_MAPPINGS and (record is not None or old is not None)
        ]
        if changes:
            self._append(EventCommit(batch.index, batch.kind, changes, self._world.now_ns()))

    def _append(self, commit: EventCommit) -> None:
        """Buffer a commit, drop the oldest ones above the limits, and wake waiting subscriptions.

        The limits are higher while a subscription is open, so that it can lag behind.
        """
        self._commits.append(commit)
        self._change_count += len(commit.changes)
        max_commits, max_changes = self._max_commits, self._max_changes
        if self._subscriptions:
            max_commits, max_changes = max(max_commits, self._max_lag_commits), MAX_LAG_CHANGES
        while len(self._commits) > 1 and (len(self._commits) > max_commits or self._change_count > max_changes):
            self._change_count -= len(self._commits.popleft().changes)
            self._first_position += 1
        self._wake()

    def _wake(self) -> None:
        """Wake every subscription that waits for a commit."""
        if self._news_future is not None and not self._news_future.done():
            self._news_future.set_result(None)
        self._news_future = None

    # -- reading -----------------------------------------------------------------------------------------------------

    def subscribe(self, *, since_index: int = 0) -> "EventSubscription":
        """Return a subscription that starts at the first buffered commit with an index of at least `since_index`.

        0 starts at the oldest commit that new subscriptions may read.
        """
        position = self._first_position + self._count_skipped_commits()
        while position < self.next_position and self._commits[position - self._first_position].index < since_index:
            position += 1
        subscription = EventSubscription(self, position, since_index)
        self._subscriptions[subscription] = None
        return subscription

    def _count_skipped_commits(self) -> int:
        """Return how many of the oldest buffered commits a new subscription skips.

        These are above the limits for new subscriptions and buffered only for subscriptions that lag behind.
        """
        skipped, changes = max(0, len(self._commits) - self._max_commits), self._change_count
        for position, commit in enumerate(self._commits):
            if position >= skipped and changes <= self._max_changes:
                return position
            changes -= len(commit.changes)
        return max(0, len(self._commits) - 1)

    def unsubscribe(self, subscription: "EventSubscription") -> None:
        """Remove a subscription."""
        self._subscriptions.pop(subscription, None)

    def read_commits(self, position: int, limit: int) -> list[EventCommit]:
        """Return up to `limit` commits, the first of which has this position.

        Raises `SubscriptionLost` if that commit has been dropped or the feed is closed.
        """
        if self._is_closed or position < self._first_position:
            raise SubscriptionLost
        begin = position - self._first_position
        return list(islice(self._commits, begin, begin + limit))

    def has_news(self, position: int) -> bool:
        """Whether a subscription at this position has commits to read or is lost."""
        return self._is_closed or self.next_position > position

    async def wait_for_news(self) -> None:
        """Wait until a commit is buffered or the feed is restarted or closed."""
        if self._news_future is None:
            self._news_future = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news_future)

    def restart(self) -> None:
        """Drop all commits after the replica was loaded again, because the changes in between are unknown.

        Every open subscription is lost.
        """
        self._first_position = self.next_position + 1
        self._commits.clear()
        self._change_count = 0
        self._wake()

    def close(self) -> None:
        """End all subscriptions: their next read raises `SubscriptionLost`."""
        self._is_closed = True
        self._wake()


class EventSubscription:
    """A reader of the event feed: the position of the next commit that it has not read."""

    def __init__(self, feed: EventFeed, position: int, since_index: int) -> None:
        self._feed = feed
        self._position = position
        self._since_index = since_index

    def take(self, limit: int) -> list[EventCommit]:
        """Return unread commits, at most `limit`; may be empty. Raises `SubscriptionLost` if some have been dropped."""
        commits = self._feed.read_commits(self._position, limit)
        self._position += len(commits)
        return [commit for commit in commits if commit.index >= self._since_index]

    async def wait(self, timeout_s: float) -> None:
        """Wait until there may be more commits, or until the timeout."""
        if self._feed.has_news(self._position):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._feed.wait_for_news()
        except TimeoutError:
            pass

    def end(self) -> None:
        """Remove this subscription from the feed."""
        self._feed.unsubscribe(self)
