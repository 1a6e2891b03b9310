"""The event stream: authorization, encoding and termination.

The caller's rights are checked again before events are sent. The stream ends if the caller has lost them, or has fallen
too far behind.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, Final

from wharf.cluster.access import Caller, build_denial, reauthenticate_caller
from wharf.cluster.api.lists.listing import ALL_NAMESPACES
from wharf.cluster.api.replies.pieces import iterate_pieces
from wharf.cluster.api.requests.parameters import INTEGER_PATTERN, MAX_INTEGER
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, StreamedBody
from wharf.cluster.operations.events import ClusterEvent, EventFilter, is_event_visible, parse_topics
from wharf.cluster.server.cpu_budget import SLICE_S
from wharf.cluster.server.events import EventCommit, EventFeed, SubscriptionLost
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import NAMESPACES
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.wire.events import EventView, build_payload

HEARTBEAT_INTERVAL_S: Final = 10.0
HEARTBEAT_LINE: Final = b"{}\n"
WRITE_TIMEOUT_S: Final = 40.0
"""A caller that takes longer to read one part is disconnected."""
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
        feed = self._server.events
        if feed is None:
            raise Refusal(
                RefusalCode.NOT_IMPLEMENTED,
                "the event stream is disabled: set `server.enable_event_broker` on this server",
            )
        await self._server.reader.catch_up()
        if not event_filter.is_allowed_for(request.caller.rights):
            raise build_denial(request.caller)
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
        if current.is_refused or not event_filter.is_allowed_for(current.rights):
            raise _RightsLost
        return current


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
    return {"event.stream": EventActions(server).stream_events}
