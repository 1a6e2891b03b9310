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

from wharf.engines.port import Batch
from wharf.operations.events import TOLD, Change, Event, events_of
from wharf.server.follower import Follower
from wharf.state.replica import Taken

COMMITS_KEPT: Final = 100
CHANGES_KEPT: Final = 10_000
"""Of large commits fewer are kept: records of old versions take room that nothing else needs."""

COMMITS_BEHIND_MAX: Final = 5_000
CHANGES_BEHIND_MAX: Final = 50_000
"""How far a listener may lag behind while others listen."""


class CutOff(Exception):
    """What comes next for this listener is no longer there, or never will be."""


class Commit:
    """One batch, with the records that it touched."""

    def __init__(self, index: int, kind: str, changes: Sequence[Change]) -> None:
        self.index = index
        self.kind = kind
        self.changes = changes

    @cached_property
    def events(self) -> list[Event]:
        return events_of(self.kind, self.changes)


class EventFeed:
    def __init__(
        self,
        follower: Follower,
        *,
        commits_kept: int = COMMITS_KEPT,
        changes_kept: int = CHANGES_KEPT,
        commits_behind_max: int = COMMITS_BEHIND_MAX,
    ) -> None:
        self._commits_kept = commits_kept
        self._changes_kept = changes_kept
        self._commits_behind_max = commits_behind_max
        self._commits: deque[Commit] = deque()
        self._first = 0
        """The number of the oldest commit that is kept: they are counted from the start of this process."""
        self._changes = 0
        self._listeners: dict[Listener, None] = {}
        self._news: asyncio.Future[None] | None = None
        self._is_closed = False
        follower.takers.append(self._take)
        follower.on_load.append(self.restart)

    @property
    def next(self) -> int:
        return self._first + len(self._commits)

    @property
    def listening(self) -> int:
        """How many listen."""
        return len(self._listeners)

    @property
    def kept(self) -> int:
        """How many commits are kept, also for those who lag behind."""
        return len(self._commits)

    # -- hearing -----------------------------------------------------------------------------------------------------

    def _take(self, batch: Batch, taken: Sequence[Taken]) -> None:
        """Of what goes, the record that it was; of everything else the one that it is now."""
        changes = [
            Change(table, old if record is None else record, record is None)
            for table, _key, old, record in taken
            if table in TOLD and (record is not None or old is not None)
        ]
        if changes:
            self._keep(Commit(batch.index, batch.kind, changes))

    def _keep(self, commit: Commit) -> None:
        self._commits.append(commit)
        self._changes += len(commit.changes)
        commits_max, changes_max = self._commits_kept, self._changes_kept
        if self._listeners:
            commits_max, changes_max = max(commits_max, self._commits_behind_max), CHANGES_BEHIND_MAX
        while len(self._commits) > 1 and (len(self._commits) > commits_max or self._changes > changes_max):
            self._changes -= len(self._commits.popleft().changes)
            self._first += 1
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        self._news = None

    # -- listening ---------------------------------------------------------------------------------------------------

    def listen(self, *, since_index: int = 0) -> "Listener":
        """From the commit at this index on, or the next later one that is still kept; 0: from the oldest."""
        place = self._first + self._replayed_from()
        while place < self.next and self._commits[place - self._first].index < since_index:
            place += 1
        listener = Listener(self, place, since_index)
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

    def leave(self, listener: "Listener") -> None:
        self._listeners.pop(listener, None)

    def after(self, place: int, most: int) -> list[Commit]:
        """The commits from this place on, so many at most. Raises `CutOff` where the first of them is gone."""
        if self._is_closed or place < self._first:
            raise CutOff
        begin = place - self._first
        return list(islice(self._commits, begin, begin + most))

    def is_past(self, place: int) -> bool:
        """Whether whoever stands there has something to hear, be it that it is cut off."""
        return self._is_closed or self.next > place

    async def news(self) -> None:
        """Until there is something new, or the feed begins again."""
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)

    def restart(self) -> None:
        """The state was loaded anew: what happened in between nobody knows, so everybody begins again."""
        self._first = self.next + 1
        self._commits.clear()
        self._changes = 0
        self._wake()

    def close(self) -> None:
        self._is_closed = True
        self._wake()


class Listener:
    """One who listens, and how far it has come."""

    def __init__(self, feed: EventFeed, place: int, since_index: int) -> None:
        self._feed = feed
        self._place = place
        self._since_index = since_index

    def take(self, most: int) -> list[Commit]:
        """The next commits, if any, so many at most. Raises `CutOff`."""
        commits = self._feed.after(self._place, most)
        self._place += len(commits)
        return [commit for commit in commits if commit.index >= self._since_index]

    async def wait(self, timeout_s: float) -> None:
        """Until there may be more, or the time is over."""
        if self._feed.is_past(self._place):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._feed.news()
        except TimeoutError:
            pass

    def end(self) -> None:
        self._feed.leave(self)
