"""The records of one process: to all sinks, and to operators that follow them live.

A follower that does not read loses records, and learns how many. The last records are in memory, so that a follower that
lost its connection can continue after the last record that it received.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from wharf.sinks.delivery import SinkDelivery, SinkStatus, publish_to_all

MAX_RECENT_RECORDS: Final = 2_000
"""Records in memory for followers that connect again; the oldest are dropped."""
MAX_RECENT_BYTES: Final = 4 << 20
MAX_FOLLOWERS: Final = 32
"""Limits what all followers together can hold in memory."""
MAX_FOLLOWER_RECORDS: Final = 2_000
"""Records that wait for one follower; limits memory."""
MAX_FOLLOWER_BYTES: Final = 4 << 20


class TooManyFollowers(Exception):
    """Too many operators follow the stream already."""


class StreamEntry(NamedTuple):
    """An encoded record of the stream."""

    type: str
    id: str
    line: bytes


class StreamFollower:
    """The records that wait for one operator."""

    def __init__(self, types: frozenset[str]) -> None:
        """`types` are the types of the records that it gets; empty for all."""
        self.types: Final = types
        self._entries: deque[StreamEntry] = deque()
        self._bytes = 0
        self._lost = 0
        self._event = asyncio.Event()
        self.is_ended = False
        """Whether the stream has ended, so that no further record comes."""

    def add(self, entry: StreamEntry) -> None:
        """Add a record of one of its types. If too many wait, it is dropped and counted."""
        if self.types and entry.type not in self.types:
            return
        if len(self._entries) >= MAX_FOLLOWER_RECORDS or self._bytes + len(entry.line) > MAX_FOLLOWER_BYTES:
            self._lost += 1
        else:
            self._entries.append(entry)
            self._bytes += len(entry.line)
        self._event.set()

    def end(self) -> None:
        self.is_ended = True
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until records can be taken, the stream ends, or the time has passed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass

    def take(self) -> tuple[Sequence[StreamEntry], int]:
        """Return the waiting records, and how many were dropped after them."""
        entries, self._entries = list(self._entries), deque()
        lost, self._lost = self._lost, 0
        self._bytes = 0
        if not self.is_ended:
            self._event.clear()
        return entries, lost


class RecordStream:
    """Passes each record of this process to its sinks and followers."""

    def __init__(self, deliveries: Sequence[SinkDelivery] = ()) -> None:
        self.deliveries: Final = tuple(deliveries)
        self._recent: deque[StreamEntry] = deque()
        self._recent_bytes = 0
        self._followers: set[StreamFollower] = set()

    def wants(self, record_type: str) -> bool:
        """Return whether anything gets records of this type, so that they need not be encoded in vain."""
        types = (*(delivery.types for delivery in self.deliveries), *(follower.types for follower in self._followers))
        return any(not selected or record_type in selected for selected in types)

    def publish(self, record_type: str, record_id: str, line: bytes) -> None:
        """Pass an encoded record on. This never waits."""
        publish_to_all(self.deliveries, record_type, line)
        entry = StreamEntry(record_type, record_id, line)
        self._recent.append(entry)
        self._recent_bytes += len(line)
        while len(self._recent) > MAX_RECENT_RECORDS or self._recent_bytes > MAX_RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft().line)
        for follower in self._followers:
            follower.add(entry)

    def follow(self, types: frozenset[str] = frozenset(), *, after_id: str = "") -> StreamFollower:
        """Return a follower of the records from now on, or after the record `after_id` if it is still in memory.

        End it with `unfollow`. Raises `TooManyFollowers`.
        """
        if len(self._followers) >= MAX_FOLLOWERS:
            raise TooManyFollowers(f"{MAX_FOLLOWERS} operators follow the stream already: end one of them")
        follower = StreamFollower(types)
        missed: list[StreamEntry] = []
        if after_id:
            for entry in reversed(self._recent):
                if entry.id == after_id:
                    break
                missed.append(entry)
        for entry in reversed(missed):
            follower.add(entry)
        self._followers.add(follower)
        return follower

    def unfollow(self, follower: StreamFollower) -> None:
        self._followers.discard(follower)

    def describe_sinks(self) -> list[SinkStatus]:
        return [delivery.describe() for delivery in self.deliveries]

    def open(self) -> None:
        """Start the deliveries of all sinks."""
        for delivery in self.deliveries:
            delivery.open()

    def close_spools(self) -> None:
        """Close the spools of a stream that was never opened, so that another process or stream can use them."""
        for delivery in self.deliveries:
            delivery.close_spool()

    async def close(self) -> None:
        """End all followers, and close all sinks after their last records."""
        for follower in self._followers:
            follower.end()
        await asyncio.gather(*(delivery.close() for delivery in self.deliveries))
