"""The last commits of the log, kept for those who listen to events: a bounded buffer to look back on, and a place in it
for each listener.

A listener holds a place and no queue of its own, so one that is slow costs nothing: when what it has not heard yet falls
out of the buffer, it is cut off and has to begin again. What a commit tells is worked out when the first listener asks.
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

MAX_BUFFERED_COMMITS: Final = 100
MAX_BUFFERED_CHANGES: Final = 10_000
"""Of large commits fewer are kept: records of old versions take room that nothing else needs."""

MAX_LAG_COMMITS: Final = 5_000
MAX_LAG_CHANGES: Final = 50_000
"""How far a listener may lag behind while others listen."""


class SubscriptionLost(Exception):
    """What comes next for this listener is no longer there, or never will be."""


class EventCommit:
    """One batch, with the records that it touched."""

    def __init__(self, index: int, kind: str, changes: Sequence[ChangedRecord]) -> None:
        self.index = index
        self.kind = kind
        self.changes = changes

    @cached_property
    def events(self) -> list[ClusterEvent]:
        return build_events(self.kind, self.changes)


class EventFeed:
    def __init__(
        self,
        follower: Follower,
        *,
        max_commits: int = MAX_BUFFERED_COMMITS,
        max_changes: int = MAX_BUFFERED_CHANGES,
        max_lag_commits: int = MAX_LAG_COMMITS,
    ) -> None:
        self._commits_kept = max_commits
        self._changes_kept = max_changes
        self._commits_behind_max = max_lag_commits
        self._commits: deque[EventCommit] = deque()
        self._first = 0
        """The number of the oldest commit that is kept: they are counted from the start of this process."""
        self._changes = 0
        self._listeners: dict[EventSubscription, None] = {}
        self._news: asyncio.Future[None] | None = None
        self._is_closed = False
        follower.change_listeners.append(self._take)
        follower.load_listeners.append(self.restart)

    @property
    def next_position(self) -> int:
        return self._first + len(self._commits)

    @property
    def subscription_count(self) -> int:
        """How many listen."""
        return len(self._listeners)

    @property
    def commit_count(self) -> int:
        """How many commits are kept, also for those who lag behind."""
        return len(self._commits)

    # -- hearing -----------------------------------------------------------------------------------------------------

    def _take(self, batch: Batch, taken: Sequence[AppliedChange]) -> None:
        """Of what goes, the record that it was; of everything else the one that it is now."""
        changes = [
            ChangedRecord(table, old if record is None else record, record is None)
            for table, _key, old, record in taken
            if table in EVENT_MAPPINGS and (record is not None or old is not None)
        ]
        if changes:
            self._keep(EventCommit(batch.index, batch.kind, changes))

    def _keep(self, commit: EventCommit) -> None:
        self._commits.append(commit)
        self._changes += len(commit.changes)
        commits_max, changes_max = self._commits_kept, self._changes_kept
        if self._listeners:
            commits_max, changes_max = max(commits_max, self._commits_behind_max), MAX_LAG_CHANGES
        while len(self._commits) > 1 and (len(self._commits) > commits_max or self._changes > changes_max):
            self._changes -= len(self._commits.popleft().changes)
            self._first += 1
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        self._news = None

    # -- listening ---------------------------------------------------------------------------------------------------

    def subscribe(self, *, since_index: int = 0) -> "EventSubscription":
        """From the commit at this index on, or the next later one that is still kept; 0: from the oldest."""
        place = self._first + self._replayed_from()
        while place < self.next_position and self._commits[place - self._first].index < since_index:
            place += 1
        listener = EventSubscription(self, place, since_index)
        self._listeners[listener] = None
        return listener

    def _replayed_from(self) -> int:
        """How many of those that are kept for the slow are no part of what a new listener hears."""
        passed_over, changes = max(0, len(self._commits) - self._commits_kept), self._changes
        for position, commit in enumerate(self._commits):
            if position >= passed_over and changes <= self._changes_kept:
                return position
            changes -= len(commit.changes)
        return max(0, len(self._commits) - 1)

    def unsubscribe(self, listener: "EventSubscription") -> None:
        self._listeners.pop(listener, None)

    def read_commits(self, place: int, most: int) -> list[EventCommit]:
        """The commits from this place on, so many at most. Raises `CutOff` where the first of them is gone."""
        if self._is_closed or place < self._first:
            raise SubscriptionLost
        begin = place - self._first
        return list(islice(self._commits, begin, begin + most))

    def has_news(self, place: int) -> bool:
        """Whether whoever stands there has something to hear, be it that it is cut off."""
        return self._is_closed or self.next_position > place

    async def wait_for_news(self) -> None:
        """Until there is something new, or the feed begins again."""
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)

    def restart(self) -> None:
        """The state was loaded anew: what happened in between nobody knows, so everybody begins again."""
        self._first = self.next_position + 1
        self._commits.clear()
        self._changes = 0
        self._wake()

    def close(self) -> None:
        self._is_closed = True
        self._wake()


class EventSubscription:
    """One who listens, and how far it has come."""

    def __init__(self, feed: EventFeed, place: int, since_index: int) -> None:
        self._feed = feed
        self._place = place
        self._since_index = since_index

    def take(self, most: int) -> list[EventCommit]:
        """The next commits, if any, so many at most. Raises `CutOff`."""
        commits = self._feed.read_commits(self._place, most)
        self._place += len(commits)
        return [commit for commit in commits if commit.index >= self._since_index]

    async def wait(self, timeout_s: float) -> None:
        """Until there may be more, or the time is over."""
        if self._feed.has_news(self._place):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._feed.wait_for_news()
        except TimeoutError:
            pass

    def end(self) -> None:
        self._feed.unsubscribe(self)
