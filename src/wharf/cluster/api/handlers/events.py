"""The event stream: authorization, encoding and termination.

The caller's rights are checked again before events are sent. The stream ends if the caller has lost them, or has fallen
too far behind.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from wharf.cluster.access import Caller, build_denial, describe_denial, reauthenticate_caller
from wharf.cluster.api.lists.listing import ALL_NAMESPACES
from wharf.cluster.api.replies.pieces import iterate_pieces
from wharf.cluster.api.requests.parameters import INTEGER_PATTERN, MAX_INTEGER
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, StreamedBody
from wharf.cluster.operations.events import (
    TOPIC_PERMISSIONS,
    WILDCARD,
    ClusterEvent,
    EventFilter,
    EventTopic,
    is_event_visible,
    parse_topics,
)
from wharf.cluster.server.cpu_budget import SLICE_S
from wharf.cluster.server.events import EventCommit, EventFeed, EventSubscription, SubscriptionLost
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import NAMESPACES
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.wire.events import (
    MAX_RECENT_EVENTS,
    ChangedKeys,
    ChangeLine,
    EventView,
    RecentEvent,
    RecentEvents,
    build_payload,
)

HEARTBEAT_INTERVAL_S: Final = 10.0
CHANGES_INTERVAL_S: Final = 0.8
"""The shortest time between two lines of changes. A person sees a change within a second, however much changes."""
HEARTBEAT_LINE: Final = b"{}\n"
WRITE_TIMEOUT_S: Final = 40.0
"""A caller that takes longer to read one part is disconnected."""
MAX_CHANGED_KEYS: Final = 400
"""How many keys of a topic a line names, two for an allocation. Limits its size to some 10 kB; after more changes a reader reads
its list again."""
COMMITS_PER_STEP: Final = 50
MAX_EVENTS_PER_LINE: Final = 100
"""A larger commit is sent as several lines, which limits the length of a line."""
PART_BYTES: Final = 64 * 1024
"""A longer line is sent in parts of about this size, so that other tasks can run in between."""
EVENTS_PER_STEP: Final = 1_000
"""Events that are selected in one step: about two milliseconds."""
NO_CACHE_HEADER: Final = (b"cache-control", b"no-cache")
CONNECTION_CLOSE_HEADER: Final = (b"connection", b"close")


class EventActions:
    """Streams events to callers."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def stream_events(self, request: Request) -> ActionResult:
        """Stream the events of commits from the requested log index on. A negative index ends the stream at once.

        Raises `Refusal` if the event stream is disabled or the caller may not receive the requested events.
        """
        index = _parse_index(request.get_text("index"))
        event_filter = self._build_filter(request)
        feed = self._require_feed()
        await self._server.reader.catch_up()
        if (topic := event_filter.find_forbidden_topic(request.caller.rights)) is not None:
            detail = describe_denial(
                request.caller,
                TOPIC_PERMISSIONS[topic],
                namespace=event_filter.namespace,
                path=WILDCARD,
                is_anywhere=topic == EventTopic.VARIABLE,
            )
            raise build_denial(request.caller, detail=f"{detail}, for events of the topic {topic}")
        progress = _LineProgress()
        parts = (
            _iterate_nothing()
            if index < 0
            else self._iterate_lines(feed, request.caller, event_filter, index, progress)
        )
        return ActionResult(
            StreamedBody(
                parts,
                headers=(NO_CACHE_HEADER, CONNECTION_CLOSE_HEADER),
                write_timeout_s=WRITE_TIMEOUT_S,
                is_access_checked=True,
                is_incomplete=lambda: progress.is_inside_line,
            )
        )

    def _require_feed(self) -> EventFeed:
        """Return the feed of events. Raises `Refusal` if it is disabled."""
        if self._server.events is None:
            raise Refusal(
                RefusalCode.NOT_IMPLEMENTED,
                "the event stream is disabled: set `server.enable_event_broker` on this server",
            )
        return self._server.events

    async def stream_changes(self, request: Request) -> ActionResult:
        """Stream the keys of changed records that the caller may see. Nothing is refused for lack of rights: it is left out.

        Raises `Refusal` if the event stream is disabled.
        """
        event_filter = self._build_filter(request)
        feed = self._require_feed()
        await self._server.reader.catch_up()
        return ActionResult(
            StreamedBody(
                self._iterate_changes(feed, request.caller, event_filter),
                headers=(NO_CACHE_HEADER, CONNECTION_CLOSE_HEADER),
                write_timeout_s=WRITE_TIMEOUT_S,
                is_access_checked=True,
            )
        )

    async def list_recent_events(self, request: Request) -> ActionResult:
        """Return the last changes that the caller may see, the newest first. What the caller may not see is left out.

        Raises `Refusal` if the event stream is disabled.
        """
        event_filter = self._build_filter(request)
        feed = self._require_feed()
        await self._server.reader.catch_up()
        recent: deque[RecentEvent] = deque(maxlen=MAX_RECENT_EVENTS)
        subscription, oldest_index = feed.subscribe(), 0
        try:
            while commits := subscription.take(COMMITS_PER_STEP):
                for commit in commits:
                    oldest_index = oldest_index or commit.index
                    async for events in self._select_events(commit, request.caller, event_filter):
                        recent.extend(_build_recent_event(commit, event) for event in events)
                await self._server.off_loop.loop_slots.wait()
        except SubscriptionLost:
            pass  # The state was loaded again in the meantime: earlier changes are not known.
        finally:
            subscription.end()
        return ActionResult(RecentEvents(events=tuple(reversed(recent)), oldest_index=oldest_index))

    async def _iterate_changes(
        self, feed: EventFeed, caller: Caller, event_filter: EventFilter
    ) -> AsyncIterator[bytes]:
        """Yield a line of changes at most every `CHANGES_INTERVAL_S`, and a heartbeat line at intervals.

        Ends when the subscription has fallen too far behind or the caller's token is no longer valid.
        """
        world = self._server.world
        index = self._server.replica.index
        subscription = feed.subscribe(since_index=index + 1)
        try:
            yield msgspec.json.encode(ChangeLine(index=index)) + b"\n"
            sent_s = looked_s = world.monotonic_s()
            while True:
                await subscription.wait(sent_s + HEARTBEAT_INTERVAL_S - world.monotonic_s())
                # More changes often follow at once. Meanwhile they are in the feed, which all subscriptions share.
                await asyncio.sleep(max(0.0, looked_s + CHANGES_INTERVAL_S - world.monotonic_s()))
                looked_s = world.monotonic_s()
                caller = reauthenticate_caller(self._server.replica, caller, self._server.writer.read_clock())
                if caller.is_refused:
                    return
                line = await self._collect_changes(subscription, caller, event_filter)
                if line.changes or looked_s >= sent_s + HEARTBEAT_INTERVAL_S:
                    yield msgspec.json.encode(line) + b"\n" if line.changes else HEARTBEAT_LINE
                    sent_s = looked_s
        except SubscriptionLost:
            return  # The caller sees the end of the stream and may subscribe again.
        finally:
            subscription.end()

    async def _collect_changes(
        self, subscription: EventSubscription, caller: Caller, event_filter: EventFilter
    ) -> ChangeLine:
        """Return all changes that the subscription has not read yet, as far as the caller may see them."""
        collector = ChangeCollector()
        while commits := subscription.take(COMMITS_PER_STEP):
            for commit in commits:
                async for events in self._select_events(commit, caller, event_filter):
                    collector.add(commit.index, events)
            await self._server.off_loop.loop_slots.wait()
        return collector.build_line()

    def _build_filter(self, request: Request) -> EventFilter:
        """Return the filter for the requested topics and namespaces.

        For all namespaces it contains those that exist now; events of later namespaces need a new request.
        """
        if request.namespace == ALL_NAMESPACES:
            namespaces = frozenset(namespace.name for namespace in self._server.replica.iter_all(NAMESPACES))
        else:
            namespaces = frozenset({request.namespace})
        return EventFilter(parse_topics(request.get_texts("topic")), request.namespace, namespaces)

    async def _iterate_lines(
        self, feed: EventFeed, caller: Caller, event_filter: EventFilter, index: int, progress: "_LineProgress"
    ) -> AsyncIterator[bytes]:
        """Yield the events of commits from `index` on as JSON lines, and a heartbeat line at intervals.

        Ends when the subscription has fallen too far behind or the caller has lost its rights.
        """
        world = self._server.world
        subscription = feed.subscribe(since_index=index)
        try:
            yield HEARTBEAT_LINE
            due_s = world.monotonic_s() + HEARTBEAT_INTERVAL_S
            while True:
                for commit in subscription.take(COMMITS_PER_STEP):
                    caller = self._reauthenticate(caller, event_filter)
                    async with aclosing(self._iterate_commit(commit, caller, event_filter, progress)) as parts:
                        async for part in parts:
                            yield part  # The sender waits for the next slot.
                await subscription.wait(due_s - world.monotonic_s())
                if world.monotonic_s() >= due_s:
                    caller = self._reauthenticate(caller, event_filter)
                    yield HEARTBEAT_LINE
                    due_s = world.monotonic_s() + HEARTBEAT_INTERVAL_S
        except (SubscriptionLost, _RightsLost):
            if progress.is_inside_line:
                raise Refusal(RefusalCode.FORBIDDEN, "the caller lost its rights within a line") from None
            return  # The caller sees the end of the stream and may subscribe again.
        finally:
            subscription.end()

    async def _iterate_commit(
        self, commit: EventCommit, caller: Caller, event_filter: EventFilter, progress: "_LineProgress"
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of the commit's events that the caller requested and may see, long ones in parts.

        Raises `_RightsLost` if the caller loses its rights meanwhile.
        """
        world, loop_slots = self._server.world, self._server.off_loop.loop_slots
        has_lines = False
        async for events in self._select_events(commit, caller, event_filter):
            has_lines = True
            pieces, size, began_s = [], 0, world.cpu_s()
            for piece in _encode_line(commit.index, events):
                pieces.append(piece)
                size += len(piece)
                if size >= PART_BYTES or world.cpu_s() - began_s >= SLICE_S:
                    progress.is_inside_line = True
                    yield b"".join(pieces)
                    self._reauthenticate(caller, event_filter)
                    pieces, size, began_s = [], 0, world.cpu_s()
            pieces.append(b"\n")
            yield b"".join(pieces)
            progress.is_inside_line = False
        if not has_lines:
            await loop_slots.wait()

    async def _select_events(
        self, commit: EventCommit, caller: Caller, event_filter: EventFilter
    ) -> AsyncGenerator[list[ClusterEvent], None]:
        """Yield the events that the caller requested and may see, in groups for one line each."""
        selected: list[ClusterEvent] = []
        for number, event in enumerate(commit.events, start=1):
            if event_filter.matches(event) and is_event_visible(caller.rights, event):
                selected.append(event)
            if len(selected) == MAX_EVENTS_PER_LINE:
                yield selected
                selected = []
            if not number % EVENTS_PER_STEP:
                await self._server.off_loop.loop_slots.wait()
        if selected:
            yield selected

    def _reauthenticate(self, caller: Caller, event_filter: EventFilter) -> Caller:
        """Return the caller with its current rights.

        Raises `_RightsLost` if these do not allow the requested events.
        """
        current = reauthenticate_caller(self._server.replica, caller, self._server.writer.read_clock())
        if current.is_refused or event_filter.find_forbidden_topic(current.rights) is not None:
            raise _RightsLost
        return current


def _build_recent_event(commit: EventCommit, event: ClusterEvent) -> RecentEvent:
    """Return an event without its record. A record that does not say when it was changed has the time of the commit."""
    record = event.record
    changed = getattr(record, "modify_time", 0) or getattr(record, "submit_time", 0)
    return RecentEvent(
        topic=event.topic,
        type=event.type,
        key=event.key,
        name=getattr(record, "name", ""),
        job_id=getattr(record, "job_id", ""),
        namespace=event.namespace,
        accessor_id=_find_accessor(event),
        index=commit.index,
        time=changed if changed and isinstance(changed, int) else commit.time_ns,
    )


def _find_accessor(event: ClusterEvent) -> str:
    """Return the accessor ID of the token that made a change, as far as the record names it; otherwise an empty text."""
    if event.type == NODE_DRAIN_TYPE:
        drain = getattr(event.record, "last_drain", None)
        return "" if drain is None else str(drain.accessor_id)
    return str(getattr(event.record, "submitter_accessor_id", "")) if event.type == JOB_REGISTERED_TYPE else ""


NODE_DRAIN_TYPE: Final = "NodeDrain"
JOB_REGISTERED_TYPE: Final = "JobRegistered"


class ChangeCollector:
    """Collects the keys of changed records."""

    def __init__(self) -> None:
        self._keys: dict[str, set[str]] = {}
        self._index = 0

    def add(self, index: int, events: Sequence[ClusterEvent]) -> None:
        """Add events of the commit with this log index, with the keys of records that theirs belong to."""
        self._index = index
        for event in events:
            keys = self._keys.setdefault(event.topic, set())
            if len(keys) <= MAX_CHANGED_KEYS:
                keys.add(event.key)
                keys.update(filter(None, event.filter_keys or ()))

    def build_line(self) -> ChangeLine:
        """Return everything that was added."""
        return ChangeLine(
            index=self._index,
            changes=tuple(
                ChangedKeys(topic=topic, all=True)
                if len(keys) > MAX_CHANGED_KEYS
                else ChangedKeys(topic=topic, keys=tuple(sorted(keys)))
                for topic, keys in sorted(self._keys.items())
            ),
        )


class _LineProgress:
    """Whether a part of a line is sent, and the rest of the line is not."""

    __slots__ = ("is_inside_line",)

    def __init__(self) -> None:
        self.is_inside_line = False


class _RightsLost(Exception):
    """The caller may no longer receive the requested events."""


async def _iterate_nothing() -> AsyncIterator[bytes]:
    """Yield nothing: for a negative index the stream ends at once."""
    parts: tuple[bytes, ...] = ()
    for part in parts:
        yield part


def _encode_line(index: int, events: list[ClusterEvent]) -> Iterator[bytes]:
    """Yield one line of the stream, the index and its events, in pieces that take little time each."""
    views = [
        EventView(
            topic=event.topic,
            type=event.type,
            key=event.key,
            namespace=event.namespace,
            filter_keys=event.filter_keys,
            index=index,
            payload=build_payload(event.topic, event.record, is_deleted=event.is_deleted),
        )
        for event in events
    ]
    line: dict[str, Any] = {"Index": index, "Events": views}
    return iterate_pieces(line, is_pretty=False)


def _parse_index(text: str) -> int:
    """Return the log index that the text holds; 0 if it is empty. Raises `Refusal` with Nomad's error text."""
    if text == "":
        return 0
    reason = "" if INTEGER_PATTERN.fullmatch(text) else "invalid syntax"
    if not reason and not -MAX_INTEGER - 1 <= int(text) <= MAX_INTEGER:
        reason = "value out of range"
    if reason:
        raise invalid_request(f'Unable to parse index: strconv.Atoi: parsing "{text}": {reason}')
    return int(text)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = EventActions(server)
    return {
        "event.stream": actions.stream_events,
        "event.recent": actions.list_recent_events,
        "event.changes": actions.stream_changes,
    }
