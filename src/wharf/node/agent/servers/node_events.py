"""Events of the node and changes of its description, queued until a server has received them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from wharf.contract.client import Unreachable
from wharf.contract.client.errors import get_requested_delay_s
from wharf.contract.model.nodes.node import MAX_NODE_EVENTS, NodeEvent, NodeEventSubsystem
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import to_datetime
from wharf.world import World
from wharf.world.backoff import Backoff

log = logging.getLogger(__name__)

MIN_RETRY_DELAY_S: Final = 1.0
"""The longest delay after a first failed attempt to send events; it doubles with each further failure."""
MAX_RETRY_DELAY_S: Final = 15.0
"""The longest delay before events are sent again. Limits the load of servers that are overloaded."""


class NodeEventQueue:
    """The node events that servers may not have received yet, and the flag that the node must be registered again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._events: tuple[NodeEvent, ...] = ()
        self._has_changed = asyncio.Event()

    def add_event(self, subsystem: NodeEventSubsystem, message: str, **details: str) -> None:
        """Queue an event for the operators of the node, and have the node registered again, which sends it.

        The queue holds at most `MAX_NODE_EVENTS`; the oldest events are dropped.
        """
        event = NodeEvent(
            message=message, subsystem=subsystem, details=details or None, timestamp=to_datetime(self._world.now_ns())
        )
        self._events = (*self._events, event)[-MAX_NODE_EVENTS:]
        self._has_changed.set()

    def mark_changed(self) -> None:
        """Have the node registered again, because its description has changed."""
        self._has_changed.set()

    @property
    def pending_events(self) -> tuple[NodeEvent, ...] | None:
        """The events that servers may not have received; `None` if there are none.

        Servers store an event once, even if it is sent twice.
        """
        return self._events or None

    async def send_events(self, register_again: Callable[[], Awaitable[None]]) -> None:
        """Call `register_again`, which sends the node with its events, after each change. Runs until canceled.

        A failed call is repeated after a growing delay. Events are removed from the queue once they are sent.
        """
        backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            sent = self._events
            try:
                await register_again()
            except (Refusal, Unreachable) as error:
                log.warning("failed to send node events error=%s", error)
                self._has_changed.set()
                await asyncio.sleep(backoff.next_delay_s(get_requested_delay_s(error)))
            else:
                backoff.reset()
                self._events = tuple(event for event in self._events if event not in sent)
