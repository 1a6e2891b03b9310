"""What the node itself has to tell its servers: events of its own, and that it is not what it was. Kept until it is told."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from wharf.contract.client import Unreachable
from wharf.contract.model.nodes.node import MAX_NODE_EVENTS, NodeEvent, NodeEventSubsystem
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import to_datetime
from wharf.world import World

log = logging.getLogger(__name__)

RETRY_DELAY_S: Final = 1.0


class NodeEventQueue:
    def __init__(self, world: World) -> None:
        self._world = world
        self._events: tuple[NodeEvent, ...] = ()
        self._is_there = asyncio.Event()

    def add_event(self, subsystem: NodeEventSubsystem, message: str, **details: str) -> None:
        """Something that whoever looks after the node should know of."""
        event = NodeEvent(
            message=message, subsystem=subsystem, details=details or None, timestamp=to_datetime(self._world.now_ns())
        )
        self._events = (*self._events, event)[-MAX_NODE_EVENTS:]
        self._is_there.set()

    def mark_changed(self) -> None:
        self._is_there.set()

    @property
    def pending_events(self) -> tuple[NodeEvent, ...] | None:
        """Those that no server has surely heard of. Said twice they are one."""
        return self._events or None

    async def send_events(self, register_again: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled. `describe` says to servers what the node is, with its events."""
        while True:
            await self._is_there.wait()
            self._is_there.clear()
            said = self._events
            try:
                await register_again()
            except (Refusal, Unreachable) as error:
                log.warning("what is new of the node cannot be told: %s", error)
                self._is_there.set()
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                self._events = tuple(event for event in self._events if event not in said)
