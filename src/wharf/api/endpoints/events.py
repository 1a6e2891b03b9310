"""The stream of what happens: who may hear it, how it is written, and when it ends.

The caller's rights are asked again before anything is sent; a stream whose caller has lost them ends, as one does that
fell too far behind.
"""

from collections.abc import AsyncIterator, Iterator
from re import compile as pattern
from typing import Any, Final

import msgspec

from wharf.access import Caller, denial, who_is_it_now
from wharf.api.answers import Act, Done, Reading, Streamed
from wharf.api.encoding import pause
from wharf.api.listing import EVERY_NAMESPACE
from wharf.api.request import Request
from wharf.model.refusal import Code, Refusal, invalid
from wharf.operations.events import Event, Interest, may_hear, parse_topics
from wharf.server.event_feed import Commit, CutOff, EventFeed
from wharf.server.server import Server
from wharf.state.packed import unpacked
from wharf.state.tables import NAMESPACES
from wharf.wire.event_payloads import payload_of
from wharf.wire.event_shapes import EventShown

HEARTBEAT_S: Final = 30.0
HEARTBEAT: Final = b"{}\n"
WRITE_WITHIN_S: Final = 40.0
COMMITS_AT_ONCE: Final = 50
EVENTS_A_LINE: Final = 100
"""So that a large commit is neither encoded nor sent in one piece."""
INDEX: Final = pattern(r"[+-]?[0-9]{1,19}")
NO_CACHE: Final = (b"cache-control", b"no-cache")
CLOSES: Final = (b"connection", b"close")

READS: Final[dict[str, Reading]] = {}

_encode = msgspec.json.Encoder(enc_hook=unpacked).encode


class Events:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def stream(self, request: Request) -> Done:
        index = _index(request.text("index"))
        interest = self._interest(request)
        feed = self._server.events
        if feed is None:
            raise Refusal(Code.NOT_OURS, "the event stream is switched off here: set `server.enable_event_broker`")
        await self._server.reader.catch_up()
        if not interest.is_open_to(request.caller.rights):
            raise denial(request.caller)
        parts = _nothing() if index < 0 else self._parts(feed, request.caller, interest, index)
        return Done(Streamed(parts, headers=(NO_CACHE, CLOSES), write_within_s=WRITE_WITHIN_S))

    def _interest(self, request: Request) -> Interest:
        """Of all namespaces those that there are now: whoever comes later asks again."""
        if request.namespace == EVERY_NAMESPACE:
            namespaces = frozenset(namespace.name for namespace in self._server.replica.all(NAMESPACES))
        else:
            namespaces = frozenset({request.namespace})
        return Interest(parse_topics(request.texts("topic")), request.namespace, namespaces)

    async def _parts(self, feed: EventFeed, caller: Caller, interest: Interest, index: int) -> AsyncIterator[bytes]:
        world = self._server.world
        listener = feed.listen(since_index=index)
        try:
            yield HEARTBEAT
            due_s = world.monotonic_s() + HEARTBEAT_S
            while True:
                for commit in listener.take(COMMITS_AT_ONCE):
                    caller = self._again(caller, interest)
                    for line in _lines(commit, caller, interest):
                        yield line
                        await pause()
                await listener.wait(due_s - world.monotonic_s())
                if world.monotonic_s() >= due_s:
                    caller = self._again(caller, interest)
                    yield HEARTBEAT
                    due_s = world.monotonic_s() + HEARTBEAT_S
        except (CutOff, _RightsGone):
            return  # The caller sees the end of the stream, and subscribes again where it may.
        finally:
            listener.end()

    def _again(self, caller: Caller, interest: Interest) -> Caller:
        now = who_is_it_now(self._server.replica, caller, self._server.writer.moment())
        if now.is_refused or not interest.is_open_to(now.rights):
            raise _RightsGone
        return now


class _RightsGone(Exception):
    """The caller may no longer hear what it asked for."""


async def _nothing() -> AsyncIterator[bytes]:
    """An index before all time: the stream ends without a byte."""
    parts: tuple[bytes, ...] = ()
    for part in parts:
        yield part


def _lines(commit: Commit, caller: Caller, interest: Interest) -> Iterator[bytes]:
    told = [event for event in commit.events if interest.matches(event) and may_hear(caller.rights, event)]
    for start in range(0, len(told), EVENTS_A_LINE):
        yield _line(commit.index, told[start : start + EVENTS_A_LINE])


def _line(index: int, events: list[Event]) -> bytes:
    shown = [
        EventShown(
            topic=event.topic,
            type=event.type,
            key=event.key,
            namespace=event.namespace,
            filter_keys=event.filter_keys,
            index=index,
            payload=payload_of(event.topic, event.record, is_gone=event.is_gone),
        )
        for event in events
    ]
    line: dict[str, Any] = {"Index": index, "Events": shown}
    return _encode(line) + b"\n"


def _index(given: str) -> int:
    if given == "":
        return 0
    if not INDEX.fullmatch(given):
        raise invalid(f'Unable to parse index: strconv.Atoi: parsing "{given}": invalid syntax')
    return int(given)


def acts_of(server: Server) -> dict[str, Act]:
    return {"event.stream": Events(server).stream}
