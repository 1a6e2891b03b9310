"""The stream of what happens: who may hear it, how it is written, and when it ends.

The caller's rights are asked again before anything is sent; a stream whose caller has lost them ends, as one does that
fell too far behind.
"""

from collections.abc import AsyncIterator, Iterator
from re import compile as pattern
from typing import Any, Final

import msgspec

from wharf.cluster.access import Caller, build_denial, reauthenticate_caller
from wharf.cluster.api.lists.listing import ALL_NAMESPACES
from wharf.cluster.api.replies.encoding import yield_to_loop
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler, StreamedBody
from wharf.cluster.operations.events import ClusterEvent, EventFilter, is_event_visible, parse_topics
from wharf.cluster.server.events import EventCommit, EventFeed, SubscriptionLost
from wharf.cluster.server.server import Server
from wharf.cluster.state.packed_map import encode_packed_as_dict
from wharf.cluster.state.tables import NAMESPACES
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.wire.events import EventView, build_payload

HEARTBEAT_INTERVAL_S: Final = 30.0
HEARTBEAT_LINE: Final = b"{}\n"
WRITE_TIMEOUT_S: Final = 40.0
COMMITS_PER_STEP: Final = 50
MAX_EVENTS_PER_LINE: Final = 100
"""So that a large commit is neither encoded nor sent in one piece."""
INDEX_PATTERN: Final = pattern(r"[+-]?[0-9]{1,19}")
NO_CACHE_HEADER: Final = (b"cache-control", b"no-cache")
CONNECTION_CLOSE_HEADER: Final = (b"connection", b"close")

READ_HANDLERS: Final[dict[str, ReadHandler]] = {}

_encode = msgspec.json.Encoder(enc_hook=encode_packed_as_dict).encode


class EventActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def stream_events(self, request: Request) -> ActionResult:
        index = _index(request.get_text("index"))
        interest = self._interest(request)
        feed = self._server.events
        if feed is None:
            raise Refusal(
                RefusalCode.NOT_IMPLEMENTED, "the event stream is switched off here: set `server.enable_event_broker`"
            )
        await self._server.reader.catch_up()
        if not interest.is_allowed_for(request.caller.rights):
            raise build_denial(request.caller)
        parts = _nothing() if index < 0 else self._parts(feed, request.caller, interest, index)
        return ActionResult(
            StreamedBody(parts, headers=(NO_CACHE_HEADER, CONNECTION_CLOSE_HEADER), write_timeout_s=WRITE_TIMEOUT_S)
        )

    def _interest(self, request: Request) -> EventFilter:
        """Of all namespaces those that there are now: whoever comes later asks again."""
        if request.namespace == ALL_NAMESPACES:
            namespaces = frozenset(namespace.name for namespace in self._server.replica.iter_all(NAMESPACES))
        else:
            namespaces = frozenset({request.namespace})
        return EventFilter(parse_topics(request.get_texts("topic")), request.namespace, namespaces)

    async def _parts(self, feed: EventFeed, caller: Caller, interest: EventFilter, index: int) -> AsyncIterator[bytes]:
        world = self._server.world
        listener = feed.subscribe(since_index=index)
        try:
            yield HEARTBEAT_LINE
            due_s = world.monotonic_s() + HEARTBEAT_INTERVAL_S
            while True:
                for commit in listener.take(COMMITS_PER_STEP):
                    caller = self._again(caller, interest)
                    for line in _lines(commit, caller, interest):
                        yield line
                        await yield_to_loop()
                await listener.wait(due_s - world.monotonic_s())
                if world.monotonic_s() >= due_s:
                    caller = self._again(caller, interest)
                    yield HEARTBEAT_LINE
                    due_s = world.monotonic_s() + HEARTBEAT_INTERVAL_S
        except (SubscriptionLost, _RightsGone):
            return  # The caller sees the end of the stream, and subscribes again where it may.
        finally:
            listener.end()

    def _again(self, caller: Caller, interest: EventFilter) -> Caller:
        now = reauthenticate_caller(self._server.replica, caller, self._server.writer.read_clock())
        if now.is_refused or not interest.is_allowed_for(now.rights):
            raise _RightsGone
        return now


class _RightsGone(Exception):
    """The caller may no longer hear what it asked for."""


async def _nothing() -> AsyncIterator[bytes]:
    """An index before all time: the stream ends without a byte."""
    parts: tuple[bytes, ...] = ()
    for part in parts:
        yield part


def _lines(commit: EventCommit, caller: Caller, interest: EventFilter) -> Iterator[bytes]:
    told = [event for event in commit.events if interest.matches(event) and is_event_visible(caller.rights, event)]
    for start in range(0, len(told), MAX_EVENTS_PER_LINE):
        yield _line(commit.index, told[start : start + MAX_EVENTS_PER_LINE])


def _line(index: int, events: list[ClusterEvent]) -> bytes:
    shown = [
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
    line: dict[str, Any] = {"Index": index, "Events": shown}
    return _encode(line) + b"\n"


def _index(given: str) -> int:
    if given == "":
        return 0
    if not INDEX_PATTERN.fullmatch(given):
        raise invalid_request(f'Unable to parse index: strconv.Atoi: parsing "{given}": invalid syntax')
    return int(given)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"event.stream": EventActions(server).stream_events}
